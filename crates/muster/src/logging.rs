//! The log of the long-running subcommands: plain lines on standard error, filtered by `MUSTER_LOG`.

use std::io::{IsTerminal, stderr};

use tracing_subscriber::EnvFilter;

/// Sends the log to standard error; without `MUSTER_LOG`, what is of interest to an operator.
pub(crate) fn to_stderr() {
    filtered_to_stderr("info");
}

/// Sends the log to standard error, filtered by `MUSTER_LOG`, or by `otherwise` where that is not set.
pub(crate) fn filtered_to_stderr(otherwise: &str) {
    let filter = EnvFilter::try_from_env("MUSTER_LOG").unwrap_or_else(|_| EnvFilter::new(otherwise));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr);
    // Standard error may be a file on a full disk: a line that cannot be logged must not end the process.
    let builder = builder.log_internal_errors(false);
    // Only a second call in one process fails, and then the first one's settings stand.
    let _ = builder.with_ansi(stderr().is_terminal()).with_target(false).try_init();
}

/// An error with its causes, for one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
