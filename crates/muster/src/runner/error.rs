//! How a command ends.

use std::process::ExitCode;

/// Turns a command's result into its exit code; what went wrong is the last record of the log.
pub(super) fn ended<E: std::error::Error>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&muster_job::error_chain(&error), |first| tracing::error!(fatal = true, "{first}"));
            ExitCode::FAILURE
        }
    }
}

/// Logs the first line of a text. A record is one line: what comes after it, as the picture of a place in a file, stands
/// below as it is.
pub(super) fn tell(text: &str, log: impl FnOnce(&str)) {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    log(first);
    if !rest.trim().is_empty() {
        anstream::eprintln!("{}", rest.trim_end());
    }
}
