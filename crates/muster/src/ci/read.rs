//! Reads files that a user or a repository names. They may also be pipes, devices or huge files.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::path::Path;

use muster_pipeline::limits::Limits;

/// Reads a regular file, or a pipe that the shell passes (`--var-file <(command)`).
///
/// Reads at most one byte more than the maximum size of a pipeline's file, so that the caller can detect files that are
/// too large.
///
/// # Errors
/// The system's error, [`io::ErrorKind::IsADirectory`] for a directory, or [`io::ErrorKind::InvalidInput`] for a
/// socket, a device or another named pipe.
pub(super) fn read_start_of_file(path: &Path) -> io::Result<Vec<u8>> {
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() && !is_passed_pipe(path, &meta) {
        let text = "not a regular file but a named pipe, a socket or a device";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(max_file_bytes() + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the text of a regular file, or of a pipe that the shell passes.
///
/// # Errors
/// Those of [`read_start_of_file`], and an error if the file is too large or not UTF-8.
pub(super) fn read_text_file(path: &Path) -> io::Result<String> {
    let bytes = read_start_of_file(path)?;
    if bytes.len() as u64 > max_file_bytes() {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {} MiB", max_file_bytes() >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text"))
}

fn max_file_bytes() -> u64 {
    Limits::default().file_bytes as u64
}

#[cfg(unix)]
fn is_passed_pipe(path: &Path, meta: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let is_open = ["/dev/fd", "/proc/self/fd", "/dev/stdin"].iter().any(|directory| path.starts_with(directory));
    is_open && meta.file_type().is_fifo()
}

#[cfg(not(unix))]
fn is_passed_pipe(_path: &Path, _meta: &Metadata) -> bool {
    false
}
