//! The process group of a child: what it started ends with it.

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

/// Ends a process group when it is dropped. The child was started as its leader ([`ProcessGroup::lead`]).
#[derive(Debug)]
pub(crate) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    /// The command's process leads a group of its own.
    pub(crate) fn lead(command: &mut Command) -> &mut Command {
        command.process_group(0)
    }

    /// The group of a child that was not waited for yet: its id is the child's, so that nobody else can have it before the
    /// child is reaped, and descendants keep it after.
    pub(crate) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Ends it now; it is done once.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.0 = None;
    }

    /// It is left alone from now on.
    pub(crate) fn leave(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}
