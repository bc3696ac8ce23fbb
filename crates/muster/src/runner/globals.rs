//! The flags that precede every command, and the line that starts every log.

use std::path::PathBuf;
use std::sync::LazyLock;

use muster_telemetry::logs::{Format, Level, LogOptions};

use crate::flags::{go_bool, optional, path};

/// Flags of all commands (runner-config 2.1).
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options, before the command")]
pub(crate) struct Globals {
    /// Log what only a search for a fault needs.
    #[arg(long, env = "RUNNER_DEBUG", value_parser = go_bool, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", default_value = "false", hide_default_value = true, value_name = "BOOL")]
    debug: bool,
    /// Format of the log: runner, text or json.
    #[arg(long, env = "LOG_FORMAT", value_name = "FORMAT", value_parser = log_format)]
    log_format: Option<Optional<Format>>,
    /// The least level that is logged: debug, info, warn, error, fatal or panic.
    #[arg(short = 'l', long, env = "LOG_LEVEL", value_name = "LEVEL", value_parser = log_level)]
    log_level: Option<Optional<Level>>,
    /// Write a profile of the processor's time; not supported, use `perf record`.
    #[arg(long, env = "CPU_PROFILE", value_name = "FILE", hide = true, value_parser = path())]
    cpuprofile: Option<PathBuf>,
    /// Print the version.
    #[arg(short = 'v', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
}

/// An empty variable is as good as none.
type Optional<T> = Option<T>;

impl Globals {
    /// Starts the log, which goes to the system's log too where `syslog` says so, and says on which platform and as which
    /// process this runs.
    pub(super) fn apply(&self, syslog: bool) {
        let level = if self.debug { Some(Level::Debug) } else { self.log_level.flatten() };
        let format = self.log_format.flatten();
        crate::logging::of_runner(LogOptions { level, format, syslog, ..LogOptions::default() });
        if self.cpuprofile.as_ref().is_some_and(|file| !file.as_os_str().is_empty()) {
            tracing::warn!("--cpuprofile is not supported and is ignored; `perf record` shows where time goes");
        }
        tracing::info!(
            os = std::env::consts::OS,
            arch = architecture(),
            version = env!("CARGO_PKG_VERSION"),
            revision = REVISION,
            pid = std::process::id(),
            "Runtime platform"
        );
    }
}

/// The source revision of this build.
const REVISION: &str = crate::observe::BUILD.revision;

/// The processor's name as GitLab has it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// What `--version` prints, and nothing before it, line by line as gitlab-runner does: scripts cut it.
pub(super) fn long_version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!(
            "Version:      {}\nGit revision: {REVISION}\nProgram:      Muster\nOS/Arch:      {}/{}",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            architecture()
        )
    });
    &TEXT
}

fn log_format(text: &str) -> Result<Optional<Format>, String> {
    optional(text, &[("runner", Format::Runner), ("text", Format::Text), ("json", Format::Json)])
}

fn log_level(text: &str) -> Result<Optional<Level>, String> {
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
    optional(text, &levels)
}
