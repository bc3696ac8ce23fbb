//! What to test, and how.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::connector::DialOptions;
use crate::model::ConnectorConfig;

/// Whether to log in to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connect {
    /// Where `ConnectInfo` has credentials.
    #[default]
    Auto,
    /// In any case: without credentials the case fails.
    Yes,
    /// Not at all.
    No,
}

/// What to test, and how.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The executable.
    pub executable: PathBuf,
    /// Its arguments; hosts give none, but an interpreter needs its program.
    pub arguments: Vec<OsString>,
    /// `plugin_config`.
    pub config: Value,
    /// `connector_config`.
    pub connector: ConnectorConfig,
    /// Settings of `connector_config` for the way to an instance.
    pub dial: DialOptions,
    /// How many instances to make at once; at least 1.
    pub instances: u32,
    /// Whether to log in.
    pub connect: Connect,
    /// For a call to be answered, and for a process to start.
    pub call_limit: Duration,
    /// For instances to come up, or to change their state.
    pub create_limit: Duration,
    /// For instances to go.
    pub delete_limit: Duration,
    /// For a process to end.
    pub exit_limit: Duration,
    /// Cancelled, the run ends early: what was made is removed, and the cases that are left are skipped.
    pub stop: CancellationToken,
    /// Between two snapshots at first; doubles up to 2 s while nothing changes.
    pub poll: Duration,
}

impl Plan {
    /// A plugin with no settings, 2 instances and the usual limits.
    #[must_use]
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        Self {
            executable: executable.into(),
            arguments: Vec::new(),
            config: Value::Null,
            connector: ConnectorConfig::default(),
            dial: DialOptions::default(),
            instances: 2,
            connect: Connect::Auto,
            call_limit: Duration::from_secs(60),
            create_limit: Duration::from_secs(300),
            delete_limit: Duration::from_secs(300),
            exit_limit: Duration::from_secs(10),
            stop: CancellationToken::new(),
            poll: Duration::from_millis(50),
        }
    }
}
