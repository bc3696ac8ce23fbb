//! Reads the text of a configuration file within a limit.

use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};

/// Maximum size of a configuration file in bytes.
pub const MAX_FILE_BYTES: usize = 10 * 1024 * 1024;

pub(super) fn read(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind};
    // Without `NONBLOCK`, opening a FIFO to which no program writes would block.
    let file = std::fs::File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path)?;
    fcntl_setfl(&file, OFlags::empty())?;
    let file_type = file.metadata()?.file_type();
    if file_type.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.is_empty() && file_type.is_fifo() {
        return Err(Error::new(ErrorKind::UnexpectedEof, "it is a FIFO to which no program writes"));
    }
    if bytes.len() > MAX_FILE_BYTES {
        let message = format!("it is larger than {} MiB, the limit for a configuration", MAX_FILE_BYTES >> 20);
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        Error::new(ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}
