//! Ctrl-C and the other signals that ask this process to end.

use super::super::error::CiError;

/// The signals, from the moment on at which this was made.
pub(crate) struct Interrupts {
    #[cfg(unix)]
    signals: [tokio::signal::unix::Signal; 3],
}

#[cfg(unix)]
impl Interrupts {
    /// Starts to listen; from now on these signals no longer end the process by themselves.
    pub(crate) fn new() -> Result<Self, CiError> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).map_err(CiError::system("cannot listen for signals"));
        let signals =
            [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?];
        Ok(Self { signals })
    }

    /// Waits for the next one. Safe to drop.
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
    /// Starts to listen.
    pub(crate) fn new() -> Result<Self, CiError> {
        Ok(Self {})
    }

    /// Waits for the next one. Safe to drop.
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
