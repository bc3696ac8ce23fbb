use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::AWAITED;
use super::sys::{self, Watched};
use super::usage::Usage;

/// Child of this process. Dropping the value kills the child unless its exit status was collected.
#[derive(Debug)]
pub(super) struct Child {
    pid: i32,
    /// `None` means that the system does not permit watching the process.
    watched: Option<Watched>,
    is_reaped: bool,
}

impl Child {
    /// Returns the child `pid`, which the caller has added to [`AWAITED`]. Dropping the value removes the ID.
    pub(super) fn new(pid: i32) -> Self {
        let watched = Watched::open(pid);
        if let Err(error) = &watched {
            tracing::error!(%error, "failed to watch a process");
        }
        Self { pid, watched: watched.ok(), is_reaped: false }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn kill(&self) {
        // The exit status was not collected yet, so the process ID is not reused.
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits until the process has ended, then collects its exit status and resource usage. Cancel-safe.
    pub(super) async fn wait(&mut self) -> io::Result<(ExitStatus, Option<Usage>)> {
        let watched = self.watched.as_ref().ok_or_else(|| io::Error::other("the process cannot be watched"))?;
        watched.ended().await;
        let usage = sys::usage_of_ended(self.pid);
        let pid = Pid::from_raw(self.pid).ok_or(io::ErrorKind::NotFound)?;
        self.is_reaped = true;
        // Does not block, because the process has ended.
        let status = waitpid(Some(pid), WaitOptions::NOHANG)?;
        let (_, status) = status.ok_or_else(|| io::Error::other("the process has no exit status yet"))?;
        Ok((ExitStatus::from_raw(status.as_raw()), usage))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
        }
        // A child that was not reaped is now an orphan, which is reaped at the end of its job.
        AWAITED.lock().remove(&self.pid);
    }
}
