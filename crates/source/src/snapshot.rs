//! The commit that jobs check out: `HEAD` when the tree is clean, else a commit on top of it with what lies there.
//!
//! A bare repository of our own borrows the user's objects (`objects/info/alternates`) and takes the new ones. The index
//! is a private copy, so that only changed files are hashed. So nothing in the user's repository is written, and a
//! `git commit` or `git rebase` of the user may go on meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::SnapshotError;
use crate::commit::{Commit, commit_tree, read_commit};
use crate::git::{Git, line, nul_separated};
use crate::locate::locate;
use crate::store::{copy_index, in_store, prepare_store, write_whole};

/// One entry of the snapshot's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// `100644`, `100755`, `120000` (symbolic link) or `160000` (submodule).
    pub mode: String,
    /// ID of the object.
    pub object: String,
}

/// The paths in which a snapshot differs from another commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The paths.
    pub paths: Vec<String>,
    /// The commit that the snapshot is compared with.
    pub since: Parting,
}

/// Where the snapshot left another history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    /// The last commit that both have.
    pub commit: String,
    /// The ref of the other history: `main`, `origin/main`, a tag, a commit.
    pub name: String,
}

impl std::fmt::Display for Parting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = self.commit.get(..8).unwrap_or(&self.commit);
        if self.commit.starts_with(&self.name) {
            return f.write_str(short);
        }
        write!(f, "{short}, where it left `{}`", self.name)
    }
}

/// A working tree, fixed at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The bare repository that has [`Snapshot::sha`].
    pub repository: PathBuf,
    /// The top folder of the working tree.
    pub worktree: PathBuf,
    /// The commit to check out.
    pub sha: String,
    /// Whether the working tree differs from [`Snapshot::head`], so that `sha` is a commit that only the store has.
    pub dirty: bool,
    /// The commit that the user stands on: what `CI_COMMIT_*` tell of.
    pub head: Commit,
    /// The branch; none with a detached `HEAD`.
    pub branch: Option<String>,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// Every path of the snapshot, with `/` between its parts.
    pub tracked_paths: Arc<BTreeSet<String>>,
    /// The same with what stands there.
    entries: Arc<BTreeMap<String, Entry>>,
    /// The user's repository, read through the store's objects too.
    git: Git,
}

impl Snapshot {
    /// Takes a snapshot of the working tree around `directory` into the bare repository `store`, which is made if it is
    /// not there.
    ///
    /// It holds tracked files as they lie there, and untracked files that are not ignored. Submodules stay links.
    /// The same content on the same commit gives the same id.
    ///
    /// # Errors
    /// [`SnapshotError`]; nothing is left behind but perhaps objects in `store`.
    pub fn take(directory: &Path, store: &Path) -> Result<Self, SnapshotError> {
        let place = locate(directory)?;
        let store = &std::path::absolute(store).map_err(in_store(store))?;
        prepare_store(store, &place)?;
        let work = tempfile::Builder::new().prefix("index-").tempdir_in(store).map_err(in_store(store))?;
        let index = work.path().join("index");
        copy_index(&place.git_dir.join("index"), &index)?;
        let reader = Git { git_dir: Some(place.git_dir.clone()), ..Git::discover(&place.worktree) }
            .with("GIT_WORK_TREE", place.worktree.as_os_str())
            .with("GIT_OBJECT_DIRECTORY", store.join("objects"));
        let writer = reader.clone().with("GIT_INDEX_FILE", index.as_os_str());

        // Each call is a process of its own; the ones that do not need each other run side by side.
        let (head, entries, tree) = std::thread::scope(|scope| {
            let head = scope.spawn(|| read_commit(&reader));
            add_all(&writer)?;
            let entries = scope.spawn(|| list_index(&writer));
            let tree = writer.run(&["write-tree", "--missing-ok"]).map(|output| line(&output))?;
            Ok::<_, SnapshotError>((joined(head)?, joined(entries)?, tree))
        })?;
        let dirty = tree != place.tree;
        let sha = if dirty { commit_tree(&reader, &tree, &head)? } else { place.head.clone() };
        let tracked_paths = Arc::new(entries.keys().cloned().collect());
        let snapshot = Self {
            repository: store.to_owned(),
            worktree: place.worktree,
            sha,
            dirty,
            head,
            branch: place.branch,
            object_format: place.object_format,
            tracked_paths,
            entries: Arc::new(entries),
            git: reader,
        };
        Ok(snapshot)
    }

    /// Writes `refs/pipelines/<pipeline>`, and the branch or tag that the pipeline is for, so that jobs can fetch them.
    ///
    /// # Errors
    /// [`SnapshotError::Store`] if the store cannot be written.
    pub fn pin(&self, pipeline: i64, full_ref: Option<&str>) -> Result<(), SnapshotError> {
        let pipeline_ref = format!("refs/pipelines/{pipeline}");
        for name in std::iter::once(pipeline_ref.as_str()).chain(full_ref) {
            let path = self.repository.join(name);
            let write = || {
                fs::create_dir_all(path.parent().unwrap_or(&self.repository))?;
                write_whole(&path, format!("{}\n", self.sha).as_bytes())
            };
            write().map_err(in_store(&path))?;
        }
        Ok(())
    }

    /// The user's repository, read through the store's objects too.
    #[must_use]
    pub fn git(&self) -> &Git {
        &self.git
    }

    /// The entry at a path of the snapshot; `None` if the path does not exist.
    #[must_use]
    pub fn entry(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// The last commit of the snapshot's history that changed a path; `None` if no commit did.
    #[must_use]
    pub fn last_commit_of(&self, path: &str) -> Option<String> {
        let literal = format!(":(literal){path}");
        let output = self.git.run(&["log", "-1", "--format=%H", &self.sha, "--", &literal]).ok()?;
        Some(line(&output)).filter(|commit| !commit.is_empty())
    }

    /// The commit that a name of the user's repository stands for: branch, remote branch, tag, commit, full ref.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Option<String> {
        if name.starts_with('-') || name.is_empty() {
            return None;
        }
        let asked = [
            format!("refs/heads/{name}"),
            format!("refs/remotes/origin/{name}"),
            format!("refs/tags/{name}"),
            name.to_owned(),
        ];
        asked.iter().find_map(|asked| self.commit(asked))
    }

    /// What differs between the snapshot and the place where it left `base`'s history; `None` if there is no such commit. A
    /// renamed file counts with both names.
    #[must_use]
    pub fn changed_since(&self, base: &str) -> Option<Difference> {
        let since = match self.parting(base) {
            Some(parting) => parting,
            None => Parting { commit: self.resolve(base)?, name: base.to_owned() },
        };
        let paths = self.changed_between(&since.commit, &self.sha)?;
        Some(Difference { paths, since })
    }

    /// The commit where the history of `name` and that of the snapshot part; `None` if there is no such commit.
    #[must_use]
    pub fn parting(&self, name: &str) -> Option<Parting> {
        let (tip, name) = self.tip(name)?;
        let output = self.git.output(&["merge-base", &tip, &self.head.sha]).ok()?;
        output.status.success().then(|| Parting { commit: line(&output.stdout), name })
    }

    /// The commit of a name as the server knows it, and the ref that it was read from: of a branch its upstream, unless
    /// the local branch has all of that, else [`Snapshot::resolve`].
    fn tip(&self, name: &str) -> Option<(String, String)> {
        let local = self.commit(&format!("refs/heads/{name}"));
        let (upstream, shown) = match &local {
            Some(_) => match self.commit(&format!("{name}@{{upstream}}")) {
                Some(upstream) => (Some(upstream), self.short_name(&format!("{name}@{{upstream}}"))),
                None => (self.commit(&format!("refs/remotes/origin/{name}")), None),
            },
            None => (self.commit(&format!("refs/remotes/origin/{name}")), None),
        };
        match (local, upstream) {
            (Some(local), Some(upstream)) if self.has_all_of(&local, &upstream) => Some((local, name.to_owned())),
            (_, Some(upstream)) => Some((upstream, shown.unwrap_or_else(|| format!("origin/{name}")))),
            _ => Some((self.resolve(name)?, name.to_owned())),
        }
    }

    fn commit(&self, name: &str) -> Option<String> {
        if name.starts_with('-') {
            return None;
        }
        let output = self.git.output(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]).ok()?;
        output.status.success().then(|| line(&output.stdout)).filter(|commit| !commit.is_empty())
    }

    fn short_name(&self, name: &str) -> Option<String> {
        let output = self.git.output(&["rev-parse", "--abbrev-ref", name]).ok()?;
        output.status.success().then(|| line(&output.stdout)).filter(|name| !name.is_empty())
    }

    fn has_all_of(&self, commit: &str, other: &str) -> bool {
        let answer = self.git.output(&["merge-base", "--is-ancestor", other, commit]);
        answer.is_ok_and(|output| output.status.success())
    }

    /// The paths in which two commits differ.
    #[must_use]
    pub fn changed_between(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let output = self.git.run(&["diff-tree", "-r", "-z", "--no-renames", "--name-only", from, to]).ok()?;
        Some(nul_separated(&output).map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }

    /// The commit of the branch's upstream, as of the last fetch or push.
    #[must_use]
    pub fn upstream(&self) -> Option<String> {
        self.commit("@{upstream}")
    }

    /// Values of the repository's and the user's git configuration whose names match `pattern` (a regular expression on
    /// the lower-case name), later ones last.
    #[must_use]
    pub fn config(&self, pattern: &str) -> Vec<(String, String)> {
        let Ok(output) = self.git.run(&["config", "--null", "--get-regexp", pattern]) else { return Vec::new() };
        nul_separated(&output)
            .map(|entry| String::from_utf8_lossy(entry).into_owned())
            .map(|entry| match entry.split_once('\n') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (entry, "true".to_owned()),
            })
            .collect()
    }

    /// The branch that `origin/HEAD` names.
    #[must_use]
    pub fn remote_default_branch(&self) -> Option<String> {
        let output = self.git.output(&["symbolic-ref", "--quiet", "refs/remotes/origin/HEAD"]).ok()?;
        line(&output.stdout).strip_prefix("refs/remotes/origin/").map(str::to_owned)
    }

    /// The message of an annotated tag; none for a plain tag, or if there is no such tag.
    #[must_use]
    pub fn tag_message(&self, tag: &str) -> Option<String> {
        let format = "--format=%(objecttype)%00%(contents)";
        let output = self.git.run(&["for-each-ref", format, &format!("refs/tags/{tag}")]).ok()?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let message = text.strip_prefix("tag\0")?;
        Some(message.trim_end_matches('\n').to_owned())
    }
}

/// Brings the private index to what lies in the working tree.
fn add_all(git: &Git) -> Result<(), SnapshotError> {
    let arguments = ["add", "--all"];
    let output = git.output(&arguments)?;
    if output.status.success() {
        return Ok(());
    }
    let failure = git.failure(&arguments, &output);
    match failure {
        SnapshotError::Git { details, .. } if details.contains("Permission denied") => {
            let lines: Vec<_> = details
                .lines()
                .filter(|line| line.contains("Permission denied"))
                .map(|line| format!("  {line}"))
                .collect();
            Err(SnapshotError::Unreadable { details: lines.join("\n") })
        }
        SnapshotError::Git { details, path, .. } if details.contains("No space left on device") => {
            tracing::debug!(%details, path = %path.display(), "git add");
            let store = git.environment.iter().find(|(name, _)| *name == "GIT_OBJECT_DIRECTORY");
            Err(SnapshotError::Store {
                path: store.map(|(_, value)| PathBuf::from(value)).unwrap_or_default(),
                source: io::ErrorKind::StorageFull.into(),
            })
        }
        other => Err(other),
    }
}

/// The entries of the private index.
fn list_index(git: &Git) -> Result<BTreeMap<String, Entry>, SnapshotError> {
    let output = git.run(&["ls-files", "--stage", "-z"])?;
    Ok(nul_separated(&output).filter_map(parse_entry).collect())
}

/// `<mode> <object> <stage>\t<path>`.
fn parse_entry(line: &[u8]) -> Option<(String, Entry)> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let (facts, path) = (line.get(..tab)?, line.get(tab + 1..)?);
    let facts = std::str::from_utf8(facts).ok()?;
    let mut words = facts.split(' ');
    let (mode, object) = (words.next()?.to_owned(), words.next()?.to_owned());
    Some((String::from_utf8_lossy(path).into_owned(), Entry { mode, object }))
}

/// The result of a scoped thread; a panic goes on in the caller.
fn joined<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests;
