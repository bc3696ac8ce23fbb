//! Decodes files: size limit, encoding, byte order mark.

use crate::diagnostic::Diagnostic;
use crate::limits::Limits;

/// Returns the text of a file without a byte order mark.
///
/// # Errors
/// Returns a diagnostic that names the file if it is too large or not valid UTF-8.
pub fn decode<'a>(name: &str, bytes: &'a [u8], limits: &Limits) -> Result<&'a str, Box<Diagnostic>> {
    if bytes.len() > limits.file_bytes {
        let mut problem = too_large(bytes.len(), limits);
        problem.message = format!("`{name}`: {}", problem.message);
        return Err(Box::new(problem));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = valid.iter().filter(|byte| **byte == b'\n').count() + 1;
            let message = format!(
                "`{name}` is not UTF-8 text: the byte at offset {} (line {line}) is invalid",
                error.valid_up_to()
            );
            let help = match bytes {
                [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is UTF-16: save it as UTF-8",
                _ => "save it as UTF-8; a configuration is a text file",
            };
            Err(Box::new(Diagnostic::error(None, message).help(help)))
        }
    }
}

pub(super) fn too_large(length: usize, limits: &Limits) -> Diagnostic {
    Diagnostic::error(None, format!("the file is too large: {length} bytes (maximum is {})", limits.file_bytes))
        .help("split it with `include`, and keep data out of the configuration")
}
