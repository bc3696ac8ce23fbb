//! Receives Ctrl-C and the other signals that ask this process to exit.

use super::super::error::CiError;

/// Receiver of the signals that ask this process to exit.
///
/// On Unix, it also receives signals that arrive between its creation and the first call of [`Self::next`].
pub(crate) struct Interrupts {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 3],
}

#[cfg(unix)]
impl Interrupts {
    /// Installs the signal handlers. From then on, these signals no longer end the process.
    pub(crate) fn new() -> Result<Self, CiError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).map_err(CiError::system("install a signal handler"));
        let signals =
            [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?];
        Ok(Self { signals })
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(not(unix))]
impl Interrupts {
    /// Does nothing. The first call of [`Self::next`] installs the handler.
    pub(crate) fn new() -> Result<Self, CiError> {
        Ok(Self {})
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
