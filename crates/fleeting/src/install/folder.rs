//! One process at a time changes the folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use super::error::InstallError;

/// How long to wait for another process, which may download.
const LIMIT: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(50);

/// Held while the folder is changed; the system gives it back when the process ends.
#[derive(Debug)]
pub(super) struct FolderLock(#[expect(dead_code, reason = "held")] File);

impl FolderLock {
    pub(super) async fn take(folder: &Path) -> Result<Self, InstallError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| InstallError::Folder { path, what: "made", source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let path: PathBuf = folder.join(".lock");
        let file = File::options().create(true).append(true).open(&path).map_err(failed(&path))?;
        let started = tokio::time::Instant::now();
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK && error != rustix::io::Errno::INTR {
                return Err(failed(&path)(error.into()));
            }
            if started.elapsed() >= LIMIT {
                return Err(InstallError::Busy { path, seconds: LIMIT.as_secs() });
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(Self(file))
    }
}
