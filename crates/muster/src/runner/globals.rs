//! Global flags, and the first line of every log.

use std::path::PathBuf;
use std::sync::LazyLock;

use muster_telemetry::logs::{Format, Level, LogOptions};

use crate::flags::{FlagError, go_bool, optional_choice, path};

/// Global flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options, before the command")]
pub(crate) struct Globals {
    /// Log debug messages.
    #[arg(long, env = "RUNNER_DEBUG", value_parser = go_bool, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", default_value = "false", hide_default_value = true, value_name = "BOOL")]
    debug: bool,
    /// Format of the log: runner, text or json.
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", value_parser = log_format)]
    log_format: Option<Optional<Format>>,
    /// Minimum level of log messages: debug, info, warn, error, fatal or panic.
    #[arg(short = 'l', long, env = "LOG_LEVEL", value_name = "LEVEL", value_parser = log_level)]
    log_level: Option<Optional<Level>>,
    /// Write a CPU profile (not supported, use `perf record`).
    #[arg(long, env = "CPU_PROFILE", value_name = "FILE", hide = true, value_parser = path())]
    cpuprofile: Option<PathBuf>,
    /// Print the version.
    #[arg(short = 'v', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// `None` if the flag's environment variable is set but empty.
///
/// This is an alias because clap gives the literal `Option<Option<T>>` another meaning: a flag whose value may be
/// omitted.
type Optional<T> = Option<T>;

impl Globals {
    /// Initializes the log, and logs the platform, version and process ID. `syslog` also sends messages to the system
    /// log.
    pub(super) fn apply(&self, syslog: bool) {
        let level = if self.debug { Some(Level::Debug) } else { self.log_level.flatten() };
        let format = self.log_format.flatten();
        crate::logging::init_runner(LogOptions { level, format, syslog, ..LogOptions::default() });
        if self.cpuprofile.as_ref().is_some_and(|file| !file.as_os_str().is_empty()) {
            tracing::warn!("ignored --cpuprofile, which is not supported; use `perf record`");
        }
        tracing::info!(
            os = muster_job::go_os(),
            arch = muster_job::go_architecture(),
            version = env!("CARGO_PKG_VERSION"),
            revision = REVISION,
            pid = std::process::id(),
            "Runtime platform"
        );
    }
}

const REVISION: &str = crate::observe::BUILD.revision;

/// Returns the output of `--version`, in the form of gitlab-runner's output, because scripts parse it.
pub(super) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "Version:      {}\nGit revision: {REVISION}\nProgram:      Muster\nOS/Arch:      {}/{}",
            env!("CARGO_PKG_VERSION"),
            muster_job::go_os(),
            muster_job::go_architecture()
        )
    });
    &TEXT
}

fn log_format(text: &str) -> Result<Optional<Format>, FlagError> {
    optional_choice(text, &[("runner", Format::Runner), ("text", Format::Text), ("json", Format::Json)])
}

fn log_level(text: &str) -> Result<Optional<Level>, FlagError> {
    let levels = [
        ("debug", Level::Debug),
        ("info", Level::Info),
        ("warn", Level::Warning),
        ("warning", Level::Warning),
        ("error", Level::Error),
        ("fatal", Level::Fatal),
        ("panic", Level::Panic),
        ("trace", Level::Trace),
    ];
    optional_choice(text, &levels)
}
