//! Filters that select the records to write.

use std::str::FromStr;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{ParseError, Targets};

/// Log level, with gitlab-runner's names, the most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Level {
    Panic,
    Fatal,
    Error,
    Warning,
    Info,
    Debug,
    Trace,
}

/// Error for text that is not a log level or a filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The text is not a log level.
    #[error("`{0}` is not a valid log level; use one of: panic, fatal, error, warn, info, debug, trace")]
    Level(String),
    /// The text is not a filter.
    #[error("`{text}` is not a valid log filter; use for example `info` or `info,muster_manager=debug`")]
    Directives {
        /// The text.
        text: String,
        /// Cause of the error.
        source: ParseError,
    },
}

impl Level {
    /// Returns the name of the level in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Fatal => "fatal",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    pub(super) fn from_tracing(level: tracing::Level) -> Self {
        match level {
            tracing::Level::ERROR => Self::Error,
            tracing::Level::WARN => Self::Warning,
            tracing::Level::INFO => Self::Info,
            tracing::Level::DEBUG => Self::Debug,
            tracing::Level::TRACE => Self::Trace,
        }
    }

    fn filter(self) -> LevelFilter {
        match self {
            Self::Panic | Self::Fatal | Self::Error => LevelFilter::ERROR,
            Self::Warning => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}

impl FromStr for Level {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "panic" => Self::Panic,
            "fatal" => Self::Fatal,
            "error" => Self::Error,
            "warn" | "warning" => Self::Warning,
            "info" => Self::Info,
            "debug" => Self::Debug,
            "trace" => Self::Trace,
            _ => return Err(FilterError::Level(text.to_owned())),
        })
    }
}

#[derive(Debug)]
pub(super) struct Filter {
    targets: Targets,
    /// The least severe level that is enabled for any target.
    pub(super) level: Level,
}

impl Filter {
    /// Creates the filter for a level. For libraries, the level is at most warning, or debug if `level` is trace.
    pub(super) fn from_level(level: Level) -> Self {
        let for_libraries = match level {
            Level::Trace => LevelFilter::DEBUG,
            level => level.filter().min(LevelFilter::WARN),
        };
        Self { targets: Targets::new().with_default(for_libraries).with_target("muster", level.filter()), level }
    }

    pub(super) fn is_enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.targets.would_enable(metadata.target(), metadata.level())
    }

    pub(super) fn max_level(&self) -> LevelFilter {
        self.level.filter()
    }
}

/// Filter with levels for parts of the program, such as `info,muster_manager=debug`.
#[derive(Debug)]
pub struct Directives(pub(super) Filter);

impl FromStr for Directives {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        // A level without a target means the same as the option for the log level.
        if let Ok(level) = text.parse() {
            return Ok(Self(Filter::from_level(level)));
        }
        let targets: Targets =
            text.parse().map_err(|source| FilterError::Directives { text: text.to_owned(), source })?;
        let level = targets.iter().map(|(_, level)| level).chain(targets.default_level()).max();
        let level = level.and_then(|filter| filter.into_level()).map_or(Level::Panic, Level::from_tracing);
        Ok(Self(Filter { targets, level }))
    }
}
