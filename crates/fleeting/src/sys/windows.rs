//! Windows: a loopback port, and Ctrl-C.

use tokio::signal::windows::{CtrlC, ctrl_c};
use tokio_stream::wrappers::TcpListenerStream;

use super::{Endpoint, loopback};

/// A loopback port that the host allows.
///
/// # Errors
/// There is none, with the remedy.
pub(crate) async fn listen() -> Result<(TcpListenerStream, Endpoint), String> {
    let [min, max] = ["PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT"].map(|key| std::env::var(key).ok());
    loopback::listen_at(loopback::range(min.as_deref(), max.as_deref())?).await
}

/// Ctrl-C, as a plugin hears it. What else a console says ends the process, as it does without this.
pub(crate) struct Signals(CtrlC);

impl Signals {
    /// It is heard from now on.
    ///
    /// # Errors
    /// The system does not let it be heard.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(ctrl_c()?))
    }

    /// Nothing says to end. In a console Ctrl-C goes to the host too, which says what to do (P9). Cancel-safe.
    pub(crate) async fn end(&mut self) {
        while self.0.recv().await.is_some() {
            tracing::debug!("an interrupt is left to the host");
        }
        std::future::pending().await
    }
}

/// A process keeps its parent's number here, whatever becomes of it: only the host's streams say that it is gone.
#[derive(Debug)]
pub(crate) struct Parent;

impl Parent {
    /// As it is now.
    pub(crate) fn new() -> Self {
        Self
    }

    /// Not known.
    pub(crate) fn is_gone(&self) -> bool {
        false
    }
}
