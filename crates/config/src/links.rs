//! Resolves symbolic links.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(super) fn target(path: &Path) -> io::Result<PathBuf> {
    const MAX_LINKS: usize = 40;
    let mut path = std::path::absolute(path)?;
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            // A link may point to a file that does not exist yet.
            Ok(next) => path = path.parent().unwrap_or(Path::new("/")).join(next),
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Judges by permissions whether a save may replace the file.
pub(super) fn can_replace(path: &Path) -> bool {
    let Ok(path) = target(path) else { return false };
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

pub(super) fn is_symlink_loop(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::LOOP)
}
