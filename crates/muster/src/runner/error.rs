//! How a command ends.

use std::process::ExitCode;

/// Turns a command's result into its exit code; what went wrong is the last line of the log.
pub(super) fn ended<E: std::error::Error>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(fatal = true, "{}", crate::logging::chain(&error));
            ExitCode::FAILURE
        }
    }
}
