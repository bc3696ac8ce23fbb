//! The directory for a plugin's socket.
//! Each process has one in the [runtime directory](super::runtime_directory).
//!
//! The directory is removed when its process ends. If a host was killed, the next one removes its directory, which no process
//! has locked any more.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use tempfile::TempDir;

use super::runtime_directory::{NoRuntimeDirectory, runtime_directory};

const PREFIX: &str = "p-";
/// Lock file of a directory, held by the host that created it.
const LOCK: &str = ".lock";
/// Age up to which a directory may not have its lock yet.
const MIN_STALE_AGE: Duration = Duration::from_secs(60);
/// Maximum number of directories of dead hosts that one start removes.
const MAX_STALE_REMOVED: usize = 1000;
/// Length of `p-XXXXXX/plugin4294967295`: go-plugin appends a random number to the socket's name.
const NAME_BYTES: usize = 25;

/// Reason why there is no directory for a plugin's socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// No directory is private.
    #[error(transparent)]
    Runtime(#[from] NoRuntimeDirectory),
    /// The directory for one plugin cannot be created.
    #[error("failed to create a directory in {}", path.display())]
    Create {
        /// The runtime directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SocketsError {
    pub(super) fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Runtime(error) => error.raw_os_error(),
            Self::Create { source, .. } => source.raw_os_error(),
        }
    }
}

/// A directory of this host for one socket. Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Sockets {
    directory: TempDir,
    _lock: File,
}

impl Sockets {
    pub(crate) fn new() -> Result<Self, SocketsError> {
        static ONCE: Once = Once::new();
        let runtime = runtime_directory(NAME_BYTES)?;
        ONCE.call_once(|| remove_stale(&runtime));
        Self::within(&runtime).map_err(|source| SocketsError::Create { path: runtime, source })
    }

    fn within(runtime: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let directory = builder.prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir_in(runtime)?;
        let lock = File::create(directory.path().join(LOCK)).and_then(|lock| lock.lock().map(|()| lock));
        match lock {
            Ok(lock) => Ok(Self { directory, _lock: lock }),
            Err(error) => {
                // Without its lock no host would remove it later. If no file can be opened, `remove_dir` still works.
                let _ = std::fs::remove_dir(directory.path());
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes directories of dead hosts from the runtime directory, which only this user can write.
fn remove_stale(runtime: &Path) {
    let Ok(entries) = std::fs::read_dir(runtime) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for left in ours.map(|entry| entry.path()).filter(|path| is_stale(path)).take(MAX_STALE_REMOVED) {
        tracing::debug!(directory = %left.display(), "directory of a dead host removed");
        // The next host retries what cannot be removed.
        let _ = std::fs::remove_dir_all(left);
    }
}

fn is_stale(directory: &Path) -> bool {
    let Ok(found) = std::fs::symlink_metadata(directory) else { return false };
    let is_old = found.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age >= MIN_STALE_AGE);
    if !found.is_dir() || !is_old {
        return false;
    }
    // `open_in` neither follows a link nor waits for a FIFO that is there instead of the lock.
    muster_files::open_in(directory, LOCK).is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_old(path: &Path) {
        let at = std::time::SystemTime::now() - Duration::from_secs(3600);
        File::open(path).unwrap().set_modified(at).unwrap();
    }

    #[test]
    fn directories_of_dead_hosts_are_removed() {
        let runtime = tempfile::tempdir().unwrap();
        let [lives, mut killed, young] = std::array::from_fn(|_| Sockets::within(runtime.path()).unwrap());
        let others = ["p-empty", "p-fifo", "p-link", "other"].map(|name| runtime.path().join(name));
        for path in &others {
            std::fs::create_dir(path).unwrap();
        }
        let made = std::process::Command::new("mkfifo").arg(others[1].join(LOCK)).status().unwrap();
        assert!(made.success());
        std::fs::write(others[3].join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(others[3].join(LOCK), others[2].join(LOCK)).unwrap();
        std::fs::write(killed.path().join("plugin1"), "").unwrap();
        for path in others.iter().map(PathBuf::as_path).chain([lives.path(), killed.path()]) {
            make_old(path);
        }
        let left = killed.path().to_owned();
        // SIGKILL releases the lock and removes nothing.
        killed.directory.disable_cleanup(true);
        drop(killed);
        // A process that another test is starting may hold a copy of the lock for a moment.
        let since = std::time::Instant::now();
        while left.exists() && since.elapsed() < MIN_STALE_AGE {
            remove_stale(runtime.path());
        }
        assert!(!left.exists());
        assert!(lives.path().exists() && young.path().exists() && others.iter().all(|path| path.exists()));
    }
}
