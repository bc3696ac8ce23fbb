//! Windows: a loopback port, Ctrl-C, and a parent process whose exit cannot be detected.

use tokio::signal::windows::{CtrlC, ctrl_c};
use tokio_stream::wrappers::TcpListenerStream;

use super::loopback::PortError;
use super::{Endpoint, loopback};

/// Listens on a loopback port that the host allows.
///
/// # Errors
/// [`PortError`].
pub(crate) async fn listen() -> Result<(TcpListenerStream, Endpoint), PortError> {
    let [min, max] = ["PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT"].map(|key| std::env::var(key).ok());
    loopback::listen_at(loopback::parse_port_range(min.as_deref(), max.as_deref())?).await
}

/// Receives Ctrl-C. Other console events keep their default action: they end the process.
pub(crate) struct Signals(CtrlC);

impl Signals {
    /// Installs the handler.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(ctrl_c()?))
    }

    /// Ignores Ctrl-C, and never returns. Cancel-safe.
    ///
    /// Ctrl-C is ignored because a console also sends it to the host, which decides when the plugin exits (case P9).
    pub(crate) async fn wait_termination(&mut self) {
        while self.0.recv().await.is_some() {
            tracing::debug!("ignored Ctrl-C, because the host handles it");
        }
        std::future::pending().await
    }
}

/// The parent process.
/// On Windows, the parent process ID does not change when the parent exits. Only the closed streams show that the host has exited.
#[derive(Debug)]
pub(crate) struct Parent;

impl Parent {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn has_changed(&self) -> bool {
        false
    }
}
