//! The file behind a path that may be a symbolic link.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file itself, if a symbolic link was named.
pub(super) fn target(path: &Path) -> io::Result<PathBuf> {
    const LINKS_MAX: usize = 40;
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            // A link may lead to a file that is still to be made.
            Ok(next) => path = path.parent().unwrap_or(Path::new("/")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Whether a save could replace the file, as far as permissions tell.
pub(super) fn can_replace(path: &Path) -> bool {
    let Ok(path) = target(path) else { return false };
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Whether the system reports symbolic links that lead to each other.
pub(super) fn is_circle(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::LOOP)
}
