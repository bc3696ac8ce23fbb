//! The files of another project: a commit of a repository, or a plain directory.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use muster_pipeline::context::SourceError;
use muster_source::{BlobReader, Git, MAX_FILE_BYTES, SnapshotError, line, nul_separated};

const MAX_DIRECTORY_FILES: usize = 100_000;

#[derive(Debug, Clone)]
pub(super) enum Tree {
    Commit {
        git: Git,
        commit: String,
    },
    /// A directory without a repository. Its current files are used for every ref.
    Directory(PathBuf),
}

impl Tree {
    pub(super) fn read(&self, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
        match self {
            // A request to `git cat-file` is one line, so a path with a line break cannot be read.
            Self::Commit { .. } if path.contains('\n') => Ok(None),
            Self::Commit { git, commit } => {
                let mut reader = BlobReader::start(git).map_err(|error| read_failed(&error))?;
                reader.read(&format!("{commit}:{path}")).map_err(|error| read_failed(&error))
            }
            Self::Directory(directory) => read_in(directory, path),
        }
    }

    pub(super) fn paths(&self) -> Result<BTreeSet<String>, SourceError> {
        match self {
            Self::Commit { git, commit } => {
                let output = git.run(&["ls-tree", "-r", "-z", "--name-only", "--full-tree", commit]);
                let output = output.map_err(|error| git_failed(&error))?;
                Ok(nul_separated(&output).map(|path| String::from_utf8_lossy(path).into_owned()).collect())
            }
            Self::Directory(directory) => {
                let mut found = BTreeSet::new();
                let listed = list(directory, "", &mut found);
                listed.map_err(|error| {
                    SourceError::Unreadable(format!("failed to list `{}`: {error}", directory.display()))
                })?;
                Ok(found)
            }
        }
    }
}

/// Returns whether a directory is a repository, which may be bare.
pub(super) fn is_repository(directory: &Path) -> bool {
    directory.join(".git").exists() || directory.join("HEAD").is_file() && directory.join("objects").is_dir()
}

/// Returns the commit of a ref, or of `HEAD` if no ref is given. A branch may exist locally or on the remote `origin`.
pub(super) fn resolve(git: &Git, git_ref: Option<&str>) -> Result<Option<String>, SourceError> {
    let name = git_ref.unwrap_or("HEAD");
    if name.starts_with('-') {
        return Ok(None);
    }
    for name in [name.to_owned(), format!("refs/remotes/origin/{name}")] {
        let commit = format!("{name}^{{commit}}");
        let output = git.output(&["rev-parse", "--verify", "--quiet", &commit]).map_err(|error| git_failed(&error))?;
        if output.status.success() {
            return Ok(Some(line(&output.stdout)));
        }
        // With `--quiet`, a missing ref prints no message. Any message therefore reports a different error.
        if !output.stderr.is_empty() {
            return Err(git_failed(&git.failure(&["rev-parse"], &output)));
        }
    }
    Ok(None)
}

/// Returns the content of a regular file below a directory.
///
/// `None` if there is no such file, or if the path is absolute, starts with `./` or contains `..`.
pub(super) fn read_in(directory: &Path, path: &str) -> Result<Option<Vec<u8>>, SourceError> {
    if !Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(None);
    }
    let file = directory.join(path);
    read_file(&file).map_err(|error| unreadable(&file, &error))
}

/// Returns the content of a file, truncated to [`MAX_FILE_BYTES`]. `None` if the path is not a regular file.
pub(super) fn read_file(path: &Path) -> io::Result<Option<Vec<u8>>> {
    // Read only regular files: opening a named pipe would block, and reading a device might never end.
    match path.metadata() {
        Ok(metadata) if metadata.is_file() => {}
        Err(error) if !cannot_exist(&error) => return Err(error),
        _ => return Ok(None),
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Returns whether an error means that the file does not exist, for example because its name is too long.
fn cannot_exist(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | InvalidFilename | InvalidInput)
}

fn list(directory: &Path, prefix: &str, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let path = format!("{prefix}{}", name.to_string_lossy());
        if found.len() >= MAX_DIRECTORY_FILES {
            return Err(io::Error::other(format!("it has more than {MAX_DIRECTORY_FILES} files")));
        }
        // Symbolic links are skipped: they may lead out of the directory, or form a loop.
        if kind.is_dir() {
            list(&entry.path(), &format!("{path}/"), found)?;
        } else if kind.is_file() {
            found.insert(path);
        }
    }
    Ok(())
}

pub(super) fn unreachable_source(error: &SnapshotError) -> SourceError {
    SourceError::Unreachable(error.to_string())
}

pub(super) fn git_failed(error: &SnapshotError) -> SourceError {
    SourceError::Unreadable(error.to_string())
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> SourceError {
    SourceError::Unreadable(format!("failed to read `{}`: {error}; fix the file or its permissions", path.display()))
}

pub(super) fn read_failed(error: &io::Error) -> SourceError {
    SourceError::Unreadable(format!("failed to read files with `git cat-file`: {error}"))
}
