//! An agent of this host whose identity has been verified.
//!
//! The process that listens must run as the user of the jobs, and must be one of these:
//! - a process that runs the executable from which a new agent would be started,
//! - the process that a manager of this state directory recorded (after an upgrade, outdated agents run a replaced
//!   file),
//! - the child process that this manager has just started, or a child of it, if `su` remains as the parent.
//!
//! Any other process gets no job and no signal.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use muster_agent_api::client::AgentConnection;
use muster_files::Limit;
use rustix::process::Uid;
use tokio::net::UnixStream;

use super::HostEnvironment;
use super::process::{FileId, Process, ProcessIdentity};
use crate::ExecutorError;

const RECORD_LIMIT: Limit = Limit { bytes: 4096, remedy: "remove it" };

#[derive(Debug, Clone)]
pub(super) struct HostAgent {
    pub(super) connection: AgentConnection,
    pub(super) process: Process,
}

impl HostAgent {
    /// Connects to the agent of an environment.
    ///
    /// `child` is the process that this manager has just started for the environment, if any.
    ///
    /// # Errors
    /// [`ExecutorError::Unreachable`] if no agent answers, [`ExecutorError::Untrusted`] if another process listens, and
    /// [`ExecutorError::File`] if another user owns the socket's directory or can write to it.
    pub(super) async fn find(environment: &HostEnvironment, child: Option<u32>) -> Result<Self, ExecutorError> {
        let HostEnvironment { socket, user, record, options, .. } = environment;
        check_directory(socket, *user)?;
        let location = socket.display().to_string();
        let stream = UnixStream::connect(socket).await;
        let stream = stream.map_err(|error| ExecutorError::unreachable(&location, error))?;
        let process = Process::from_peer(&stream).map_err(|error| ExecutorError::unreachable(&location, error))?;
        let is_ours = || {
            runs_executable(&process, &options.executable)
                || read_record(record).as_ref() == Some(process.identity())
                || child.is_some_and(|child| process.descends_from(child))
        };
        if process.user() != *user || !is_ours() {
            return Err(ExecutorError::Untrusted {
                socket: socket.clone(),
                pid: process.pid(),
                user: process.user().as_raw(),
            });
        }
        drop(stream);
        let dial = {
            let (socket, process) = (socket.clone(), process.clone());
            move || dial(socket.clone(), process.clone())
        };
        let connection = AgentConnection::open(location, dial).await?;
        write_record(record, process.identity());
        Ok(Self { connection, process })
    }

    /// Returns whether the agent runs the file from which a new agent would be started.
    ///
    /// A replaced file counts as another file, even if its version is the same. If the system does not reveal the file,
    /// only the versions are compared.
    pub(super) fn runs_file(&self, executable: &Path) -> bool {
        let is_same_file = match (self.process.executable(), FileId::from_path(executable)) {
            (Some(running), Some(new)) => running == new,
            _ => true,
        };
        is_same_file && self.connection.identity().version == env!("CARGO_PKG_VERSION")
    }
}

/// Connects to the socket on which `process` listens.
///
/// # Errors
/// An I/O error, also if another process now listens on the socket.
pub(super) async fn dial(socket: impl AsRef<Path>, process: Process) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket).await?;
    if process.is_peer_of(&stream) {
        return Ok(stream);
    }
    let message = format!("process {} no longer listens there", process.pid());
    Err(io::Error::new(io::ErrorKind::ConnectionRefused, message))
}

fn runs_executable(process: &Process, executable: &Path) -> bool {
    process.executable().is_some_and(|running| FileId::from_path(executable) == Some(running))
}

/// Refuses a directory in which another user can replace the socket.
fn check_directory(socket: &Path, user: Uid) -> Result<(), ExecutorError> {
    let directory = socket.parent().unwrap_or(socket);
    let fail =
        |source| ExecutorError::File { action: "use the directory of the socket", path: directory.to_owned(), source };
    let found = match std::fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(fail)?,
    };
    let message = if found.uid() != user.as_raw() {
        format!("it belongs to user {}, and must belong to user {}", found.uid(), user.as_raw())
    } else if found.mode() & 0o022 != 0 {
        let mode = found.mode() & 0o7777;
        format!("its mode is {mode:04o}, which lets other users write to it; run `chmod 700 {}`", directory.display())
    } else {
        return Ok(());
    };
    Err(fail(io::Error::new(io::ErrorKind::PermissionDenied, message)))
}

/// Returns the process that [`write_record`] recorded. `None` means that there is no usable record.
fn read_record(record: &Path) -> Option<ProcessIdentity> {
    // The file may be anything, because jobs that run as the user of this process can replace it.
    let text = muster_files::read_open(muster_files::open(record).ok()?, record, RECORD_LIMIT).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Records the agent's process, so that the manager recognizes it after an upgrade.
fn write_record(record: &Path, process: &ProcessIdentity) {
    if read_record(record).as_ref() == Some(process) {
        return;
    }
    let written = || {
        let text = serde_json::to_vec(process)?;
        let new = record.with_extension("new");
        let _ = std::fs::remove_file(&new);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?.write_all(&text)?;
        std::fs::rename(&new, record)
    };
    if let Err(error) = written() {
        tracing::warn!(%error, file = %record.display(), "failed to record the agent's process");
    }
}

#[cfg(test)]
pub(super) fn record_this_process(record: &Path) {
    write_record(record, &ProcessIdentity::from_pid(rustix::process::getpid()).unwrap());
}

/// Checks the directory of the socket before the first agent is needed.
///
/// # Errors
/// [`ExecutorError::File`] if another user owns the directory or can write to it.
pub(super) fn check_socket_directory(environment: &HostEnvironment) -> Result<(), ExecutorError> {
    check_directory(&environment.socket, environment.user)
}
