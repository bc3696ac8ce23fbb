//! Escape sequences and sections of Muster's lines in the trace (docs/spec/job-execution.md, sections 1.7 and 1.8).

use std::time::{SystemTime, UNIX_EPOCH};

/// Starts bold green text, for commands and notices.
pub const BOLD_GREEN: &str = "\x1b[32;1m";
/// Starts yellow text, for warnings.
pub const YELLOW: &str = "\x1b[0;33m";
/// Ends colored text.
pub const RESET: &str = "\x1b[0;m";
/// Clears the line from the cursor to its end.
pub const CLEAR: &str = "\x1b[0K";

/// Returns an uncolored line.
#[must_use]
pub fn plain(text: &str) -> String {
    format!("{CLEAR}{text}{RESET}\n")
}

/// Returns a line with a notice in bold green.
#[must_use]
pub fn info(text: &str) -> String {
    format!("{BOLD_GREEN}{text}{RESET}\n")
}

/// Returns a line with a warning.
#[must_use]
pub fn warning(text: &str) -> String {
    format!("{YELLOW}WARNING: {text}{RESET}\n")
}

/// Returns a line with an error.
#[must_use]
pub fn error(text: &str) -> String {
    format!("\x1b[31;1mERROR: {text}{RESET}\n")
}

/// Returns the line above the output of a stage.
#[must_use]
pub fn title(text: &str) -> String {
    format!("{CLEAR}\x1b[36;1m{text}{RESET}{RESET}\n")
}

/// Returns the marker that opens a section.
#[must_use]
pub fn section_start(name: &str) -> String {
    format!("section_start:{}:{name}\r{CLEAR}", unix_seconds())
}

/// Returns the marker that closes a section.
#[must_use]
pub fn section_end(name: &str) -> String {
    format!("section_end:{}:{name}\r{CLEAR}", unix_seconds())
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
