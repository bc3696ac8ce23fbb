//! Windows: job objects.
#![expect(unsafe_code, reason = "job objects have no safe interface")]

use std::fs::File;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;

use tokio::process::{Child, Command};
use windows_sys::Win32::System::JobObjects::{AssignProcessToJobObject, CreateJobObjectW, TerminateJobObject};

/// Exit status of processes that are terminated with their job object.
const TERMINATED_STATUS: u32 = 1;

/// A child process and its descendants. Dropping this value terminates them.
///
/// Excludes processes that the child started before [`ProcessGroup::of`]. If Windows refuses the job object, nothing is
/// terminated.
#[derive(Debug)]
pub struct ProcessGroup(Option<OwnedHandle>);

impl ProcessGroup {
    /// Does nothing on Windows, where [`ProcessGroup::of`] creates the group.
    pub fn lead(command: &mut Command) -> &mut Command {
        command
    }

    /// Assigns a child to a new job object. Must be called before the child is waited for.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        let Some(process) = child.raw_handle() else { return Self(None) };
        // SAFETY: both pointers may be null, for default security and no name.
        let job = unsafe { CreateJobObjectW(std::ptr::null(), std::ptr::null()) };
        if job.is_null() {
            return Self(None);
        }
        // SAFETY: the handle was just created, and nothing else closes it.
        let job = unsafe { OwnedHandle::from_raw_handle(job) };
        // SAFETY: both handles are open: `child` owns the process handle, `job` its own.
        let is_assigned = unsafe { AssignProcessToJobObject(job.as_raw_handle(), process) } != 0;
        Self(is_assigned.then_some(job))
    }

    /// Terminates the processes immediately, because Windows has no graceful way.
    pub fn terminate(&self) {
        if let Some(job) = &self.0 {
            // SAFETY: the handle is open as long as it is owned.
            unsafe { TerminateJobObject(job.as_raw_handle(), TERMINATED_STATUS) };
        }
    }

    /// Terminates the processes. A second call has no effect.
    pub fn kill(&mut self) {
        self.terminate();
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

/// Creates or truncates a file. Its directory determines who can read it.
pub(crate) fn create_private(path: &Path) -> std::io::Result<File> {
    File::options().create(true).write(true).truncate(true).open(path)
}
