//! Reading files that a user or a repository names, which may be anything: a named pipe, a device, far too large.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;

use muster_pipeline::limits::Limits;

/// The bytes of a regular file, but at most one more than a file of a pipeline may have: who takes them sees that it is too
/// large.
///
/// A pipe that the shell hands over (`--var-file <(command)`) is read too: it has somebody who writes to it.
///
/// # Errors
/// What the system says; [`io::ErrorKind::InvalidInput`] for what is no regular file, which is not opened.
pub(super) fn start_of_file(path: &Path) -> io::Result<Vec<u8>> {
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() && !is_handed_over(path, &meta) {
        let text = "it is no regular file but a named pipe, a socket or a device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(limit() + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// As [`start_of_file`], and for a file that is too large or is not UTF-8.
pub(super) fn whole_text(path: &Path) -> io::Result<String> {
    let bytes = start_of_file(path)?;
    if bytes.len() as u64 > limit() {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {} MiB", limit() >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

fn limit() -> u64 {
    Limits::default().file_bytes as u64
}

#[cfg(unix)]
fn is_handed_over(path: &Path, meta: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let opened = ["/dev/fd", "/proc/self/fd", "/dev/stdin"].iter().any(|folder| path.starts_with(folder));
    opened && meta.file_type().is_fifo()
}

#[cfg(not(unix))]
fn is_handed_over(_path: &Path, _meta: &Metadata) -> bool {
    false
}
