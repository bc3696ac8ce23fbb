//! The signals of `run` (runner-config 2.6), without SIGUSR1, which is heard by [`crate::observe`].

use std::io;

use tokio::signal::unix::{self, SignalKind, signal};

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGQUIT: take no more jobs, let those that run end.
    Drain,
    /// SIGTERM, SIGINT: abort all jobs; its name.
    Abort(&'static str),
    /// SIGHUP: read the configuration again.
    Reload,
    /// SIGUSR2: end at once, and leave the jobs to the next start. Muster's own, for an upgrade in place.
    Leave,
}

/// All of them, watched from now on.
#[derive(Debug)]
pub(super) struct Signals {
    quit: unix::Signal,
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
    user2: unix::Signal,
}

impl Signals {
    pub(super) fn watch() -> io::Result<Self> {
        Ok(Self {
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// The next one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.quit.recv() => Signal::Drain,
            _ = self.terminate.recv() => Signal::Abort("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Abort("SIGINT"),
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.user2.recv() => Signal::Leave,
        }
    }
}
