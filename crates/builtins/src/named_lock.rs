//! Locks on subdirectories of a private directory that jobs of a machine share.
//!
//! ```text
//! <root>/<name>/       a subdirectory
//! <root>/<name>.lock   its lock file, whose modification time is the time of the last use
//! ```
//!
//! The system releases the locks of an ended process.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tokio::time::Instant;

const SUFFIX: &str = ".lock";
/// Time between two attempts to take a lock. `flock` can only wait by blocking a thread.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Exclusive,
}

pub(crate) fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Takes the lock of a subdirectory. The lock is held until the returned file is dropped.
///
/// # Errors
/// The error of the system, or [`io::ErrorKind::TimedOut`]. There is a timeout, because a job's process can hold the
/// lock indefinitely.
pub(crate) async fn lock(root: &Path, name: &str, kind: Kind, timeout: Duration) -> io::Result<File> {
    let deadline = Instant::now() + timeout;
    loop {
        let (root_path, owned) = (root.to_owned(), name.to_owned());
        let attempt = tokio::task::spawn_blocking(move || try_lock(&root_path, &owned, kind)).await;
        if let Some(lock) = attempt.map_err(io::Error::other)?? {
            return Ok(lock);
        }
        if Instant::now() >= deadline {
            let (path, wait) = (path(root, name), timeout.as_secs());
            let message = format!(
                "another process has held `{}` for {wait} s; run `fuser` to find the process and end it",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Takes the lock of a subdirectory. `None` means that another process holds it, or has removed the lock file.
pub(crate) fn try_lock(root: &Path, name: &str, kind: Kind) -> io::Result<Option<File>> {
    muster_files::private_directory(root)?;
    let lock = file(root, name)?;
    let operation = match kind {
        Kind::Shared => FlockOperation::NonBlockingLockShared,
        Kind::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(&lock, operation) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let found = fs::symlink_metadata(path(root, name));
    let is_same = found.is_ok_and(|found| lock.metadata().is_ok_and(|own| own.ino() == found.ino()));
    Ok(is_same.then_some(lock))
}

/// Opens or creates a lock file.
pub(crate) fn file(root: &Path, name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    Ok(muster_files::open_with(options.create(true).truncate(false).write(true).mode(0o600), &path(root, name))?)
}

/// Removes a lock file. The caller must hold the exclusive lock.
pub(crate) fn remove(root: &Path, name: &str) -> io::Result<()> {
    fs::remove_file(path(root, name))
}

/// Returns the names of subdirectories with the times of their last use.
pub(crate) fn last_uses(root: &Path) -> Vec<(String, SystemTime)> {
    let last_use = |entry: fs::DirEntry| {
        let name = entry.file_name().to_str()?.strip_suffix(SUFFIX).filter(|name| is_valid_name(name))?.to_owned();
        Some((name, entry.metadata().ok()?.modified().ok()?))
    };
    fs::read_dir(root).into_iter().flatten().flatten().filter_map(last_use).collect()
}

fn path(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}{SUFFIX}"))
}
