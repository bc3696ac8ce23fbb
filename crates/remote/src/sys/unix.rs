use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// A child process and the other processes in its group. Dropping this value kills them.
///
/// The child must lead the group ([`ProcessGroup::lead`]).
#[derive(Debug)]
pub struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// Makes the process of the command the leader of a new group.
    pub fn lead(command: &mut Command) -> &mut Command {
        command.process_group(0)
    }

    /// Returns the group of a child that has not been waited for.
    ///
    /// While a process is in the group, the kernel does not reuse the ID of the group.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Sends SIGTERM to the processes.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Kills the processes. A second call has no effect.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.0 = None;
    }

    /// Keeps the processes running when this value is dropped.
    pub fn detach(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates or truncates a file. Only this user can read a new file; an existing file keeps its permissions.
pub(crate) fn create_private(path: &Path) -> std::io::Result<File> {
    File::options().create(true).write(true).truncate(true).mode(0o600).open(path)
}
