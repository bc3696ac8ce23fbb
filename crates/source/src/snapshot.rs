//! The commit that jobs check out: `HEAD` if the working tree is clean, or else a commit on top of it with the current
//! files.
//!
//! Nothing is written to the user's repository, so the user may run `git commit` at the same time. If `HEAD` changes
//! meanwhile, the snapshot is repeated. git works on a private copy of the index, which tells it which files have
//! changed and must be hashed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::SnapshotError;
use crate::commit::{Commit, commit_tree, read_commit};
use crate::git::{Git, line, nul_separated};
use crate::locate::{FoundRepository, locate};
use crate::store::{copy_index, prepare_store, store_error, write_atomically};

/// Number of attempts to take a snapshot during which `HEAD` does not change.
const MAX_ATTEMPTS: usize = 4;

/// An entry of the snapshot's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Mode: `100644`, `100755`, `120000` (symbolic link) or `160000` (submodule).
    pub mode: String,
    /// ID of the object.
    pub object: String,
}

/// The paths in which a snapshot differs from another commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Changed paths.
    pub paths: Vec<String>,
    /// Human-readable name of the commit that the snapshot is compared with: the merge base, or the other commit if
    /// there is no common commit.
    pub since: String,
}

/// The last common commit of the snapshot and another history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeBase {
    /// ID of the commit.
    pub commit: String,
    /// Ref of the other history: `main`, `origin/main`, a tag or a commit.
    pub name: String,
}

impl std::fmt::Display for MergeBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&describe_commit(&self.commit, "the merge base with", &self.name))
    }
}

/// Returns the short ID of a commit, and how the commit relates to the ref `name`. If `name` is the ID itself, returns
/// only the short ID.
fn describe_commit(commit: &str, relation: &str, name: &str) -> String {
    let short = commit.get(..8).unwrap_or(commit);
    if commit.starts_with(name) { short.to_owned() } else { format!("{short}, {relation} `{name}`") }
}

/// The state of a working tree at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Bare repository that contains [`Snapshot::sha`].
    pub repository: PathBuf,
    /// Root directory of the working tree.
    pub worktree: PathBuf,
    /// Commit to check out.
    pub sha: String,
    /// Whether the working tree differs from [`Snapshot::head`]. Then only the store has the commit `sha`.
    pub dirty: bool,
    /// Commit that the user has checked out, which the `CI_COMMIT_*` variables describe.
    pub head: Commit,
    /// Current branch. `None` for a detached `HEAD`.
    pub branch: Option<String>,
    /// Object format: `sha1` or `sha256`.
    pub object_format: String,
    /// Paths of the snapshot, with `/` as separator.
    pub tracked_paths: Arc<BTreeSet<String>>,
    entries: Arc<BTreeMap<String, Entry>>,
    /// The user's repository. Its commands also find the objects of the store.
    git: Git,
}

impl Snapshot {
    /// Stores a snapshot of the working tree around `directory` in the bare repository `store`, which is created if
    /// necessary.
    ///
    /// The snapshot contains tracked files, and untracked files that are not ignored. Submodules are links to their
    /// commits. The same content on the same commit has the same ID.
    ///
    /// # Errors
    /// [`SnapshotError`]. After an error, only files in `store` remain.
    pub fn take(directory: &Path, store: &Path) -> Result<Self, SnapshotError> {
        let store = &std::path::absolute(store).map_err(store_error(store))?;
        let mut located = locate(directory)?;
        for _ in 0..MAX_ATTEMPTS {
            match Self::take_unless_head_changes(directory, located, store)? {
                Ok(snapshot) => return Ok(snapshot),
                Err(changed) => located = changed,
            }
            tracing::debug!(path = %located.worktree.display(), "`HEAD` changed during the snapshot, retrying");
        }
        Err(SnapshotError::HeadChanged { path: located.worktree })
    }

    /// Takes a snapshot. The inner error is the repository after a change of `HEAD`: the files may be those of another
    /// commit.
    fn take_unless_head_changes(
        directory: &Path,
        located: FoundRepository,
        store: &Path,
    ) -> Result<Result<Self, FoundRepository>, SnapshotError> {
        prepare_store(store, &located)?;
        let work = tempfile::Builder::new().prefix("index-").tempdir_in(store).map_err(store_error(store))?;
        let index = work.path().join("index");
        copy_index(&located.git_dir.join("index"), &index)?;
        let reader = Git { git_dir: Some(located.git_dir.clone()), ..Git::discover(&located.worktree) }
            .with_variable("GIT_WORK_TREE", located.worktree.as_os_str())
            .with_variable("GIT_OBJECT_DIRECTORY", store.join("objects"));
        let writer = reader.clone().with_variable("GIT_INDEX_FILE", index.as_os_str());

        // Each call starts a process. Independent processes run in parallel.
        let (head, entries, tree, after) = std::thread::scope(|scope| {
            let head = scope.spawn(|| read_commit(&reader, &located.head));
            add_all(&writer)?;
            let after = scope.spawn(|| locate(directory));
            let entries = scope.spawn(|| list_index(&writer));
            let tree = writer.run(&["write-tree", "--missing-ok"]).map(|output| line(&output))?;
            Ok::<_, SnapshotError>((join(head)?, join(entries)?, tree, join(after)?))
        })?;
        if after != located {
            return Ok(Err(after));
        }
        let dirty = tree != located.tree;
        let sha = if dirty { commit_tree(&reader, &tree, &head)? } else { located.head.clone() };
        let tracked_paths = Arc::new(entries.keys().cloned().collect());
        let snapshot = Self {
            repository: store.to_owned(),
            worktree: located.worktree,
            sha,
            dirty,
            head,
            branch: located.branch,
            object_format: located.object_format,
            tracked_paths,
            entries: Arc::new(entries),
            git: reader,
        };
        Ok(Ok(snapshot))
    }

    /// Writes the refs that jobs fetch: `refs/pipelines/<pipeline>`, and the pipeline's branch or tag.
    ///
    /// # Errors
    /// [`SnapshotError::Store`] if the store cannot be written.
    pub fn pin(&self, pipeline: i64, full_ref: Option<&str>) -> Result<(), SnapshotError> {
        let pipeline_ref = format!("refs/pipelines/{pipeline}");
        for name in std::iter::once(pipeline_ref.as_str()).chain(full_ref) {
            let path = self.repository.join(name);
            let write = || {
                fs::create_dir_all(path.parent().unwrap_or(&self.repository))?;
                write_atomically(&path, format!("{}\n", self.sha).as_bytes())
            };
            write().map_err(store_error(&path))?;
        }
        Ok(())
    }

    /// Returns the user's repository. Its commands also find the objects of the store.
    #[must_use]
    pub fn git(&self) -> &Git {
        &self.git
    }

    /// Returns the entry at a path. `None` if the path does not exist.
    #[must_use]
    pub fn entry(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    /// Returns the last commit that changed a path. `None` if no commit changed it.
    #[must_use]
    pub fn last_commit_of(&self, path: &str) -> Option<String> {
        let literal = format!(":(literal){path}");
        let output = self.git.run(&["log", "-1", "--format=%H", &self.sha, "--", &literal]).ok()?;
        Some(line(&output)).filter(|commit| !commit.is_empty())
    }

    /// Returns the commit of a branch, remote branch, tag, commit or full ref in the user's repository.
    #[must_use]
    pub fn resolve(&self, name: &str) -> Option<String> {
        if name.starts_with('-') || name.is_empty() {
            return None;
        }
        let candidates = [
            format!("refs/heads/{name}"),
            format!("refs/remotes/origin/{name}"),
            format!("refs/tags/{name}"),
            name.to_owned(),
        ];
        self.first_commit(&candidates)
    }

    /// Returns the commit of the first of the `names` that has one.
    fn first_commit(&self, names: &[String]) -> Option<String> {
        // One process looks up all names, unless a name contains a line break or `@`: `cat-file` aborts at a name such
        // as `@{upstream}` if the branch has no upstream.
        if names.iter().any(|name| name.contains(['\n', '@'])) {
            return names.iter().find_map(|name| self.commit(name));
        }
        let input: String = names.iter().map(|name| format!("{name}^{{commit}}\n")).collect();
        let output = self.git.run_with_input(&["cat-file", "--batch-check=%(objectname)"], input.as_bytes()).ok()?;
        // The line of a name without a commit is the name itself, a space and a reason.
        let is_hash = |line: &&str| !line.is_empty() && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        String::from_utf8_lossy(&output).lines().find(is_hash).map(str::to_owned)
    }

    /// Returns the changes since the snapshot diverged from the history of `base`. A renamed file has both names.
    ///
    /// Without a common commit, the snapshot is compared with `base` itself. `None` if `base` is not a commit, or git
    /// cannot compare the commits.
    #[must_use]
    pub fn changed_since(&self, base: &str) -> Option<Difference> {
        let (commit, since) = match self.merge_base(base) {
            Some(merge_base) => (merge_base.commit.clone(), merge_base.to_string()),
            None => {
                let commit = self.resolve(base)?;
                let since = describe_commit(&commit, "the commit of", base);
                (commit, since)
            }
        };
        let paths = self.changed_between(&commit, &self.sha)?;
        Some(Difference { paths, since })
    }

    /// Returns the commit where the snapshot diverged from the history of `name`. `None` if `name` is not a commit, or
    /// there is no common commit.
    #[must_use]
    pub fn merge_base(&self, name: &str) -> Option<MergeBase> {
        let (tip, name) = self.tip(name)?;
        let output = self.git.output(&["merge-base", &tip, &self.head.sha]).ok()?;
        output.status.success().then(|| MergeBase { commit: line(&output.stdout), name })
    }

    /// Returns the commit that a name probably has on the server, and the ref of that commit.
    ///
    /// For a branch, this is its upstream or `origin/<name>`. If the local branch contains that commit, it is the local
    /// branch instead. [`Snapshot::resolve`] resolves other names.
    fn tip(&self, name: &str) -> Option<(String, String)> {
        let local = self.commit(&format!("refs/heads/{name}"));
        let (upstream, upstream_name) = match &local {
            Some(_) => match self.commit(&format!("{name}@{{upstream}}")) {
                Some(upstream) => (Some(upstream), self.short_name(&format!("{name}@{{upstream}}"))),
                None => (self.commit(&format!("refs/remotes/origin/{name}")), None),
            },
            None => (self.commit(&format!("refs/remotes/origin/{name}")), None),
        };
        match (local, upstream) {
            (Some(local), Some(upstream)) if self.is_ancestor(&upstream, &local) => Some((local, name.to_owned())),
            (_, Some(upstream)) => Some((upstream, upstream_name.unwrap_or_else(|| format!("origin/{name}")))),
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

    fn is_ancestor(&self, ancestor: &str, commit: &str) -> bool {
        let answer = self.git.output(&["merge-base", "--is-ancestor", ancestor, commit]);
        answer.is_ok_and(|output| output.status.success())
    }

    /// Returns the paths in which two commits differ, or `None` if git cannot compare them.
    #[must_use]
    pub fn changed_between(&self, from: &str, to: &str) -> Option<Vec<String>> {
        let output = self.git.run(&["diff-tree", "-r", "-z", "--no-renames", "--name-only", from, to]).ok()?;
        Some(nul_separated(&output).map(|path| String::from_utf8_lossy(path).into_owned()).collect())
    }

    /// Returns the commit that the upstream of the current branch had at the last fetch or push.
    #[must_use]
    pub fn upstream(&self) -> Option<String> {
        self.commit("@{upstream}")
    }

    /// Returns the git settings whose lower-case names match the regular expression `pattern`. Later values of a name
    /// take precedence.
    ///
    /// Omits remotes in the configuration of the user or the system, because they apply to every repository.
    #[must_use]
    pub fn config(&self, pattern: &str) -> Vec<(String, String)> {
        let arguments = ["config", "--null", "--show-scope", "--get-regexp", pattern];
        let Ok(output) = self.git.run(&arguments) else { return Vec::new() };
        let scopes = nul_separated(&output).step_by(2);
        let entries = nul_separated(&output).skip(1).step_by(2);
        scopes
            .zip(entries)
            .filter(|(scope, entry)| !(matches!(*scope, b"global" | b"system") && entry.starts_with(b"remote.")))
            .map(|(_, entry)| String::from_utf8_lossy(entry).into_owned())
            .map(|entry| match entry.split_once('\n') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (entry, "true".to_owned()),
            })
            .collect()
    }

    /// Returns the default branch of the remote, from `origin/HEAD`.
    #[must_use]
    pub fn remote_default_branch(&self) -> Option<String> {
        let output = self.git.output(&["symbolic-ref", "--quiet", "refs/remotes/origin/HEAD"]).ok()?;
        line(&output.stdout).strip_prefix("refs/remotes/origin/").map(str::to_owned)
    }

    /// Returns the message of an annotated tag, or `None` for other tags.
    #[must_use]
    pub fn tag_message(&self, tag: &str) -> Option<String> {
        let format = "--format=%(objecttype)%00%(contents)";
        let output = self.git.run(&["for-each-ref", format, &format!("refs/tags/{tag}")]).ok()?;
        let text = String::from_utf8_lossy(&output).into_owned();
        let message = text.strip_prefix("tag\0")?;
        Some(message.trim_end_matches('\n').to_owned())
    }
}

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
            tracing::debug!(%details, path = %path.display(), "`git add` failed because the disk is full");
            let store = git.environment.iter().find(|(name, _)| *name == "GIT_OBJECT_DIRECTORY");
            Err(SnapshotError::Store {
                path: store.map(|(_, value)| PathBuf::from(value)).unwrap_or_default(),
                source: io::ErrorKind::StorageFull.into(),
            })
        }
        other => Err(other),
    }
}

fn list_index(git: &Git) -> Result<BTreeMap<String, Entry>, SnapshotError> {
    let output = git.run(&["ls-files", "--stage", "-z"])?;
    Ok(nul_separated(&output).filter_map(parse_entry).collect())
}

fn parse_entry(line: &[u8]) -> Option<(String, Entry)> {
    let tab = line.iter().position(|byte| *byte == b'\t')?;
    let (fields, path) = (line.get(..tab)?, line.get(tab + 1..)?);
    let mut fields = std::str::from_utf8(fields).ok()?.split(' ');
    let (mode, object) = (fields.next()?.to_owned(), fields.next()?.to_owned());
    Some((String::from_utf8_lossy(path).into_owned(), Entry { mode, object }))
}

fn join<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests;
