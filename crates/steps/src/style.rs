//! The byte forms of the trace's own lines (job-execution 1.7, 1.8).

use std::time::{SystemTime, UNIX_EPOCH};

/// Bold green, as commands and notices.
pub const BOLD_GREEN: &str = "\x1b[32;1m";
/// Yellow, as warnings.
pub const YELLOW: &str = "\x1b[0;33m";
/// Ends a colour.
pub const RESET: &str = "\x1b[0;m";
/// Returns to the start of the line and clears it.
pub const CLEAR: &str = "\x1b[0K";

/// A plain line.
#[must_use]
pub fn plain(text: &str) -> String {
    format!("{CLEAR}{text}{RESET}\n")
}

/// A line that says something went well; also the notices of the phases.
#[must_use]
pub fn info(text: &str) -> String {
    format!("{BOLD_GREEN}{text}{RESET}\n")
}

/// A warning.
#[must_use]
pub fn warning(text: &str) -> String {
    format!("{YELLOW}WARNING: {text}{RESET}\n")
}

/// An error.
#[must_use]
pub fn error(text: &str) -> String {
    format!("\x1b[31;1mERROR: {text}{RESET}\n")
}

/// The line under which a phase's output stands.
#[must_use]
pub fn title(text: &str) -> String {
    format!("{CLEAR}\x1b[36;1m{text}{RESET}{RESET}\n")
}

/// Opens a section.
#[must_use]
pub fn section_start(name: &str) -> String {
    format!("section_start:{}:{name}\r{CLEAR}", unix_seconds())
}

/// Closes a section.
#[must_use]
pub fn section_end(name: &str) -> String {
    format!("section_end:{}:{name}\r{CLEAR}", unix_seconds())
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
