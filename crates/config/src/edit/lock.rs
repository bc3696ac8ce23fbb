//! The locks of a configuration: that of writers, for a moment, and that of the manager that runs with it (C030).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::EditError;

/// Pause between two looks at a lock: the system has no wait with a limit.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// A lock; given back when it is dropped, or when the process ends in whatever way.
#[derive(Debug)]
pub struct Held {
    _file: File,
}

/// The lock of the manager that runs with this configuration: a second one on the same file must not.
///
/// Where the directory cannot be written, the file itself is locked: nobody replaces it there.
///
/// # Errors
/// [`EditError::Locked`] at once where another process runs with it.
pub fn hold(path: &Path) -> Result<Held, EditError> {
    let path = super::target(path)?;
    match open(&beside(&path, "run")) {
        Ok(file) => take(file, &path, Duration::ZERO),
        Err(error) if is_read_only(&error) && path.exists() => {
            let file =
                File::open(&path).map_err(|source| EditError::Io { doing: "read", path: path.clone(), source })?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => Err(EditError::Locked { path, pid: None }),
                // A file system without locks has no second process to tell either.
                Ok(()) | Err(TryLockError::Error(_)) => Ok(Held { _file: file }),
            }
        }
        Err(error) if is_read_only(&error) || error.kind() == std::io::ErrorKind::NotFound => no_lock(&path, error),
        Err(source) => Err(EditError::Io { doing: "lock", path, source }),
    }
}

/// A file that does not exist, where none can be made, needs no lock: there is nothing to share.
fn no_lock(path: &Path, source: std::io::Error) -> Result<Held, EditError> {
    let nothing = File::open("/dev/null");
    nothing.map(|file| Held { _file: file }).map_err(|_| EditError::Io { doing: "lock", path: path.to_owned(), source })
}

/// The lock of those who change the file.
pub(super) fn writer(path: &Path, wait: Duration) -> Result<Held, EditError> {
    let lock = beside(path, "lock");
    super::save::make_directory(path)?;
    let file = open(&lock).map_err(|source| EditError::Io { doing: "write beside", path: path.to_owned(), source })?;
    take(file, path, wait)
}

fn is_read_only(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied | ErrorKind::StorageFull)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{end}"))
}

fn open(path: &Path) -> std::io::Result<File> {
    // Not truncated: it may be another's, whose number is in it.
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn take(mut file: File, path: &Path, wait: Duration) -> Result<Held, EditError> {
    let until = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK_PAUSE),
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // What cannot be read is not known.
                let _ = (&file).take(32).read_to_string(&mut text);
                return Err(EditError::Locked { path: path.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(source)) => {
                return Err(EditError::Io { doing: "lock", path: path.to_owned(), source });
            }
        }
    }
    // The number is for people; the lock holds without it, also on a full disk.
    let number = format!("{}\n", std::process::id());
    let _ = file.rewind().and_then(|()| file.set_len(0)).and_then(|()| file.write_all(number.as_bytes()));
    Ok(Held { _file: file })
}
