//! Moves leftovers of earlier jobs out of the way, and removes them in the background.
//!
//! Leftovers are moved to `<path>.trash` on the same file system, where a thread of low priority removes them, together
//! with what a killed agent left in this directory. [`Trash::resume`] and [`Trash::remove_leftovers`] remove what killed
//! agents left elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;
use rand::Rng;

use crate::removal::remove_tree;

/// Suffix of trash directories.
const SUFFIX: &str = ".trash";
/// Priority of the thread, below that of jobs.
const NICENESS: i32 = 10;
/// Maximum number of attempts to move a leftover, because the thread may remove the trash directory first.
const MAX_ATTEMPTS: u32 = 3;

/// Removes leftovers in the background.
#[derive(Debug, Default)]
pub struct Trash {
    worker: Mutex<Option<Worker>>,
}

#[derive(Debug)]
struct Worker {
    /// Directories to remove, possibly with duplicates.
    queue: Sender<PathBuf>,
    thread: JoinHandle<()>,
}

impl Trash {
    /// Moves or removes the file or directory at `path`, if it exists.
    ///
    /// # Errors
    /// If it can neither be moved nor removed.
    pub(crate) fn discard(&self, path: &Path) -> io::Result<()> {
        self.discard_from(path, path)
    }

    /// Moves `path`, which is `base` or inside `base`, to `<base>.trash`, or removes it.
    ///
    /// # Errors
    /// As for [`Trash::discard`].
    pub(crate) fn discard_from(&self, path: &Path, base: &Path) -> io::Result<()> {
        if matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        let trash_dir = trash_dir(base);
        for _ in 0..MAX_ATTEMPTS {
            let moved = match fs::create_dir(&trash_dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => break,
                // A job may have created a symbolic link here.
                Err(_) if !fs::symlink_metadata(&trash_dir).is_ok_and(|found| found.is_dir()) => {
                    fs::remove_file(&trash_dir).and(Err(io::ErrorKind::NotFound.into()))
                }
                _ => fs::rename(path, trash_dir.join(random_name())),
            };
            match moved {
                Ok(()) => return self.remove_later(trash_dir),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // A mount point, for example, cannot be moved.
                Err(_) => break,
            }
        }
        remove_tree(path)
    }

    /// Removes the leftovers of a killed agent from `<base>.trash`. Errors are only logged.
    ///
    /// A directory with other content is kept, because it may be the workspace of a project whose name ends in `.trash`.
    pub(crate) fn resume(&self, base: &Path) {
        let trash_dir = trash_dir(base);
        let resumed = match has_only_leftovers(&trash_dir) {
            Ok(true) => self.remove_later(trash_dir.clone()),
            Ok(false) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = resumed {
            tracing::warn!(%error, path = %trash_dir.display(), "failed to remove the old workspaces of a killed agent");
        }
    }

    /// Removes the leftovers of killed agents from all trash directories in `dir`.
    ///
    /// # Errors
    /// If `dir` cannot be read, or if a leftover can neither be queued nor removed.
    pub(crate) fn remove_leftovers(&self, dir: &Path) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().as_bytes().ends_with(SUFFIX.as_bytes()) && entry.file_type()?.is_dir() {
                self.remove_later(entry.path())?;
            }
        }
        Ok(())
    }

    /// Queues the directory for the thread. Without the thread, removes it immediately.
    fn remove_later(&self, trash_dir: PathBuf) -> io::Result<()> {
        let mut worker = self.worker.lock();
        if worker.is_none() {
            let (queue, queued) = channel();
            let thread = Builder::new().name("trash".to_owned()).spawn(move || remove_all(&queued));
            *worker = thread.ok().map(|thread| Worker { queue, thread });
        }
        match worker.as_ref().map(|worker| worker.queue.send(trash_dir.clone())) {
            Some(Ok(())) => Ok(()),
            _ => remove_tree(&trash_dir),
        }
    }

    /// Blocks the calling thread until all leftovers are removed.
    pub fn close(&self) {
        let worker = self.worker.lock().take();
        if let Some(Worker { queue, thread }) = worker {
            drop(queue);
            if thread.join().is_err() {
                tracing::error!("the thread that removes old workspaces panicked");
            }
        }
    }
}

fn trash_dir(base: &Path) -> PathBuf {
    let mut trash_dir = OsString::from(base);
    trash_dir.push(SUFFIX);
    trash_dir.into()
}

/// Returns the name of a leftover in a trash directory.
fn random_name() -> String {
    format!("{:016x}", rand::rng().random::<u64>())
}

fn is_random_name(name: &OsStr) -> bool {
    name.len() == 16 && name.as_bytes().iter().all(u8::is_ascii_hexdigit)
}

/// Returns whether a directory contains leftovers and nothing else.
fn has_only_leftovers(trash_dir: &Path) -> io::Result<bool> {
    // A job may have created a symbolic link here.
    if !fs::symlink_metadata(trash_dir)?.is_dir() {
        return Ok(false);
    }
    let names: Vec<_> = fs::read_dir(trash_dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    Ok(!names.is_empty() && names.iter().all(|name| is_random_name(name)))
}

fn remove_all(queued: &Receiver<PathBuf>) {
    // On Linux, this affects only the calling thread.
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "failed to lower the priority of the thread that removes old workspaces");
    }
    for trash_dir in queued {
        match remove_tree(&trash_dir) {
            // Another leftover was moved here meanwhile, and is queued.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => tracing::warn!(%error, path = %trash_dir.display(), "failed to remove an old workspace"),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_is_moved_at_once_and_removed_later() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("project");
        let trash = Trash::default();
        trash.discard(&base).unwrap();
        for round in 0..20 {
            fs::create_dir_all(base.join("a/b")).unwrap();
            fs::write(base.join("a/b/file"), round.to_string()).unwrap();
            trash.discard(&base).unwrap();
            assert!(!base.exists());
        }
        fs::write(&base, "a file").unwrap();
        trash.discard(&base).unwrap();
        trash.close();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn symlink_in_place_of_trash_dir_is_not_followed() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let base = dir.path().join("project");
        fs::create_dir(&base).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("project.trash")).unwrap();
        let trash = Trash::default();
        trash.discard(&base).unwrap();
        trash.close();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn leftovers_of_killed_agent_are_removed_with_the_next_leftover() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("project");
        fs::create_dir_all(dir.path().join("project.trash/old/tree")).unwrap();
        fs::create_dir(&base).unwrap();
        let trash = Trash::default();
        trash.discard(&base).unwrap();
        trash.close();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn leftovers_of_killed_agent_are_removed_without_another_leftover() {
        let dir = tempfile::tempdir().unwrap();
        for kept in ["other.trash/.git", "other.trash/0123456789abcdef", "elsewhere/0123456789abcdef", "project/src"] {
            fs::create_dir_all(dir.path().join(kept)).unwrap();
        }
        fs::create_dir_all(dir.path().join("project.trash").join(random_name()).join("tree")).unwrap();
        std::os::unix::fs::symlink("elsewhere", dir.path().join("linked.trash")).unwrap();
        let trash = Trash::default();
        for base in ["project", "other", "linked", "none"] {
            trash.resume(&dir.path().join(base));
        }
        trash.close();
        let mut kept: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        kept.sort();
        assert_eq!(kept, ["elsewhere", "linked.trash", "other.trash", "project"]);
        assert!(dir.path().join("elsewhere/0123456789abcdef").exists());
    }
}
