//! Locks of the directory of plugins: one process at a time changes it, and one downloads each archive.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::error::InstallError;

/// Maximum time to wait for another process that changes the directory.
/// That process does not download meanwhile.
const LIMIT: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(50);

/// An exclusive file lock. The system releases it when the process ends.
#[derive(Debug)]
pub(super) struct FileLock(File);

impl FileLock {
    /// Locks the directory of plugins.
    pub(super) async fn of_folder(folder: &Path) -> Result<Self, InstallError> {
        std::fs::create_dir_all(folder).map_err(|source| failed(folder, source))?;
        Self::take(&folder.join(".lock"), LIMIT).await
    }

    /// Locks a file that the lock's holder may delete. A lock of a deleted file is taken again.
    pub(super) async fn take_where_it_is(path: &Path, limit: Duration) -> Result<Self, InstallError> {
        loop {
            let lock = Self::take(path, limit).await?;
            let held = lock.0.metadata().map_err(|source| failed(path, source))?;
            if path.metadata().is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino())) {
                return Ok(lock);
            }
        }
    }

    async fn take(path: &Path, limit: Duration) -> Result<Self, InstallError> {
        let path: PathBuf = path.to_owned();
        let file = File::options().create(true).append(true).open(&path).map_err(|source| failed(&path, source))?;
        let started = tokio::time::Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK && error != rustix::io::Errno::INTR {
                return Err(failed(&path, error.into()));
            }
            if started.elapsed() >= limit {
                return Err(InstallError::Busy { path, seconds: limit.as_secs() });
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Self(file))
    }
}

fn failed(path: &Path, source: std::io::Error) -> InstallError {
    InstallError::Folder { path: path.to_owned(), what: "made", source }
}
