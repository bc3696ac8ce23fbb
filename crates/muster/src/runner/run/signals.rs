//! Signals of `run`, except SIGUSR1, which [`crate::observe`] handles.

use std::io;

use tokio::signal::unix::{self, SignalKind, signal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGQUIT: request no more jobs, and exit after the running jobs.
    Drain,
    /// SIGTERM or SIGINT, with its name: cancel all jobs, and exit.
    Abort(&'static str),
    /// SIGHUP: reload the configuration.
    Reload,
    /// SIGUSR2: exit, and leave the running jobs to the next start. For upgrades in place; not in gitlab-runner.
    Detach,
}

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

    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.quit.recv() => Signal::Drain,
            _ = self.terminate.recv() => Signal::Abort("SIGTERM"),
            _ = self.interrupt.recv() => Signal::Abort("SIGINT"),
            _ = self.hangup.recv() => Signal::Reload,
            _ = self.user2.recv() => Signal::Detach,
        }
    }
}
