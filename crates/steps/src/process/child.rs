//! A process that was started and whose status somebody takes.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::AWAITED;
use super::sys::{self, Watched};
use super::usage::Usage;

/// A child of this process. Dropped before its end was seen, it is killed.
#[derive(Debug)]
pub(super) struct Child {
    pid: i32,
    /// `None` if the system does not let it be watched.
    watched: Option<Watched>,
    is_reaped: bool,
}

impl Child {
    /// The child `pid`, which is in [`AWAITED`] as long as this lives.
    pub(super) fn new(pid: i32) -> Self {
        let watched = Watched::open(pid);
        if let Err(error) = &watched {
            tracing::error!(%error, "a process that was started cannot be watched");
        }
        Self { pid, watched: watched.ok(), is_reaped: false }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn kill(&self) {
        // Its status was not taken, so that its id cannot be another's.
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits for the end, then takes the account, then the status. Cancel-safe.
    pub(super) async fn wait(&mut self) -> io::Result<(ExitStatus, Option<Usage>)> {
        let watched = self.watched.as_ref().ok_or_else(|| io::Error::other("it cannot be watched"))?;
        watched.ended().await;
        let usage = sys::usage_of_ended(self.pid);
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::NotFound)?;
        self.is_reaped = true;
        // It has ended: this does not wait.
        let status = waitpid(Some(pid), WaitOptions::NOHANG)?;
        let (_, status) = status.ok_or_else(|| io::Error::other("its status is not there yet"))?;
        Ok((ExitStatus::from_raw(status.as_raw()), usage))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
        }
        // From here on it is an orphan like others, which the end of its job reaps.
        AWAITED.lock().remove(&self.pid);
    }
}
