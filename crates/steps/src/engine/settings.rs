//! Settings of steps, from variables of the job or else of the environment. The operator's steps have fixed settings.

use crate::expression::Dialect;

/// Variable that every process of a step gets. It contains the log level for GitLab's own steps.
pub(super) const LOG_LEVEL: &str = "CI_STEPS_LOG_LEVEL";
const DEBUG: &str = "CI_STEPS_DEBUG";
const DIALECT: &str = "CI_STEPS_DIALECT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// Value of [`LOG_LEVEL`]. Defaults to `info`.
    pub(super) log_level: &'static str,
    /// Whether results are written to a file, and errors quote a step's output and export files. Defaults to false.
    pub(super) is_debug: bool,
    pub(super) dialect: Dialect,
}

/// Invalid value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// The log level is unknown.
    #[error("log level: {0} not supported; set {LOG_LEVEL} to debug, info, warn or error")]
    LogLevel(String),
    /// The dialect is unknown.
    #[error("{0:?} is not a valid dialect of steps; set {DIALECT} to current or legacy")]
    Dialect(String),
}

impl Settings {
    /// Settings of the operator's steps. They are fixed, because the author of the job must not change them.
    pub(super) const OF_OPERATOR: Self = Self { log_level: "info", is_debug: false, dialect: Dialect::Current };

    /// Reads the settings. `lookup` returns the value of a variable.
    ///
    /// # Errors
    /// A value is invalid.
    pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let value = |name| lookup(name).map(|value| value.trim().to_ascii_lowercase()).unwrap_or_default();
        let log_level = match value(LOG_LEVEL).as_str() {
            "" | "info" => "info",
            "debug" => "debug",
            "warn" => "warn",
            "error" => "error",
            _ => return Err(SettingError::LogLevel(lookup(LOG_LEVEL).unwrap_or_default())),
        };
        let dialect = match value(DIALECT).as_str() {
            "" | "current" => Dialect::Current,
            "legacy" => Dialect::Legacy,
            _ => return Err(SettingError::Dialect(lookup(DIALECT).unwrap_or_default())),
        };
        Ok(Self { log_level, is_debug: matches!(value(DEBUG).as_str(), "1" | "t" | "true"), dialect })
    }
}
