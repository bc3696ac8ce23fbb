//! Windows: a loopback port, a job object for a child and what it starts, Ctrl-C.
#![expect(unsafe_code, reason = "job objects have no safe interface")]

use std::fs::File;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::Path;

use tokio::process::{Child, Command};
use tokio::signal::windows::{CtrlC, ctrl_c};
use tokio_stream::wrappers::TcpListenerStream;
use windows_sys::Win32::System::JobObjects::{AssignProcessToJobObject, CreateJobObjectW, TerminateJobObject};

use super::{Endpoint, loopback};

/// What a process that is ended with its job ends with.
const ENDED: u32 = 1;

/// A loopback port that the host allows.
///
/// # Errors
/// There is none, with the remedy.
pub(crate) async fn listen() -> Result<(TcpListenerStream, Endpoint), String> {
    let [min, max] = ["PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT"].map(|key| std::env::var(key).ok());
    loopback::listen_at(loopback::range(min.as_deref(), max.as_deref())?).await
}

/// Ends a child, and what it started, when it is dropped. What the child starts before [`ProcessGroup::of`] is no part of it.
#[derive(Debug)]
pub(crate) struct ProcessGroup(Option<OwnedHandle>);

impl ProcessGroup {
    /// Nothing has to be said of the command: a job gets a process that runs.
    pub(crate) fn lead(command: &mut Command) -> &mut Command {
        command
    }

    /// The job of a child that was not waited for yet.
    pub(crate) fn of(child: &Child) -> Self {
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

    /// There is no gentle way: it ends now.
    pub(crate) fn terminate(&self) {
        if let Some(job) = &self.0 {
            // SAFETY: the handle is open as long as it is owned.
            unsafe { TerminateJobObject(job.as_raw_handle(), ENDED) };
        }
    }

    /// Ends it now; it is done once.
    pub(crate) fn kill(&mut self) {
        self.terminate();
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

/// Ctrl-C, as a plugin hears it. What else a console says ends the process, as it does without this.
pub(crate) struct Signals(CtrlC);

impl Signals {
    /// It is heard from now on.
    ///
    /// # Errors
    /// The system does not let it be heard.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self(ctrl_c()?))
    }

    /// Nothing says to end. In a console Ctrl-C goes to the host too, which says what to do (P9). Cancel-safe.
    pub(crate) async fn end(&mut self) {
        while self.0.recv().await.is_some() {
            tracing::debug!("an interrupt is left to the host");
        }
        std::future::pending().await
    }
}

/// A process keeps its parent's number here, whatever becomes of it: only the host's streams say that it is gone.
#[derive(Debug)]
pub(crate) struct Parent;

impl Parent {
    /// As it is now.
    pub(crate) fn new() -> Self {
        Self
    }

    /// Not known.
    pub(crate) fn is_gone(&self) -> bool {
        false
    }
}

/// A new file, or an emptied one. Who can read it is said by its folder.
///
/// # Errors
/// It cannot be opened.
pub(crate) fn private(path: &Path) -> std::io::Result<File> {
    File::options().create(true).write(true).truncate(true).open(path)
}
