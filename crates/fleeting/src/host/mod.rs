//! The host side: runs a plugin's process, keeps it running, and calls it.
//!
//! ```text
//! Group (handle) --calls--> Connection --gRPC over a socket--> plugin process
//!    ^                                                           | stderr: its log
//!    +-- supervisor: start, handshake, Init; on death: again  <--+ exit
//! ```
//!
//! A plugin that crashes, hangs or talks nonsense is contained here: each call has a deadline, a call over it ends the
//! process, and a process that ended is started again with back-off and given `Init` again. What instances there are is
//! the provider's truth, which the next snapshot brings; nothing of it is lost with a process (fleeting.md 1.10).

mod call;
pub(crate) mod connection;
mod error;
mod extension;
mod group;
mod handshake;
#[cfg(test)]
mod hostile;
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
pub use group::{Group, Status};
pub use handshake::{Address, Handshake, HandshakeError};
pub use log::{Level, LogReader, Record};
pub use meter::{CALL_SECONDS, CallResult, Calls, Counts, Meter};
pub use runtime_directory::{NoRuntimeDirectory, runtime_directory};
pub use sockets::SocketsError;

use std::path::PathBuf;
use std::time::Duration;

use crate::model::ConnectorConfig;

/// A plugin to run.
#[derive(Clone)]
pub struct PluginSpec {
    /// The executable.
    pub executable: PathBuf,
    /// Its arguments: none, unless the plugin is a part of a program whose last argument names it.
    pub arguments: Vec<String>,
    /// `plugin_config`, as JSON; `null` where the user gave none.
    pub config: serde_json::Value,
    /// `connector_config`, with its defaults.
    pub connector: ConnectorConfig,
    /// How long it may take.
    pub limits: Limits,
    /// What counts it: one for all starts of this and its clones.
    pub meter: Meter,
}

/// Without the settings: some are secrets.
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
    /// A plugin with no settings and the usual limits.
    #[must_use]
    pub fn new(executable: impl Into<PathBuf>) -> Self {
        Self {
            executable: executable.into(),
            arguments: Vec::new(),
            config: serde_json::Value::Null,
            connector: ConnectorConfig::default(),
            limits: Limits::default(),
            meter: Meter::default(),
        }
    }

    /// The plugin's name for people: the executable's, without `fleeting-plugin-`, or the last argument.
    #[must_use]
    pub fn name(&self) -> String {
        if let Some(name) = self.arguments.last() {
            return name.clone();
        }
        let file = self.executable.file_name().unwrap_or_default().to_string_lossy();
        file.strip_prefix("fleeting-plugin-").unwrap_or(&file).to_owned()
    }
}

/// How long a plugin may take. The protocol has no deadlines of its own; these are where hope ends (fleeting.md 2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From start to handshake.
    pub start: Duration,
    /// `Init`.
    pub init: Duration,
    /// A whole snapshot.
    pub update: Duration,
    /// `Increase` and `Decrease`: some plugins answer only when the provider is done.
    pub change: Duration,
    /// `ConnectInfo`.
    pub connect_info: Duration,
    /// `Heartbeat`.
    pub heartbeat: Duration,
    /// `Shutdown`: the plugin removes what it made for itself.
    pub shutdown: Duration,
    /// From the word to stop to SIGKILL.
    pub exit: Duration,
    /// Before the first new start of a plugin that died; doubles up to [`Self::restart_cap`].
    pub restart_first: Duration,
    /// The longest pause between two starts.
    pub restart_cap: Duration,
}

impl Default for Limits {
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
