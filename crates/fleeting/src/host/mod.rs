//! The host side of the protocol: starts a plugin's process, restarts it when it exits, and calls it.
//!
//! ```text
//! Group (handle) --calls--> Connection --gRPC over a socket--> plugin process
//!    ^                                                           | stderr: its log
//!    +-- supervisor: start, handshake, Init; restart on exit  <--+ exit
//! ```
//!
//! A process that does not respond in time is killed. A process that ended is restarted with backoff and receives
//! `Init` again. No state is lost: the next snapshot lists the instances (docs/spec/fleeting.md, section 1.10).

mod call;
pub(crate) mod connection;
mod error;
mod extension;
#[cfg(test)]
mod faults;
mod group;
mod handshake;
mod log;
pub(crate) mod mask;
mod meter;
pub(crate) mod process;
mod runtime_directory;
pub(crate) mod sockets;
mod supervisor;
mod sys;

pub use call::{CallError, Snapshot};
pub use error::StartError;
pub use group::{Group, PluginStatus};
pub use handshake::{Address, Handshake, HandshakeError};
pub use log::{Level, LogReader, Record};
pub use meter::{CALL_SECONDS, CallResult, Calls, Counts, Meter};
pub use runtime_directory::{NoRuntimeDirectory, runtime_directory};
pub use sockets::SocketsError;

use std::path::PathBuf;
use std::time::Duration;

use crate::model::ConnectorConfig;

/// Settings to start a plugin with.
#[derive(Clone)]
pub struct PluginSpec {
    /// Path of the plugin's executable.
    pub executable: PathBuf,
    /// Command-line arguments.
    /// Empty unless the plugin is built into another program. The last argument of a built-in plugin is its name.
    pub arguments: Vec<String>,
    /// `plugin_config` as JSON. `null` if the user configured none.
    pub config: serde_json::Value,
    /// `connector_config`, with its defaults filled in.
    pub connector: ConnectorConfig,
    /// Timeouts of the calls and delays between restarts.
    pub timeouts: Timeouts,
    /// Counters of starts and calls.
    /// All processes that are started from this value or its clones share them.
    pub meter: Meter,
}

/// Omits the settings, because some of them are secrets.
impl std::fmt::Debug for PluginSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { executable, arguments, .. } = self;
        f.debug_struct("PluginSpec")
            .field("executable", executable)
            .field("arguments", arguments)
            .finish_non_exhaustive()
    }
}

impl PluginSpec {
    /// Returns the settings of a plugin without arguments and configuration, with the default timeouts.
    #[must_use]
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        Self {
            executable: executable.into(),
            arguments: Vec::new(),
            config: serde_json::Value::Null,
            connector: ConnectorConfig::default(),
            timeouts: Timeouts::default(),
            meter: Meter::default(),
        }
    }

    /// Returns the plugin's name for messages.
    /// The name is the last argument. Without arguments, it is the executable's file name without `fleeting-plugin-`.
    #[must_use]
    pub fn name(&self) -> String {
        if let Some(name) = self.arguments.last() {
            return name.clone();
        }
        let file = self.executable.file_name().unwrap_or_default().to_string_lossy();
        file.strip_prefix("fleeting-plugin-").unwrap_or(&file).to_owned()
    }
}

/// Timeouts for plugin calls, and delays between restarts.
/// The protocol defines no timeouts (docs/spec/fleeting.md, section 2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Maximum time for the handshake, and again for the connection after it. Defaults to 60 seconds.
    pub start: Duration,
    /// Time for `Init`. Defaults to 60 seconds.
    pub init: Duration,
    /// Time for a complete list of the instances, and for a list of the offers. Defaults to 2 minutes.
    pub update: Duration,
    /// Time for `Increase`, `Decrease`, `Suspend`, `Resume`, and the hooks before and after a job.
    /// Defaults to 10 minutes, because some plugins answer only when the provider has finished.
    pub change: Duration,
    /// Time for `ConnectInfo` and `HostKeys`. Defaults to 2 minutes.
    pub connect_info: Duration,
    /// Time for `Heartbeat` and `GetResourceUsage`. Defaults to 60 seconds.
    pub heartbeat: Duration,
    /// Time for `Shutdown`, in which the plugin removes its own resources. Defaults to 30 seconds.
    pub shutdown: Duration,
    /// Maximum time for the plugin to answer the request to exit, and then again for its process to exit.
    /// After that, the process is killed. Also applies to a process that closed stdout before the handshake.
    /// Defaults to 2 seconds.
    pub exit: Duration,
    /// Delay before the first restart; it doubles up to [`Self::restart_cap`].
    /// Each delay has a jitter of 25 %. Defaults to 500 milliseconds.
    pub restart_first: Duration,
    /// Longest delay between two starts, before jitter. Defaults to 30 seconds.
    pub restart_cap: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(60),
            init: Duration::from_secs(60),
            update: Duration::from_secs(120),
            change: Duration::from_secs(600),
            connect_info: Duration::from_secs(120),
            heartbeat: Duration::from_secs(60),
            shutdown: Duration::from_secs(30),
            exit: Duration::from_secs(2),
            restart_first: Duration::from_millis(500),
            restart_cap: Duration::from_secs(30),
        }
    }
}
