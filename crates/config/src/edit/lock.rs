//! The two locks of a configuration file: one for writers, and one for a running manager (check C030).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::EditError;

/// Time between two attempts to get a lock. The system call that waits for a lock has no timeout, so it is not used.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A lock, which is released when it is dropped or its process ends.
#[derive(Debug)]
pub struct ConfigLock {
    _file: File,
}

/// Locks the configuration for a running manager, so that no second manager uses it.
///
/// If the directory is not writable, the file itself is locked. That suffices, because no save can replace a file
/// of such a directory by an unlocked one.
///
/// If the directory is missing, or if it is not writable and the file is missing, the returned lock has no effect.
///
/// # Errors
/// [`EditError::Locked`] at once if another process holds the lock. [`EditError::Io`] for any other error.
pub fn lock_for_manager(path: &Path) -> Result<ConfigLock, EditError> {
    let path = super::target(path)?;
    match open(&beside(&path, "run")) {
        Ok(file) => acquire(file, &path, Duration::ZERO),
        Err(error) if is_unwritable(&error) && path.exists() => {
            let file =
                File::open(&path).map_err(|source| EditError::Io { doing: "read", path: path.clone(), source })?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => Err(EditError::Locked { path, pid: None }),
                // On a file system without locks, a second manager cannot be detected.
                Ok(()) | Err(TryLockError::Error(_)) => Ok(ConfigLock { _file: file }),
            }
        }
        Err(error) if is_unwritable(&error) || error.kind() == std::io::ErrorKind::NotFound => no_lock(&path, error),
        Err(source) => Err(EditError::Io { doing: "lock", path, source }),
    }
}

/// Returns a lock without effect, for a missing configuration file beside which no lock file could be created.
fn no_lock(path: &Path, source: std::io::Error) -> Result<ConfigLock, EditError> {
    let null = File::open("/dev/null");
    null.map(|file| ConfigLock { _file: file }).map_err(|_| EditError::Io {
        doing: "lock",
        path: path.to_owned(),
        source,
    })
}

pub(super) fn lock_for_writer(path: &Path, wait: Duration) -> Result<ConfigLock, EditError> {
    let lock = beside(path, "lock");
    super::save::create_directory(path)?;
    let file =
        open(&lock).map_err(|source| EditError::Io { doing: "write a file beside", path: path.to_owned(), source })?;
    acquire(file, path, wait)
}

fn is_unwritable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied | ErrorKind::StorageFull)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{end}"))
}

fn open(path: &Path) -> std::io::Result<File> {
    // Do not truncate the file, because it may contain the ID of the process that holds the lock.
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn acquire(mut file: File, path: &Path, wait: Duration) -> Result<ConfigLock, EditError> {
    let deadline = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL_INTERVAL),
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = (&file).take(32).read_to_string(&mut text);
                return Err(EditError::Locked { path: path.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(source)) => {
                return Err(EditError::Io { doing: "lock", path: path.to_owned(), source });
            }
        }
    }
    // The process ID is only for messages, so the lock is valid without it.
    let pid = format!("{}\n", std::process::id());
    let _ = file.rewind().and_then(|()| file.set_len(0)).and_then(|()| file.write_all(pid.as_bytes()));
    Ok(ConfigLock { _file: file })
}
