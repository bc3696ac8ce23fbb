//! The log: one layer for `tracing` that knows GitLab Runner's three formats, and whose level and format can be changed
//! while the process runs (runner-config 1.2, 1.11).
//!
//! ```text
//! event + fields of its spans + builds, max_builds --> record --> format --> standard error, and the system's log
//!                                                        |
//!                                                        +--> gitlab_runner_errors_total
//! ```
//!
//! No value of a secret may be in a record: that is for the callers to keep, with the type `Secret`. What looks like a
//! token or a password in a URL is masked here all the same.

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

/// Target of the few lines that exist to show a credential, as those of `gitlab-runner list` do: nothing is masked there.
pub const AS_IT_IS: &str = "muster::as_it_is";
pub use sink::{Sink, SyslogError};

use filter::Filter;

/// What the log knows of the process, and the other way round.
pub struct LogState {
    errors: IntCounterVec,
    builds: AtomicI64,
    /// Negative: this process takes no jobs, and says nothing about them.
    max_builds: AtomicI64,
}

#[expect(clippy::expect_used, reason = "the definition is a constant, and a test makes one")]
impl Default for LogState {
    fn default() -> Self {
        let options = Opts::new(names::ERRORS.name, names::ERRORS.help);
        let errors = IntCounterVec::new(options, names::ERRORS.labels).expect("a valid definition");
        for level in [Level::Panic, Level::Fatal, Level::Error, Level::Warning] {
            errors.with_label_values(&[level.name()]);
        }
        Self { errors, builds: AtomicI64::new(0), max_builds: AtomicI64::new(-1) }
    }
}

impl LogState {
    /// Jobs under way, and how many there may be; none in a process that takes no jobs.
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

/// How a process logs when it starts.
#[derive(Debug)]
pub struct LogOptions {
    /// The level of the command line or the environment; none leaves it to the configuration.
    pub level: Option<Level>,
    /// The level until a configuration says otherwise.
    pub default_level: Level,
    /// For single parts of the program; they stand before every level.
    pub directives: Option<Directives>,
    /// The format of the command line or the environment; none leaves it to the configuration.
    pub format: Option<Format>,
    /// Whether `runner` lines are colored.
    pub color: Color,
    /// Records also go to the system's log.
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

/// The running log: what configuration can change, and what metrics read.
#[derive(Clone)]
pub struct LogHandle {
    layer: LogLayer,
    pinned: (bool, bool),
    defaults: (Level, Format),
    /// What the configuration said last, to change nothing where nothing changes.
    configured: Arc<Mutex<(Option<Level>, Option<Format>)>>,
}

impl LogHandle {
    /// Starts the log of this process. Only the first call in a process takes effect on where records go.
    #[must_use]
    pub fn install(options: LogOptions) -> Self {
        let (handle, syslog) = Self::new(options, Sink::stderr());
        // Only a second call in one process fails, and then the first one's settings stand.
        let _ = tracing_subscriber::registry().with(handle.layer.clone()).try_init();
        if let Some(error) = syslog {
            tracing::warn!(%error, "the system's log cannot be reached; records go to standard error only");
        }
        handle
    }

    /// The log of a process, whose records go to `sink`; and why the system's log cannot be reached, if it cannot.
    #[must_use]
    pub fn new(options: LogOptions, sink: Sink) -> (Self, Option<SyslogError>) {
        let level = options.level.unwrap_or(options.default_level);
        let format = options.format.unwrap_or_default();
        let pinned = (options.level.is_some() || options.directives.is_some(), options.format.is_some());
        let filter = options.directives.map_or_else(|| Filter::of(level), |directives| directives.0);
        let (sink, failed) = match options.syslog.then(sink::syslog) {
            None => (sink, None),
            Some(Ok(syslog)) => (sink.and(syslog), None),
            Some(Err(error)) => (sink, Some(error)),
        };
        let layer = LogLayer::new(filter, format, options.color, sink);
        let defaults = (options.default_level, Format::default());
        (Self { layer, pinned, defaults, configured: Arc::default() }, failed)
    }

    /// Takes what a configuration says; absent is the default. What the command line said stays. Answers whether
    /// anything was changed.
    pub fn configure(&self, level: Option<Level>, format: Option<Format>) -> bool {
        let mut configured = self.configured.lock();
        if *configured == (level, format) {
            return false;
        }
        *configured = (level, format);
        if !self.pinned.0 {
            self.layer.set_filter(Filter::of(level.unwrap_or(self.defaults.0)));
        }
        if !self.pinned.1 {
            self.layer.set_format(format.unwrap_or(self.defaults.1));
        }
        true
    }

    /// Whether records of level debug, and not those of trace, are written.
    #[must_use]
    pub fn is_debug(&self) -> bool {
        self.layer.level() == Level::Debug
    }

    /// What metrics read.
    #[must_use]
    pub fn state(&self) -> &Arc<LogState> {
        self.layer.state()
    }

    /// The layer, for a subscriber of one's own.
    #[must_use]
    pub fn layer(&self) -> LogLayer {
        self.layer.clone()
    }
}

/// An error with its causes, for one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
