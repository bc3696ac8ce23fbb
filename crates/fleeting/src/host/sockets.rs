//! The directory for the socket of a plugin's process, in the [runtime directory](super::runtime_directory).
//!
//! The directory is removed when the process ends. If the host was killed, a later host removes the directory.

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
/// Minimum age of a directory before it can count as left by a killed host.
///
/// The host of a newer directory may not have locked it yet.
const MIN_STALE_AGE: Duration = Duration::from_secs(60);
/// Maximum number of directories of killed hosts that one start removes.
const MAX_STALE_REMOVED: usize = 1000;
/// Length of `p-XXXXXX/plugin4294967295`: go-plugin appends a random number to the socket's name.
const NAME_BYTES: usize = 25;

/// Reason why no directory for a plugin's socket was created.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// There is no private directory for sockets.
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

/// Directory for the socket of one plugin process. Deleted when this value is dropped.
#[derive(Debug)]
pub(crate) struct SocketDirectory {
    directory: TempDir,
    _lock: File,
}

impl SocketDirectory {
    pub(crate) fn new() -> Result<Self, SocketsError> {
        static ONCE: Once = Once::new();
        let runtime = runtime_directory(NAME_BYTES)?;
        ONCE.call_once(|| remove_stale(&runtime));
        Self::create_in(&runtime).map_err(|source| SocketsError::Create { path: runtime, source })
    }

    fn create_in(runtime: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let directory = builder.prefix(PREFIX).permissions(Permissions::from_mode(0o700)).tempdir_in(runtime)?;
        let lock = File::create(directory.path().join(LOCK)).and_then(|lock| lock.lock().map(|()| lock));
        match lock {
            Ok(lock) => Ok(Self { directory, _lock: lock }),
            Err(error) => {
                // The directory is removed here, because no later host removes a directory without a lock. Unlike
                // dropping `directory`, these calls work even if this process cannot open more files.
                let _ = std::fs::remove_file(directory.path().join(LOCK));
                let _ = std::fs::remove_dir(directory.path());
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes directories of killed hosts from the runtime directory, which only this user can write.
fn remove_stale(runtime: &Path) {
    let Ok(entries) = std::fs::read_dir(runtime) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for stale in ours.map(|entry| entry.path()).filter(|path| is_stale(path)).take(MAX_STALE_REMOVED) {
        tracing::debug!(directory = %stale.display(), "removing the socket directory of a killed host");
        // A later host retries what cannot be removed.
        let _ = std::fs::remove_dir_all(stale);
    }
}

fn is_stale(directory: &Path) -> bool {
    let Ok(metadata) = std::fs::symlink_metadata(directory) else { return false };
    let is_old = metadata.modified().ok().and_then(|time| time.elapsed().ok()).is_some_and(|age| age >= MIN_STALE_AGE);
    if !metadata.is_dir() || !is_old {
        return false;
    }
    // `open_in` does not follow a link, and does not block on a FIFO with the name of the lock file.
    muster_files::open_in(directory, LOCK).is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_old(path: &Path) {
        let time = std::time::SystemTime::now() - Duration::from_secs(3600);
        File::open(path).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn directories_of_killed_hosts_are_removed() {
        let runtime = tempfile::tempdir().unwrap();
        let [live, mut killed, recent] = std::array::from_fn(|_| SocketDirectory::create_in(runtime.path()).unwrap());
        let others = ["p-empty", "p-fifo", "p-link", "other"].map(|name| runtime.path().join(name));
        for path in &others {
            std::fs::create_dir(path).unwrap();
        }
        let status = std::process::Command::new("mkfifo").arg(others[1].join(LOCK)).status().unwrap();
        assert!(status.success());
        std::fs::write(others[3].join(LOCK), "").unwrap();
        std::os::unix::fs::symlink(others[3].join(LOCK), others[2].join(LOCK)).unwrap();
        std::fs::write(killed.path().join("plugin1"), "").unwrap();
        for path in others.iter().map(PathBuf::as_path).chain([live.path(), killed.path()]) {
            make_old(path);
        }
        let stale = killed.path().to_owned();
        // SIGKILL releases the lock and removes nothing.
        killed.directory.disable_cleanup(true);
        drop(killed);
        // A process that another test is starting may hold a copy of the lock for a moment.
        let start = std::time::Instant::now();
        while stale.exists() && start.elapsed() < MIN_STALE_AGE {
            remove_stale(runtime.path());
        }
        assert!(!stale.exists());
        assert!(live.path().exists() && recent.path().exists() && others.iter().all(|path| path.exists()));
    }
}
