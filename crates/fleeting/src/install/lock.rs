//! Locks of the directory of plugins. Only one process at a time changes the directory or downloads the same archive.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::error::InstallError;

/// Maximum time to wait for another process that changes the directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An exclusive file lock. Released when dropped or when the process ends.
#[derive(Debug)]
pub(super) struct FlockGuard(File);

impl FlockGuard {
    pub(super) async fn lock_directory(directory: &Path) -> Result<Self, InstallError> {
        std::fs::create_dir_all(directory).map_err(|source| failed(directory, source))?;
        Self::lock(&directory.join(".lock"), LOCK_TIMEOUT).await
    }

    /// Locks a file that a holder of the lock may delete.
    /// If the file does not exist or is deleted during the wait, creates and locks a new one.
    pub(super) async fn lock_deletable(path: &Path, timeout: Duration) -> Result<Self, InstallError> {
        loop {
            let lock = Self::lock(path, timeout).await?;
            let locked = lock.0.metadata().map_err(|source| failed(path, source))?;
            if path.metadata().is_ok_and(|current| (current.dev(), current.ino()) == (locked.dev(), locked.ino())) {
                return Ok(lock);
            }
        }
    }

    async fn lock(path: &Path, timeout: Duration) -> Result<Self, InstallError> {
        let path: PathBuf = path.to_owned();
        let file = File::options().create(true).append(true).open(&path).map_err(|source| failed(&path, source))?;
        let started = tokio::time::Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK && error != rustix::io::Errno::INTR {
                return Err(failed(&path, error.into()));
            }
            if started.elapsed() >= timeout {
                return Err(InstallError::Busy { path, seconds: timeout.as_secs() });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(Self(file))
    }
}

fn failed(path: &Path, source: std::io::Error) -> InstallError {
    InstallError::Directory { path: path.to_owned(), operation: "lock", source }
}
