//! The process that listens on an agent's socket, as the kernel identifies it.
//!
//! The kernel records which process listens (`SO_PEERCRED`), and a pidfd refers to that process even if its ID is
//! reused.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno as NixErrno;
use nix::sys::socket::{getsockopt, sockopt::PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, Uid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;

/// Maximum number of bytes that are read from a file in `/proc`.
const MAX_PROC_BYTES: u64 = 4096;
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// `None` means that the file cannot be read.
    pub(super) fn from_path(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self { device: file.dev(), inode: file.ino() })
    }
}

/// Unique identity of a process: process IDs are reused, but not with the same start time in the same boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    boot: String,
    pid: i32,
    /// In clock ticks since boot.
    started: u64,
    /// `None` means that the system does not reveal the file.
    executable: Option<FileId>,
}

impl ProcessIdentity {
    pub(super) fn from_pid(pid: Pid) -> io::Result<Self> {
        let pid = pid.as_raw_nonzero().get();
        let unreadable =
            || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat is not a valid process status"));
        let started = stat_field(pid, START_FIELD).and_then(|field| field.parse().ok()).ok_or_else(unreadable)?;
        let boot = read_proc("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { boot, pid, started, executable: FileId::from_path(Path::new(&format!("/proc/{pid}/exe"))) })
    }
}

// Indexes of fields in `/proc/<pid>/stat` after the name.
const PARENT_FIELD: usize = 1;
const START_FIELD: usize = 19;

fn stat_field(pid: i32, field: usize) -> Option<String> {
    let stat = read_proc(&format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses, and can itself contain parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(field).map(str::to_owned)
}

fn read_proc(path: &str) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_PROC_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[derive(Debug, Clone)]
pub(super) struct Process {
    identity: ProcessIdentity,
    user: Uid,
    /// The pidfd.
    ///
    /// `None` if the kernel has no pidfds (before Linux 5.3) or forbids them. The process then gets no signals.
    handle: Option<Arc<OwnedFd>>,
}

impl Process {
    /// Returns the process at the other end of a connection.
    ///
    /// # Errors
    /// An I/O error, also if the process has ended or is in another PID namespace.
    pub(super) fn from_peer(stream: &UnixStream) -> io::Result<Self> {
        Self::from_peer_with(stream, getsockopt(stream, PeerPidfd))
    }

    fn from_peer_with(stream: &UnixStream, handle: nix::Result<OwnedFd>) -> io::Result<Self> {
        let peer = stream.peer_cred()?;
        let pid = peer.pid().filter(|pid| *pid > 0).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process is in another PID namespace"))?;
        let handle = match handle {
            Ok(handle) => Some(handle),
            // Kernels before Linux 6.5 lack the option. If the ID was reused meanwhile, the checks apply to the process
            // that has it now.
            Err(NixErrno::ENOPROTOOPT | NixErrno::EOPNOTSUPP) => match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => Some(handle),
                Err(Errno::NOSYS | Errno::PERM) => None,
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        };
        let identity = ProcessIdentity::from_pid(pid)?;
        let process = Self { identity, user: Uid::from_raw(peer.uid()), handle: handle.map(Arc::new) };
        // If the process has not ended, it still has its ID, so the files in `/proc` were its own.
        if process.has_ended() { Err(io::Error::other("the process has ended")) } else { Ok(process) }
    }

    pub(super) fn pid(&self) -> i32 {
        self.identity.pid
    }

    pub(super) fn user(&self) -> Uid {
        self.user
    }

    pub(super) fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    pub(super) fn executable(&self) -> Option<FileId> {
        self.identity.executable
    }

    /// Returns whether the process is `child` or a child of it, because `su` may remain as the parent.
    pub(super) fn descends_from(&self, child: u32) -> bool {
        let is_child = |pid: i32| u32::try_from(pid).is_ok_and(|pid| pid == child);
        is_child(self.identity.pid)
            || stat_field(self.identity.pid, PARENT_FIELD).and_then(|parent| parent.parse().ok()).is_some_and(is_child)
    }

    pub(super) fn is_peer_of(&self, stream: &UnixStream) -> bool {
        stream.peer_cred().is_ok_and(|peer| peer.pid() == Some(self.identity.pid)) && !self.has_ended()
    }

    pub(super) fn has_ended(&self) -> bool {
        match &self.handle {
            Some(handle) => wait(handle, &NO_WAIT).unwrap_or(true),
            None => Pid::from_raw(self.identity.pid)
                .map(ProcessIdentity::from_pid)
                .is_none_or(|now| !now.is_ok_and(|now| now == self.identity)),
        }
    }

    /// Waits until the process has ended. Returns `false` on timeout. Blocks.
    ///
    /// # Errors
    /// An I/O error, also if there is no pidfd.
    pub(super) fn wait(&self, timeout: &Timespec) -> io::Result<bool> {
        self.handle().and_then(|handle| wait(handle, timeout))
    }

    /// Sends a signal. Does nothing if the process has ended, even if its ID was reused.
    ///
    /// # Errors
    /// An I/O error, also if there is no pidfd.
    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(self.handle()?, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn handle(&self) -> io::Result<&OwnedFd> {
        let missing = || {
            io::Error::other(
                "the process cannot be ended safely, because pidfds are not available; use Linux 5.3 or later, and allow \
                 the system call `pidfd_open`",
            )
        };
        self.handle.as_deref().ok_or_else(missing)
    }
}

fn wait(handle: &OwnedFd, timeout: &Timespec) -> io::Result<bool> {
    let ended = retry_on_intr(|| poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(timeout)))?;
    Ok(ended > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    const LISTEN: &str = "import socket, sys, time
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()
print(flush=True)
time.sleep(600)";

    #[tokio::test]
    async fn listening_process_is_identified_and_ended() {
        identifies_and_ends(Process::from_peer).await;
    }

    #[tokio::test]
    async fn pidfd_is_opened_by_id_if_the_peer_option_is_missing() {
        identifies_and_ends(|stream| Process::from_peer_with(stream, Err(NixErrno::ENOPROTOOPT))).await;
    }

    async fn identifies_and_ends(open: impl Fn(&UnixStream) -> io::Result<Process>) {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("socket");
        let mut python = Command::new("python3");
        python.args(["-c", LISTEN]).arg(&socket).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let mut ready_line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready_line).unwrap();

        let stream = UnixStream::connect(&socket).await.unwrap();
        let process = open(&stream).unwrap();
        assert_eq!(u32::try_from(process.pid()).unwrap(), child.id());
        assert_eq!(process.user(), rustix::process::geteuid());
        let executable = FileId::from_path(Path::new(&format!("/proc/{}/exe", child.id())));
        assert!(executable.is_some() && process.executable() == executable);
        assert!(process.descends_from(child.id()) && process.descends_from(std::process::id()));
        assert!(!process.descends_from(u32::MAX));
        assert!(process.is_peer_of(&stream) && !process.has_ended());

        process.signal(Signal::TERM).unwrap();
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert!(process.wait(&limit).unwrap(), "the process must end after its signal");
        assert!(process.has_ended() && !process.is_peer_of(&stream));
        child.wait().unwrap();
        // Another process may have the ID now, and must not get the signal.
        process.signal(Signal::KILL).unwrap();
        open(&stream).unwrap_err();
    }
}
