//! The files of another project: a commit of a repository, or a plain folder.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use muster_pipeline::context::SourceError;
use muster_source::{BlobReader, FILE_LIMIT, Git, SnapshotError, line, nul_separated};

/// Most files of a plain folder that are looked at.
const FOLDER_FILES: usize = 100_000;

/// Where a mapped project's files are.
#[derive(Debug, Clone)]
pub(super) enum Tree {
    /// A commit.
    Commit {
        /// Its repository.
        git: Git,
        /// Its id.
        commit: String,
    },
    /// A folder without a repository: it is as it lies there, whatever ref is asked for.
    Folder(PathBuf),
}

impl Tree {
    /// A plain file; `None` if it does not exist.
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        match self {
            // The protocol is one line per question, so a path with a line break cannot be asked for, and no file has one here.
            Self::Commit { .. } if path.contains('\n') => Ok(None),
            Self::Commit { git, commit } => {
                let mut reader = BlobReader::start(git).map_err(|error| unread(&error))?;
                reader.read(&format!("{commit}:{path}")).map_err(|error| unread(&error))
            }
            Self::Folder(folder) => read_in(folder, path).map_err(|error| {
                SourceError::Unreachable(format!("cannot read `{}`: {error}", folder.join(path).display()))
            }),
        }
    }

    /// Every path.
    pub(super) fn paths(&self) -> Result<BTreeSet<String>, SourceError> {
        match self {
            Self::Commit { git, commit } => {
                let output = git.run(&["ls-tree", "-r", "-z", "--name-only", "--full-tree", commit]);
                let output = output.map_err(|error| unreachable(&error))?;
                Ok(nul_separated(&output).map(|path| String::from_utf8_lossy(path).into_owned()).collect())
            }
            Self::Folder(folder) => {
                let mut found = BTreeSet::new();
                let listed = list(folder, "", &mut found);
                listed.map_err(|error| {
                    SourceError::Unreachable(format!("cannot list `{}`: {error}", folder.display()))
                })?;
                Ok(found)
            }
        }
    }
}

/// Whether a folder is a repository itself, with a working tree or bare; one below another repository is not.
pub(super) fn is_repository(folder: &Path) -> bool {
    folder.join(".git").exists() || folder.join("HEAD").is_file() && folder.join("objects").is_dir()
}

/// The commit of a ref in a checkout, that of `origin` where there is no local branch; `HEAD` without a ref.
pub(super) fn resolve(git: &Git, git_ref: Option<&str>) -> Result<Option<String>, SourceError> {
    let name = git_ref.unwrap_or("HEAD");
    if name.starts_with('-') {
        return Ok(None);
    }
    for asked in [name.to_owned(), format!("refs/remotes/origin/{name}")] {
        let asked = format!("{asked}^{{commit}}");
        let output = git.output(&["rev-parse", "--verify", "--quiet", &asked]).map_err(|error| unreachable(&error))?;
        if output.status.success() {
            return Ok(Some(line(&output.stdout)));
        }
        // `--quiet` is silent for a missing ref, so words mean something worse.
        if !output.stderr.is_empty() {
            return Err(unreachable(&git.failure(&["rev-parse"], &output)));
        }
    }
    Ok(None)
}

/// A plain file below a folder, by a path that stays in it.
pub(super) fn read_in(folder: &Path, path: &str) -> io::Result<Option<Vec<u8>>> {
    if !Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(None);
    }
    read_file(&folder.join(path))
}

/// The bytes of a plain file, a little more than the largest that is taken; `None` if it does not exist.
pub(super) fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // A named pipe would hold up whoever opens it, and a device has no end.
    if !path.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_LIMIT).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn list(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let path = format!("{prefix}{}", name.to_string_lossy());
        if found.len() >= FOLDER_FILES {
            return Err(io::Error::other(format!("it has more than {FOLDER_FILES} files")));
        }
        // A symbolic link may lead out of the folder, or in a circle.
        if kind.is_dir() {
            list(&entry.path(), &format!("{path}/"), found)?;
        } else if kind.is_file() {
            found.insert(path);
        }
    }
    Ok(())
}

/// Git failed: the project cannot be reached.
pub(super) fn unreachable(error: &SnapshotError) -> SourceError {
    SourceError::Unreachable(error.to_string())
}

/// The conversation with git broke off.
pub(super) fn unread(error: &io::Error) -> SourceError {
    SourceError::Unreachable(format!("cannot read files through `git cat-file`: {error}"))
}
