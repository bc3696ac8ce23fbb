//! Emptied directories of finished jobs, which later jobs reuse.
//!
//! Creating and deleting files would be most of the cost of a small job. On ext4, recent deletions also slow down the creation of files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::{FILES, TEMP_DIR};

/// Maximum number of cached directories.
const MAX_CACHED_DIRS: usize = 64;

/// Cached directories, which are stored in a separate directory.
#[derive(Debug)]
pub(super) struct Recycler {
    root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PathBuf>,
    /// Number of directories that were moved to `root`, including failed moves. The name of each directory is its number.
    moved: u64,
}

impl Recycler {
    /// Opens the recycler without directories. Directories of an earlier agent may not be empty, so they are deleted.
    pub(super) fn open(root: PathBuf) -> io::Result<Self> {
        match muster_files::remove_tree(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&root)?;
        Ok(Self { root, state: Mutex::default() })
    }

    /// Moves a cached directory with empty files to `dir`. Returns false if no directory is cached or the move fails.
    pub(super) fn take(&self, dir: &Path) -> bool {
        let Some(free) = self.state.lock().free.pop() else { return false };
        if fs::rename(&free, dir).is_ok() {
            return true;
        }
        self.state.lock().free.push(free);
        false
    }

    /// Removes the directory of a finished job: empties and caches it, or deletes it. Succeeds if it does not exist.
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
        // Empty the files now, so that secrets do not remain until the next job. If the job replaced a file with anything but a regular
        // file with one name, delete the directory.
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

/// Empties a regular file without other hard links. Returns an error for anything else, without blocking.
fn empty(path: &Path) -> io::Result<()> {
    let file = muster_files::open_with(File::options().write(true), path)?;
    if file.metadata()?.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has other hard links"));
    }
    file.set_len(0)
}
