//! Files of a mirror of a repository, and the locks on them.
//!
//! ```text
//! <root>/                 private directory of the agent's user
//!   <name>.lock           shared lock to create a view, exclusive lock to change the content; modified at each use
//!   <name>/objects/       objects of git; packs only
//!   <name>/tips           hashes of commits with complete history, newest last
//!   <name>/views/<view>/  view of a job, with its own lock
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_agent_api::builtin::GitMirror;
use muster_files::Limit;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

use super::memory::{Mirrors, Refs};
use super::refspecs::is_hash;
use crate::named_lock::{self, Kind};
use crate::removal::remove_tree;
use crate::trash::Trash;

/// Maximum time to wait for another agent.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of known commits that a fetch reports to the server.
const MAX_TIPS: usize = 5000;
const TIPS_LIMIT: Limit = Limit { bytes: 1024 * 1024, remedy: "everything is fetched again" };
/// Prefix of the names of the temporary directories in which git commands of one job run.
pub(crate) const COMMAND_PREFIX: &str = "git-";
/// Number of packs above which they are combined.
const MANY_PACKS: usize = 32;

#[derive(Debug, Clone)]
pub(crate) struct Mirror {
    root: PathBuf,
    name: String,
    pub(crate) dir: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Guard {
    /// Locked file, which excludes other agents.
    _file: File,
    _agent_lock: AgentLock,
}

/// Lock that excludes other jobs of this agent.
#[derive(Debug)]
enum AgentLock {
    Shared(#[expect(dead_code, reason = "held until it is dropped")] OwnedRwLockReadGuard<()>),
    Exclusive(#[expect(dead_code, reason = "held until it is dropped")] OwnedRwLockWriteGuard<()>),
}

impl Mirror {
    /// Returns the mirror that a step names.
    pub(crate) fn new(inputs: &GitMirror) -> Result<Self, Failure> {
        for name in [&inputs.name, &inputs.view] {
            if !named_lock::is_valid_name(name) {
                return Err(Failure::System(format!(
                    "`{name}` is not a valid name of a git mirror or of a view of it"
                )));
            }
        }
        let root = PathBuf::from(&inputs.root);
        Ok(Self { dir: root.join(&inputs.name), root, name: inputs.name.clone() })
    }

    /// Creates the directory of all mirrors. Fails if another user can change it.
    pub(crate) fn create_root(&self) -> Result<(), Failure> {
        let created = || {
            if let Some(parent) = self.root.parent() {
                fs::create_dir_all(parent)?;
            }
            muster_files::own_directory(&self.root)
        };
        created().map_err(Failure::io(format!("failed to use the directory `{}` for git mirrors", self.root.display())))
    }

    pub(crate) async fn lock(&self, mirrors: &Mirrors, kind: Kind, stop: &StopToken) -> Result<Guard, Failure> {
        let lock = mirrors.lock_of(&self.dir);
        let work = async {
            let agent_lock = match kind {
                Kind::Shared => AgentLock::Shared(lock.read_owned().await),
                Kind::Exclusive => AgentLock::Exclusive(lock.write_owned().await),
            };
            let file = named_lock::lock(&self.root, &self.name, kind, LOCK_TIMEOUT).await;
            let file = file.map_err(Failure::io("failed to lock the git mirror"))?;
            let used = file.set_modified(SystemTime::now());
            used.map_err(Failure::io("failed to record the use of the git mirror"))?;
            Ok(Guard { _file: file, _agent_lock: agent_lock })
        };
        tokio::select! {
            biased;
            cause = stop.stopped() => Err(Failure::Stopped(cause)),
            guard = work => guard,
        }
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.dir.join("objects")
    }

    pub(crate) fn packs(&self) -> PathBuf {
        self.dir.join("objects/pack")
    }

    pub(crate) fn views(&self) -> PathBuf {
        self.dir.join("views")
    }

    /// Creates missing directories. Removes leftovers of a killed git, and `objects/info`, which could name object
    /// directories outside of the mirror (`alternates`).
    pub(crate) fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(self.packs())?;
        remove_tree(&self.dir.join("objects/info"))?;
        for entry in fs::read_dir(self.packs())? {
            let entry = entry?;
            // A killed fetch leaves a `.keep` file, which would exclude its pack from combination.
            let is_leftover = |name: &str| name.starts_with("tmp_") || name.starts_with('.') || name.ends_with(".keep");
            if entry.file_name().to_str().is_none_or(is_leftover) {
                match fs::remove_file(entry.path()) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    // Another job has removed the file.
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Removes directories with [`COMMAND_PREFIX`] of killed agents. The caller must hold the exclusive lock.
    pub(crate) fn remove_command_dirs(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(COMMAND_PREFIX)) {
                remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes all objects. Views of running jobs keep them as hard links.
    pub(crate) fn clear(&self) -> io::Result<()> {
        remove_tree(&self.objects())?;
        match fs::remove_file(self.tips_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.prepare(),
        }
    }

    fn tips_path(&self) -> PathBuf {
        self.dir.join("tips")
    }

    /// Returns the recorded commits, whose history the mirror should have.
    pub(crate) fn tips(&self) -> Vec<String> {
        let path = self.tips_path();
        let read = muster_files::open(&path).and_then(|file| muster_files::read_open(file, &path, TIPS_LIMIT));
        let text = String::from_utf8(read.unwrap_or_default()).unwrap_or_default();
        text.lines().filter(|line| is_hash(line)).map(str::to_owned).collect()
    }

    /// Records the commits of `refs` in addition to `known`. Drops the oldest commits above the maximum.
    pub(crate) fn write_tips(&self, known: &[String], refs: &Refs) -> io::Result<()> {
        let mut all: Vec<&str> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let newest_first = refs.0.iter().map(|(hash, _)| hash.as_str()).chain(known.iter().rev().map(String::as_str));
        all.extend(newest_first.filter(|hash| seen.insert(*hash)).take(MAX_TIPS));
        let text: String = all.iter().rev().map(|hash| format!("{hash}\n")).collect();
        let new = self.dir.join("tips.new");
        fs::write(&new, text)?;
        fs::rename(new, self.tips_path())
    }

    pub(crate) fn has_many_packs(&self) -> bool {
        let is_pack = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|end| end == "pack");
        let entries = fs::read_dir(self.packs()).into_iter().flatten().flatten();
        entries.filter(is_pack).count() > MANY_PACKS
    }

    /// Removes views of jobs whose agent was killed.
    pub(crate) fn remove_abandoned_views(&self) {
        let views = self.views();
        for (name, _) in named_lock::last_uses(&views) {
            let removed = named_lock::try_lock(&views, &name, Kind::Exclusive).and_then(|lock| {
                let Some(_lock) = lock else { return Ok(()) };
                remove_tree(&views.join(&name))?;
                named_lock::remove(&views, &name)
            });
            if let Err(error) = removed {
                tracing::warn!(%error, view = %views.join(name).display(), "failed to remove a view of a git mirror");
            }
        }
    }

    /// Forgets the refs of a damaged mirror. Removes its content if no other job holds the lock.
    pub(crate) fn discard_content(&self, mirrors: &Mirrors) {
        mirrors.forget(&self.dir);
        let cleared = named_lock::try_lock(&self.root, &self.name, Kind::Exclusive)
            .and_then(|lock| lock.map_or(Ok(()), |_lock| self.clear()));
        if let Err(error) = cleared {
            tracing::warn!(%error, mirror = %self.dir.display(), "failed to remove the content of a git mirror");
        }
    }

    /// Removes mirrors that have been unused for longer than `max_age`, and the rest of those that a killed agent was
    /// removing.
    pub(crate) fn remove_unused(&self, mirrors: &Mirrors, trash: &Trash, max_age: Duration) {
        let now = SystemTime::now();
        for (name, last) in named_lock::last_uses(&self.root) {
            if now.duration_since(last).unwrap_or_default() > max_age {
                mirrors.forget(&self.root.join(&name));
                discard(&self.root, &name, trash);
            }
        }
        if let Err(error) = trash.remove_leftovers(&self.root) {
            tracing::warn!(%error, dir = %self.root.display(), "failed to remove the rest of git mirrors");
        }
    }
}

/// Removes a mirror, unless a job or a view uses it.
fn discard(root: &Path, name: &str, trash: &Trash) {
    let views = root.join(name).join("views");
    let is_used = |view: &str| !matches!(named_lock::try_lock(&views, view, Kind::Exclusive), Ok(Some(_)));
    let removed = named_lock::try_lock(root, name, Kind::Exclusive).and_then(|lock| {
        let Some(_lock) = lock else { return Ok(false) };
        if named_lock::last_uses(&views).iter().any(|(view, _)| is_used(view)) {
            return Ok(false);
        }
        trash.discard(&root.join(name))?;
        named_lock::remove(root, name).map(|()| true)
    });
    match removed {
        Ok(true) => tracing::info!(name, "git mirror removed"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, name, "failed to remove a git mirror"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirror_whose_removal_was_interrupted_is_removed_by_the_next_job() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("mirrors");
        let inputs = GitMirror {
            root: root.to_string_lossy().into_owned(),
            name: "used".to_owned(),
            view: "1".to_owned(),
            ..GitMirror::default()
        };
        let mirror = Mirror::new(&inputs).unwrap();
        mirror.create_root().unwrap();
        mirror.prepare().unwrap();
        fs::create_dir_all(root.join("unused.trash/0123456789abcdef/objects/pack")).unwrap();
        let trash = Trash::default();
        mirror.remove_unused(&Mirrors::default(), &trash, Duration::from_secs(3600));
        trash.close();
        assert_eq!((mirror.packs().exists(), root.join("unused.trash").exists()), (true, false));
    }
}
