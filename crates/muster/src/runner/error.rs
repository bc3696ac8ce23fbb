//! Exit codes and error output of the gitlab-runner commands.

use std::process::ExitCode;

/// Logs the error, if any.
pub(super) fn exit_code<E: std::error::Error>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log_first_line(&muster_job::error_chain(&error), |first| tracing::error!(fatal = true, "{first}"));
            ExitCode::FAILURE
        }
    }
}

/// Logs the first line of a message, because a log record is one line. Prints the other lines below it.
pub(super) fn log_first_line(text: &str, log: impl FnOnce(&str)) {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    log(first);
    if !rest.trim().is_empty() {
        anstream::eprintln!("{}", rest.trim_end());
    }
}
