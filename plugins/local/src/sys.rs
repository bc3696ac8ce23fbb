//! Waits for the exit of processes that are not children of this process.
#![expect(unsafe_code, reason = "AsyncFd requires that its descriptor stays the same")]

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(crate) struct Process(AsyncFd<OwnedFd>);

impl Process {
    /// `None` if the process does not exist.
    pub(crate) fn open(pid: Pid) -> io::Result<Option<Self>> {
        let fd = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the descriptor is owned, and stays the same until it is dropped together with the registration.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        fd.map(|fd| Some(Self(fd))).map_err(|error| error.into_parts().1)
    }

    /// Cancel-safe.
    pub(crate) async fn wait_exit(&self) {
        let _ = self.0.readable().await;
    }
}
