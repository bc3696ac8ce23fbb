//! The log of this process: the one place that starts it. `MUSTER_LOG` chooses parts of the program, and stands before
//! every level that is set elsewhere.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use muster_telemetry::logs::{Color, Format, LogHandle, LogOptions};

const DIRECTIVES: &str = "MUSTER_LOG";

static HANDLE: OnceLock<LogHandle> = OnceLock::new();

/// Starts the log of a subcommand that works in the background: what is of interest to an operator, with times where
/// nobody looks on.
pub(crate) fn of_service() {
    let format = if std::io::stderr().is_terminal() { Format::Runner } else { Format::Text };
    start(LogOptions { format: Some(format), ..LogOptions::default() });
}

/// Starts the log of a command that someone waits for, which shows `parts` of the program.
pub(crate) fn of_command(parts: &str) {
    start(LogOptions { directives: parts.parse().ok(), ..LogOptions::default() });
}

/// Starts the log under the name `gitlab-runner`, in its format unless another is chosen.
pub(crate) fn of_runner(options: LogOptions) {
    start(LogOptions { color: Color::Always, ..options });
}

/// The log of this process, to change it and to count its records.
pub(crate) fn handle() -> &'static LogHandle {
    HANDLE.get_or_init(|| LogHandle::install(LogOptions::default()))
}

fn start(options: LogOptions) {
    let directives = std::env::var(DIRECTIVES).ok().filter(|text| !text.is_empty());
    let (directives, wrong) = match directives.as_deref().map(str::parse) {
        Some(Ok(directives)) => (Some(directives), None),
        Some(Err(error)) => (options.directives, Some(error)),
        None => (options.directives, None),
    };
    HANDLE.get_or_init(|| LogHandle::install(LogOptions { directives, ..options }));
    if let Some(error) = wrong {
        tracing::warn!(error = &error as &dyn std::error::Error, "{DIRECTIVES} is ignored");
    }
}

/// Takes what a configuration says of the log; what the command line said stays. Words that are no level or format were
/// told as problems of the configuration.
pub(crate) fn configure(level: Option<&str>, format: Option<&str>) {
    handle().configure(level.and_then(|level| level.parse().ok()), format.and_then(|format| format.parse().ok()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_that_a_configuration_may_name_is_known() {
        for name in muster_config::LOG_FORMATS {
            name.parse::<Format>().unwrap();
        }
    }
}
