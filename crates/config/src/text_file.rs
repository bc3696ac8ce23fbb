//! Reads the text of a configuration file within a limit.

use std::io::Read as _;
use std::path::Path;

/// Maximum size of a configuration file in bytes.
pub const MAX_FILE_BYTES: usize = 10 * 1024 * 1024;

/// Returns the text of the file, for callers that report errors themselves.
pub(super) fn read(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, ErrorKind};
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
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
