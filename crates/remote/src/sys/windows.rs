//! Windows: a job object for a child and what it starts.
#![expect(unsafe_code, reason = "job objects have no safe interface")]

use std::fs::File;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;

use tokio::process::{Child, Command};
use windows_sys::Win32::System::JobObjects::{AssignProcessToJobObject, CreateJobObjectW, TerminateJobObject};

/// Exit status of processes that are ended with their job object.
const ENDED: u32 = 1;

/// A child process and what it started, which end when this is dropped. What the child starts before [`ProcessGroup::of`] is not
/// part of the group.
#[derive(Debug)]
pub struct ProcessGroup(Option<OwnedHandle>);

impl ProcessGroup {
    /// Changes nothing: a running process is put into a job object.
    pub fn lead(command: &mut Command) -> &mut Command {
        command
    }

    /// Returns the job object of a child that was not waited for yet.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        let Some(process) = child.raw_handle() else { return Self(None) };
        // SAFETY: both pointers may be null: default security, and no name.
        let job = unsafe { CreateJobObjectW(std::ptr::null(), std::ptr::null()) };
        if job.is_null() {
            return Self(None);
        }
        // SAFETY: the handle was made just now, and nobody else closes it.
        let job = unsafe { OwnedHandle::from_raw_handle(job) };
        // SAFETY: both handles are open: `child` has the process's, `job` its own.
        let is_in = unsafe { AssignProcessToJobObject(job.as_raw_handle(), process) } != 0;
        Self(is_in.then_some(job))
    }

    /// Ends the processes now: there is no gentle way.
    pub fn terminate(&self) {
        if let Some(job) = &self.0 {
            // SAFETY: the handle is open as long as it is owned.
            unsafe { TerminateJobObject(job.as_raw_handle(), ENDED) };
        }
    }

    /// Ends the processes now. A second call does nothing.
    pub fn kill(&mut self) {
        self.terminate();
        self.0 = None;
    }

    /// Leaves the processes alone from now on, also when this is dropped.
    pub fn leave(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Opens a new or emptied file. Its folder determines who can read it.
pub(crate) fn private(path: &Path) -> std::io::Result<File> {
    File::options().create(true).write(true).truncate(true).open(path)
}
