//! Watching a process by a file descriptor. The one unsafe call of this room.
#![expect(unsafe_code, reason = "AsyncFd leaves it to the caller that the descriptor stays the same")]

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

/// A process, watched by a pidfd: it stands for this process even after its id was given to another.
#[derive(Debug)]
pub struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Watches the process `pid`, any process of this host.
    ///
    /// # Errors
    /// `NotFound` or the system's own words where there is no such process.
    pub fn open(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let fd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` is one descriptor from its creation until it is dropped, and is open all that time.
        let fd = unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)?;
        Ok(Self(fd))
    }

    /// Waits until the process has ended. Cancel-safe.
    pub async fn ended(&self) {
        // An error means that the runtime is going down.
        let _ = self.0.readable().await;
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.0.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Sends a signal; none arrives at a process that has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.0.get_ref(), signal);
    }
}
