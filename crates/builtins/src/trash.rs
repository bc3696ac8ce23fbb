//! Moves leftovers of earlier jobs out of the way of a new job, and removes them in the background.
//!
//! Removing a directory takes longer than creating one, and a job need not wait for it. Leftovers are moved to `<path>.trash`, which is
//! on the same file system. A thread of low priority removes them; [`Trash::close`] waits for it. Leftovers of an agent that was killed
//! are removed together with the next ones of the same directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;
use rand::Rng;

use crate::removal::remove_tree;

/// Priority of the thread: below that of jobs, but high enough to make progress.
const NICE: i32 = 10;
/// Maximum number of attempts to move a leftover. The thread may remove the trash directory before a move.
const TRIES: u32 = 3;

/// Removes leftovers in the background.
#[derive(Debug, Default)]
pub struct Trash {
    worker: Mutex<Option<Worker>>,
}

#[derive(Debug)]
struct Worker {
    /// Directories to remove. There are never more than there are workspaces.
    work: Sender<PathBuf>,
    thread: JoinHandle<()>,
}

impl Trash {
    /// Moves or removes the file or directory at `path`, if it exists.
    ///
    /// # Errors
    /// It can neither be moved nor removed.
    pub(crate) fn discard(&self, path: &Path) -> io::Result<()> {
        self.discard_from(path, path)
    }

    /// Moves or removes `path`, which is `place` itself or inside it. It is moved to `<place>.trash`.
    ///
    /// # Errors
    /// As for [`Trash::discard`].
    pub(crate) fn discard_from(&self, path: &Path, place: &Path) -> io::Result<()> {
        if matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        let mut bin = OsString::from(place);
        bin.push(".trash");
        let bin = PathBuf::from(bin);
        for _ in 0..TRIES {
            let moved = match fs::create_dir(&bin) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => break,
                // A job may have created a symbolic link here, which would move the leftovers elsewhere.
                Err(_) if !fs::symlink_metadata(&bin).is_ok_and(|found| found.is_dir()) => {
                    fs::remove_file(&bin).and(Err(io::ErrorKind::NotFound.into()))
                }
                _ => fs::rename(path, bin.join(format!("{:016x}", rand::rng().random::<u64>()))),
            };
            match moved {
                Ok(()) => return self.empty(bin),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // A mount point, for example, cannot be moved. Then the job has to wait for the removal.
                Err(_) => break,
            }
        }
        remove_tree(path)
    }

    /// Lets the thread remove the directory. If the thread cannot be started, removes it in the calling thread.
    fn empty(&self, bin: PathBuf) -> io::Result<()> {
        let mut worker = self.worker.lock();
        if worker.is_none() {
            let (work, waiting) = channel();
            let thread = Builder::new().name("trash".to_owned()).spawn(move || remove_all(&waiting));
            *worker = thread.ok().map(|thread| Worker { work, thread });
        }
        match worker.as_ref().map(|worker| worker.work.send(bin.clone())) {
            Some(Ok(())) => Ok(()),
            _ => remove_tree(&bin),
        }
    }

    /// Waits until everything is removed. Blocks.
    pub fn close(&self) {
        let worker = self.worker.lock().take();
        if let Some(Worker { work, thread }) = worker {
            drop(work);
            if thread.join().is_err() {
                tracing::error!("a defect ended the removal of old workspaces");
            }
        }
    }
}

fn remove_all(waiting: &Receiver<PathBuf>) {
    // On Linux this is the priority of the calling thread only.
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "old workspaces are removed at the usual priority");
    }
    for bin in waiting {
        match remove_tree(&bin) {
            // Another leftover was moved here meanwhile, and is next in the queue.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            Err(error) => tracing::warn!(%error, path = %bin.display(), "an old workspace cannot be removed"),
            Ok(()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_makes_room_at_once_and_is_gone_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("project");
        let trash = Trash::default();
        trash.discard(&place).unwrap();
        for round in 0..20 {
            fs::create_dir_all(place.join("a/b")).unwrap();
            fs::write(place.join("a/b/file"), round.to_string()).unwrap();
            trash.discard(&place).unwrap();
            assert!(!place.exists());
        }
        fs::write(&place, "a file").unwrap();
        trash.discard(&place).unwrap();
        trash.close();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_beside_a_leftover_does_not_lead_it_elsewhere() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = dir.path().join("project");
        fs::create_dir(&place).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("project.trash")).unwrap();
        let trash = Trash::default();
        trash.discard(&place).unwrap();
        trash.close();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_agent_did_not_remove_goes_with_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("project");
        fs::create_dir_all(dir.path().join("project.trash/old/tree")).unwrap();
        fs::create_dir(&place).unwrap();
        let trash = Trash::default();
        trash.discard(&place).unwrap();
        trash.close();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
