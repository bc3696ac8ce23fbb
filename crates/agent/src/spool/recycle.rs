//! Directories of jobs that are over, emptied, for jobs that come.
//!
//! Making and removing files is most of what keeping a small job costs, and the more of it is done, the more each one
//! costs: ext4 looks past every number of a file that was removed in the last minutes before it makes a new one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::FILES;

/// How many are kept.
const KEPT: usize = 64;

/// The directories, below one of their own.
#[derive(Debug)]
pub(super) struct Recycler {
    root: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PathBuf>,
    made: u64,
}

impl Recycler {
    /// Starts with none: those of an agent before this one may not be empty.
    pub(super) fn open(root: PathBuf) -> io::Result<Self> {
        match muster_files::remove_tree(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir(&root)?;
        Ok(Self { root, state: Mutex::default() })
    }

    /// Puts a directory with empty files at `dir`, if there is one and nothing is there.
    pub(super) fn take(&self, dir: &Path) -> bool {
        let Some(free) = self.state.lock().free.pop() else { return false };
        if fs::rename(&free, dir).is_ok() {
            return true;
        }
        self.state.lock().free.push(free);
        false
    }

    /// Takes the directory away, at once. It is no error if there is none.
    pub(super) fn give(&self, dir: &Path) -> io::Result<()> {
        let place = {
            let mut state = self.state.lock();
            state.made += 1;
            self.root.join(state.made.to_string())
        };
        match fs::rename(dir, &place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            renamed => renamed?,
        }
        // Its secrets do not wait for the next job. Whatever the job put there instead is removed with the directory.
        let is_directory = fs::symlink_metadata(&place)?.is_dir();
        let has_room = self.state.lock().free.len() < KEPT;
        if is_directory && has_room && FILES.iter().all(|name| empty(&place.join(name)).is_ok()) {
            self.state.lock().free.push(place);
            return Ok(());
        }
        muster_files::remove_tree(&place)
    }
}

/// Empties a regular file that has no other name. The job may have put anything else there: it is left as it is, and not
/// waited for.
fn empty(path: &Path) -> io::Result<()> {
    let file = muster_files::open_with(File::options().write(true), path)?;
    if file.metadata()?.nlink() != 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has another name"));
    }
    file.set_len(0)
}
