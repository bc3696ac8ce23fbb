//! Emptied directories of finished jobs, which later jobs reuse.
//!
//! Creating and deleting files would be most of the cost of a small job, and on ext4, deletions slow down creations.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::{FILES, TEMP_DIR};

const MAX_CACHED_DIRS: usize = 64;

#[derive(Debug)]
pub(super) struct Recycler {
    root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PathBuf>,
    /// Number of attempts to move a directory to `root`. Each moved directory gets this number as its name.
    moved: u64,
}

impl Recycler {
    /// Opens the recycler, and deletes directories of an earlier agent, which may not be empty.
    pub(super) fn open(root: PathBuf) -> io::Result<Self> {
        match muster_files::remove_tree(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&root)?;
        Ok(Self { root, state: Mutex::default() })
    }

    /// Moves a cached directory with empty files to `dir`. Returns false if none is cached or the move fails.
    pub(super) fn take(&self, dir: &Path) -> bool {
        let Some(free) = self.state.lock().free.pop() else { return false };
        if fs::rename(&free, dir).is_ok() {
            return true;
        }
        self.state.lock().free.push(free);
        false
    }

    /// Empties and caches a finished job's directory, or deletes the directory. Succeeds if it does not exist.
    pub(super) fn put(&self, dir: &Path) -> io::Result<()> {
        let target = {
            let mut state = self.state.lock();
            state.moved += 1;
            self.root.join(state.moved.to_string())
        };
        match fs::rename(dir, &target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        // The files are emptied now, so that secrets do not remain. If that is not possible, the directory is deleted.
        let is_directory = fs::symlink_metadata(&target)?.is_dir();
        let is_below_limit = self.state.lock().free.len() < MAX_CACHED_DIRS;
        let has_temp_dir = fs::symlink_metadata(target.join(TEMP_DIR)).is_ok();
        if is_directory && is_below_limit && !has_temp_dir && FILES.iter().all(|name| empty(&target.join(name)).is_ok())
        {
            self.state.lock().free.push(target);
            return Ok(());
        }
        muster_files::remove_tree(&target)
    }
}

/// Empties a regular file without other hard links. Fails for anything else, without blocking.
fn empty(path: &Path) -> io::Result<()> {
    let file = muster_files::open_with(File::options().write(true), path)?;
    if file.metadata()?.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has other hard links"));
    }
    file.set_len(0)
}
