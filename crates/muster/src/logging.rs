//! Initializes the log of this process.
//!
//! The environment variable `MUSTER_LOG` filters the log by module, and overrides every level that is set elsewhere.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use muster_telemetry::logs::{Color, Format, LogHandle, LogOptions};

const DIRECTIVES_VARIABLE: &str = "MUSTER_LOG";

static HANDLE: OnceLock<LogHandle> = OnceLock::new();

/// Starts the log of a service, with timestamps unless stderr is a terminal.
pub(crate) fn init_service() {
    let format = if std::io::stderr().is_terminal() { Format::Runner } else { Format::Text };
    start(LogOptions { format: Some(format), ..LogOptions::default() });
}

pub(crate) fn init_command(directives: &str) {
    start(LogOptions { directives: directives.parse().ok(), ..LogOptions::default() });
}

/// Starts the log of the gitlab-runner commands, by default in gitlab-runner's format.
pub(crate) fn init_runner(options: LogOptions) {
    start(LogOptions { color: Color::Always, ..options });
}

pub(crate) fn handle() -> &'static LogHandle {
    HANDLE.get_or_init(|| LogHandle::install(LogOptions::default()))
}

fn start(options: LogOptions) {
    let directives = std::env::var(DIRECTIVES_VARIABLE).ok().filter(|text| !text.is_empty());
    let (directives, invalid) = match directives.as_deref().map(str::parse) {
        Some(Ok(directives)) => (Some(directives), None),
        Some(Err(error)) => (options.directives, Some(error)),
        None => (options.directives, None),
    };
    HANDLE.get_or_init(|| LogHandle::install(LogOptions { directives, ..options }));
    if let Some(error) = invalid {
        tracing::warn!(error = &error as &dyn std::error::Error, "ignored invalid {DIRECTIVES_VARIABLE}");
    }
}

/// Applies the log settings of a configuration file, which those of the command line override. Invalid values were
/// reported before, and are ignored.
pub(crate) fn configure(level: Option<&str>, format: Option<&str>) {
    handle().configure(level.and_then(|level| level.parse().ok()), format.and_then(|format| format.parse().ok()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_log_format_of_the_configuration_is_known() {
        for name in muster_config::LOG_FORMATS {
            name.parse::<Format>().unwrap();
        }
    }
}
