//! The log: a `tracing` layer with gitlab-runner's formats (docs/spec/runner-config.md, section 1.11).
//!
//! Level and format can change while the process runs (section 1.2).
//!
//! ```text
//! event + fields of its spans + builds, max_builds --> record --> format --> standard error, and syslog
//!                                                        |
//!                                                        +--> gitlab_runner_errors_total
//! ```
//!
//! Callers keep secrets out of records with the type `Secret`. Text that still looks like a token, or like credentials
//! in a URL, is masked.

mod dump;
mod filter;
mod format;
mod layer;
mod record;
mod scrub;
mod sink;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::names;

pub use dump::dump_threads;
pub use filter::{Directives, FilterError, Level};
pub use format::{Color, Format, FormatError};
pub use layer::LogLayer;
pub use scrub::scrub;
pub use sink::{Sink, SyslogError};

use filter::Filter;

/// Target of records in which nothing is masked, such as those of `gitlab-runner list`.
pub const UNREDACTED_TARGET: &str = "muster::unredacted";

/// State that the log shares with the metrics: the number of jobs, and counts of errors.
pub struct LogState {
    errors: IntCounterVec,
    builds: AtomicI64,
    /// Maximum number of concurrent jobs. Negative if this process runs no jobs.
    max_builds: AtomicI64,
}

#[expect(clippy::expect_used, reason = "the definition is a constant, and tests use it")]
impl Default for LogState {
    fn default() -> Self {
        let options = Opts::new(names::ERRORS.name, names::ERRORS.help);
        let errors = IntCounterVec::new(options, names::ERRORS.labels).expect("the definition is invalid");
        for level in [Level::Panic, Level::Fatal, Level::Error, Level::Warning] {
            errors.with_label_values(&[level.name()]);
        }
        Self { errors, builds: AtomicI64::new(0), max_builds: AtomicI64::new(-1) }
    }
}

impl LogState {
    /// Returns the current and the maximum number of jobs. `None` means that this process runs no jobs.
    #[must_use]
    pub fn builds(&self) -> Option<(i64, i64)> {
        let max = self.max_builds.load(Ordering::Relaxed);
        (max >= 0).then(|| (self.builds.load(Ordering::Relaxed), max))
    }

    pub(crate) fn errors(&self) -> &IntCounterVec {
        &self.errors
    }

    pub(crate) fn job_added(&self) {
        self.builds.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn job_removed(&self) {
        self.builds.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn set_max_builds(&self, jobs: i64) {
        self.max_builds.store(jobs, Ordering::Relaxed);
    }
}

/// Initial options of a log.
#[derive(Debug)]
pub struct LogOptions {
    /// Level from the command line or the environment. `None` uses the level of the configuration.
    pub level: Option<Level>,
    /// Level if neither the command line, the environment nor the configuration has one.
    pub default_level: Level,
    /// Levels for parts of the program, which override all other levels. `None` means no overrides.
    pub directives: Option<Directives>,
    /// Format from the command line or the environment. `None` uses the format of the configuration.
    pub format: Option<Format>,
    /// When lines of the format `runner` are colored.
    pub color: Color,
    /// Whether records are also sent to syslog.
    pub syslog: bool,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            level: None,
            default_level: Level::Info,
            directives: None,
            format: None,
            color: Color::Auto,
            syslog: false,
        }
    }
}

/// Handle of a running log, to reconfigure it and to read its state.
#[derive(Clone)]
pub struct LogHandle {
    layer: LogLayer,
    /// Whether the command line or the environment determines the level or directives.
    is_level_fixed: bool,
    /// Whether the command line or the environment determines the format.
    is_format_fixed: bool,
    /// The level and format if neither the command line, the environment nor the configuration has one.
    defaults: (Level, Format),
    /// The last level and format of the configuration, to detect changes.
    configured: Arc<Mutex<(Option<Level>, Option<Format>)>>,
}

impl LogHandle {
    /// Starts the log of this process. Only the first call in a process has an effect.
    #[must_use]
    pub fn install(options: LogOptions) -> Self {
        let (handle, syslog) = Self::new(options, Sink::stderr());
        // Fails only if the process has a log already, which is kept.
        let _ = tracing_subscriber::registry().with(handle.layer.clone()).try_init();
        if let Some(error) = syslog {
            tracing::warn!(%error, "failed to connect to syslog; records are written to standard error only");
        }
        handle
    }

    /// Creates a log that writes to `sink`. Also returns an error if syslog is requested but not available.
    #[must_use]
    pub fn new(options: LogOptions, sink: Sink) -> (Self, Option<SyslogError>) {
        let level = options.level.unwrap_or(options.default_level);
        let format = options.format.unwrap_or_default();
        let is_level_fixed = options.level.is_some() || options.directives.is_some();
        let is_format_fixed = options.format.is_some();
        let filter = options.directives.map_or_else(|| Filter::from_level(level), |directives| directives.0);
        let (sink, error) = match options.syslog.then(sink::connect_syslog) {
            None => (sink, None),
            Some(Ok(syslog)) => (sink.with_syslog(syslog), None),
            Some(Err(error)) => (sink, Some(error)),
        };
        let layer = LogLayer::new(filter, format, options.color, sink);
        let defaults = (options.default_level, Format::default());
        (Self { layer, is_level_fixed, is_format_fixed, defaults, configured: Arc::default() }, error)
    }

    /// Applies the level and format of a configuration, unless the command line or the environment determines them.
    ///
    /// `None` means the default. Returns whether the configured values have changed.
    pub fn configure(&self, level: Option<Level>, format: Option<Format>) -> bool {
        let mut configured = self.configured.lock();
        if *configured == (level, format) {
            return false;
        }
        *configured = (level, format);
        if !self.is_level_fixed {
            self.layer.set_filter(Filter::from_level(level.unwrap_or(self.defaults.0)));
        }
        if !self.is_format_fixed {
            self.layer.set_format(format.unwrap_or(self.defaults.1));
        }
        true
    }

    /// Returns whether the level is exactly debug, at which gitlab-runner dumps its threads on SIGUSR1.
    #[must_use]
    pub fn is_debug(&self) -> bool {
        self.layer.level() == Level::Debug
    }

    /// Returns the state that the log shares with the metrics.
    #[must_use]
    pub fn state(&self) -> &Arc<LogState> {
        self.layer.state()
    }

    /// Returns the layer, for a custom subscriber.
    #[must_use]
    pub fn layer(&self) -> LogLayer {
        self.layer.clone()
    }
}
