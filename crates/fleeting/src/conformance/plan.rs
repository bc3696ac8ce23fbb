//! Settings of a conformance run.

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
    /// Log in if `ConnectInfo` has credentials.
    #[default]
    Auto,
    /// Always log in. Without credentials, the case fails.
    Yes,
    /// Do not log in.
    No,
}

/// Settings of a conformance run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Path of the plugin's executable.
    pub executable: PathBuf,
    /// Command-line arguments. Hosts pass none, but an interpreter needs the path of its program.
    pub arguments: Vec<OsString>,
    /// Settings of the plugin: the table `plugin_config`.
    pub config: Value,
    /// Settings that the plugin gets for connections to instances: the table `connector_config`.
    pub connector: ConnectorConfig,
    /// Settings of `connector_config` that only the host uses. They are not sent to the plugin.
    pub dial: DialOptions,
    /// Number of instances to create, at least 1 and at most the maximum size of the group. Defaults to 2.
    /// The restart case creates one more after these were deleted.
    pub instances: u32,
    /// Whether to log in to an instance.
    pub connect: Connect,
    /// Timeout of a call and of the start of a process. Defaults to 60 seconds.
    pub call_timeout: Duration,
    /// Timeout for instances to start or to change their state, and for a login. Defaults to 5 minutes.
    pub create_timeout: Duration,
    /// Timeout for instances to be deleted. Defaults to 5 minutes.
    pub delete_timeout: Duration,
    /// Timeout for a process to exit. Defaults to 10 seconds.
    pub exit_timeout: Duration,
    /// Token that a caller cancels to end the run early. Created instances are deleted and the remaining cases are skipped.
    pub stop: CancellationToken,
    /// Initial interval between two calls of `Update`, each of which returns a snapshot of all instances.
    /// During each wait, the interval doubles up to 2 seconds. Defaults to 50 milliseconds.
    pub poll: Duration,
}

impl Plan {
    /// Returns the settings for a plugin without configuration, with default timeouts.
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
            call_timeout: Duration::from_secs(60),
            create_timeout: Duration::from_secs(300),
            delete_timeout: Duration::from_secs(300),
            exit_timeout: Duration::from_secs(10),
            stop: CancellationToken::new(),
            poll: Duration::from_millis(50),
        }
    }
}
