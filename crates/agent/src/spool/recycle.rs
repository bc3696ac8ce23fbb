//! Emptied directories of finished jobs, which later jobs reuse.
//!
//! Creating and deleting files is most of the cost of a small job, and it becomes more expensive the more often it happens: before ext4
//! creates a file, it skips the inode of every file that was deleted in the last minutes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::FILES;

/// Maximum number of directories that are kept.
const MAX_CACHED_DIRS: usize = 64;

/// Directories for reuse, in a separate directory.
#[derive(Debug)]
pub(super) struct Recycler {
    root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PathBuf>,
    created: u64,
}

impl Recycler {
    /// Opens the recycler without directories. Those of an earlier agent may not be empty and are deleted.
    pub(super) fn open(root: PathBuf) -> io::Result<Self> {
        match muster_files::remove_tree(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&root)?;
        Ok(Self { root, state: Mutex::default() })
    }

    /// Moves a directory with empty files to `dir`. Returns whether there was one, and `dir` did not exist.
    pub(super) fn take(&self, dir: &Path) -> bool {
        let Some(free) = self.state.lock().free.pop() else { return false };
        if fs::rename(&free, dir).is_ok() {
            return true;
        }
        self.state.lock().free.push(free);
        false
    }

    /// Takes a directory away from its job immediately. Succeeds if it does not exist.
    pub(super) fn put(&self, dir: &Path) -> io::Result<()> {
        let target = {
            let mut state = self.state.lock();
            state.created += 1;
            self.root.join(state.created.to_string())
        };
        match fs::rename(dir, &target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        // Secrets are deleted now, and not when the next job comes. If the job replaced a file by anything else, the directory is deleted.
        let is_directory = fs::symlink_metadata(&target)?.is_dir();
        let is_below_limit = self.state.lock().free.len() < MAX_CACHED_DIRS;
        if is_directory && is_below_limit && FILES.iter().all(|name| empty(&target.join(name)).is_ok()) {
            self.state.lock().free.push(target);
            return Ok(());
        }
        muster_files::remove_tree(&target)
    }
}

/// Empties a regular file without other hard links.
///
/// The job may have put anything else in its place, which is not changed, and never blocks this process.
fn empty(path: &Path) -> io::Result<()> {
    let file = muster_files::open_with(File::options().write(true), path)?;
    if file.metadata()?.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has other hard links"));
    }
    file.set_len(0)
}
