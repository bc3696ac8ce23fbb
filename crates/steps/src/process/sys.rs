//! Watching a process by a file descriptor, and the account of one that has ended: the unsafe calls of this room.
#![expect(
    unsafe_code,
    reason = "AsyncFd leaves it to the caller that the descriptor stays the same, and no crate wraps waitid with its account"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

use super::usage::Usage;

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

/// What a child used that has ended and whose status nobody has taken yet, with all those that it waited for. Its status
/// stays to be taken.
pub(super) fn usage_of_ended(pid: i32) -> Option<Usage> {
    let id = libc::id_t::try_from(pid).ok()?;
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel's call, whose fifth argument the C library hides, writes to the two structures of its own kinds, and
    // zeroes are valid values of both, should it leave one as it is.
    let (result, info, usage) = unsafe {
        let result = libc::syscall(libc::SYS_waitid, libc::P_PID, id, info.as_mut_ptr(), options, usage.as_mut_ptr());
        (result, info.assume_init(), usage.assume_init())
    };
    // SAFETY: of a child that has ended the kernel fills in the process id; else there is the zero from above.
    if result != 0 || unsafe { info.si_pid() } != pid {
        return None;
    }
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap_or_default();
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default()) + Duration::from_micros(micros)
    };
    let kib = u64::try_from(usage.ru_maxrss).unwrap_or_default();
    Some(Usage { cpu: time(usage.ru_utime) + time(usage.ru_stime), memory_bytes: kib.saturating_mul(1024) })
}
