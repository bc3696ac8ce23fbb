//! Watches a process through a file descriptor, and reads the resource usage of an ended process, with unsafe calls.
#![expect(
    unsafe_code,
    reason = "AsyncFd requires the caller to guarantee that the descriptor does not change, and no crate wraps waitid with resource usage"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

use super::usage::Usage;

/// Process watched through a pidfd, which refers to this process even if its ID is reused.
#[derive(Debug)]
pub struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Watches the process `pid`, which may be any process of this machine.
    ///
    /// # Errors
    /// The process does not exist, or the system does not permit watching it.
    pub fn open(pid: i32) -> io::Result<Self> {
        let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
        let fd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
        // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped.
        let fd = unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)?;
        Ok(Self(fd))
    }

    /// Waits until the process has ended. Cancel-safe.
    pub async fn ended(&self) {
        // An error means that the runtime shuts down.
        let _ = self.0.readable().await;
    }

    /// Returns whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.0.get_ref(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(self.0.get_ref(), signal);
    }
}

/// Returns the resource usage of an ended child and its awaited children.
///
/// The exit status of the child is not collected, and must not have been collected before.
pub(super) fn usage_of_ended(pid: i32) -> Option<Usage> {
    let id = libc::id_t::try_from(pid).ok()?;
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes structures of the types that the kernel expects. If it does not write one, the zero bytes
    // are valid. The C library lacks the fifth argument.
    let (result, info, usage) = unsafe {
        let result = libc::syscall(libc::SYS_waitid, libc::P_PID, id, info.as_mut_ptr(), options, usage.as_mut_ptr());
        (result, info.assume_init(), usage.assume_init())
    };
    // SAFETY: the kernel sets the process ID if the child has ended. If not, it is zero.
    if result != 0 || unsafe { info.si_pid() } != pid {
        return None;
    }
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap_or_default();
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or_default()) + Duration::from_micros(micros)
    };
    let kib = u64::try_from(usage.ru_maxrss).unwrap_or_default();
    // The kernel counts I/O in blocks of 512 bytes, independent of the file system.
    let bytes = |blocks: libc::c_long| u64::try_from(blocks).unwrap_or_default().saturating_mul(512);
    Some(Usage {
        processes: 1,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        memory_bytes: kib.saturating_mul(1024),
        read_bytes: bytes(usage.ru_inblock),
        written_bytes: bytes(usage.ru_oublock),
        traffic: None,
    })
}
