//! Starts a plugin's process, reads its handshake and stops the process.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_remote::ProcessGroup;
use tokio::io::{AsyncReadExt, sink};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::handshake::{Handshake, MAX_LINE_BYTES};
use super::mask::Mask;
use super::sockets::SocketDirectory;
use super::{PluginSpec, StartError, log, sys};
use crate::protocol::{APP_VERSION, COOKIE_KEY, COOKIE_VALUE, SOCKET_DIR_KEY, VERSIONS_KEY};

/// Time to read the rest of the log of a process that has ended.
const STDERR_DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of log lines that the message about a failed start or an exit quotes.
const MAX_TAIL_LINES: usize = 5;

/// Last lines of a plugin's log. After a panic, the panic message and the lines that follow it.
#[derive(Debug, Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<TailLines>>);

#[derive(Debug, Default)]
struct TailLines {
    lines: VecDeque<String>,
    panicked: bool,
}

impl StderrTail {
    pub(super) fn push(&self, line: &str) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_panic =
            line.starts_with("panic: ") || line.starts_with("fatal error: ") || line.contains(" panicked at ");
        if is_panic && !tail.panicked {
            tail.panicked = true;
            tail.lines.clear();
        }
        if tail.lines.len() == MAX_TAIL_LINES {
            if tail.panicked {
                return;
            }
            tail.lines.pop_front();
        }
        tail.lines.push_back(line.chars().take(400).collect());
    }

    /// Returns `; stderr: ...`, or an empty text if nothing was logged.
    pub(super) fn quoted(&self) -> String {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.lines.is_empty() {
            return String::new();
        }
        format!("; stderr: {}", tail.lines.iter().cloned().collect::<Vec<_>>().join(" / "))
    }
}

/// A running plugin that has completed the handshake.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    group: ProcessGroup,
    pumps: Vec<JoinHandle<()>>,
    stderr_tail: StderrTail,
    /// Directory of the socket. Removed with the process.
    _directory: SocketDirectory,
}

impl Process {
    /// Starts the plugin and waits for its handshake.
    /// If the handshake fails, the process is killed and reaped.
    pub(super) async fn start(spec: &PluginSpec) -> Result<(Self, Handshake), StartError> {
        let path = &spec.executable;
        let directory =
            SocketDirectory::new().map_err(|source| StartError::Directory { path: path.clone(), source })?;
        let mut child = command(path, directory.path())
            .args(&spec.arguments)
            .spawn()
            .map_err(|source| StartError::Spawn { path: path.clone(), source })?;
        let group = ProcessGroup::of(&child);
        let stderr_tail = StderrTail::default();
        let mut pumps = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            pumps.push(tokio::spawn(log::pump(
                spec.name(),
                stderr,
                stderr_tail.clone(),
                spec.meter.clone(),
                Mask::from_spec(spec),
            )));
        }
        let stdout = child.stdout.take();
        let mut process = Self { child, group, pumps, stderr_tail, _directory: directory };
        match process.handshake(spec, stdout).await {
            Ok(handshake) => Ok((process, handshake)),
            Err(error) => {
                process.kill().await;
                Err(error)
            }
        }
    }

    async fn handshake(&mut self, spec: &PluginSpec, stdout: Option<ChildStdout>) -> Result<Handshake, StartError> {
        let path = spec.executable.clone();
        let Some(mut stdout) = stdout else {
            return Err(StartError::Exited { path, status: "no stdout".to_owned(), stderr: String::new() });
        };
        let line = match tokio::time::timeout(spec.timeouts.start, first_line(&mut stdout)).await {
            Err(_) => {
                return Err(StartError::HandshakeTimeout {
                    path,
                    timeout: spec.timeouts.start,
                    stderr: self.stderr_tail.quoted(),
                });
            }
            Ok(line) => line,
        };
        let Some(line) = line else {
            let timeout = spec.timeouts.exit;
            let status = match tokio::time::timeout(timeout, self.child.wait()).await {
                Ok(Ok(status)) => status.to_string(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => return Err(StartError::ClosedStdout { path, timeout, stderr: self.stderr_tail.quoted() }),
            };
            let stderr = self.final_stderr().await;
            return Err(StartError::Exited { path, status, stderr });
        };
        let handshake = Handshake::parse(&line).map_err(|source| StartError::Handshake {
            file: describe_file(&path),
            path,
            source,
        })?;
        // The rest of stdout is read and discarded, because the plugin would block on a full pipe.
        self.pumps.push(tokio::spawn(async move {
            let _ = tokio::io::copy(&mut stdout, &mut sink()).await;
        }));
        Ok(handshake)
    }

    /// Returns the end of the log of a process that has ended, formatted to be appended to a message.
    /// Waits up to [`STDERR_DRAIN_TIMEOUT`] for output that is still in the pipe.
    pub(super) async fn final_stderr(&mut self) -> String {
        let read = futures::future::join_all(&mut self.pumps);
        // Child processes of the plugin may keep the pipes open.
        if tokio::time::timeout(STDERR_DRAIN_TIMEOUT, read).await.is_ok() {
            self.pumps.clear();
        }
        self.stderr_tail.quoted()
    }

    /// Returns the process ID, or 0 if the process has ended.
    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Waits until the process ends. Cancel-safe.
    pub(super) async fn wait_exit(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits until the process exits and returns true, or kills it after `timeout` and returns false.
    /// In both cases, the rest of the process group is killed.
    pub(super) async fn wait_or_kill(mut self, timeout: Duration) -> bool {
        let exited = tokio::time::timeout(timeout, self.child.wait()).await.is_ok();
        self.kill().await;
        exited
    }

    pub(super) async fn kill(&mut self) {
        self.group.kill();
        let _ = self.child.wait().await;
    }
}

/// Ends the tasks that read output. Dropping the process group kills its processes.
impl Drop for Process {
    fn drop(&mut self) {
        for pump in self.pumps.drain(..) {
            pump.abort();
        }
    }
}

/// Returns the command that starts a plugin, without its arguments.
pub(crate) fn command(path: &Path, sockets: &Path) -> Command {
    let mut command = Command::new(path);
    // PLUGIN_CLIENT_CERT or PLUGIN_MULTIPLEX_GRPC would make a plugin use TLS or yamux (docs/spec/fleeting.md, section 1.2).
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("PLUGIN_") {
            command.env_remove(key);
        }
    }
    command
        .env(COOKIE_KEY, COOKIE_VALUE)
        .env(VERSIONS_KEY, APP_VERSION)
        .env("PLUGIN_MIN_PORT", "10000")
        .env("PLUGIN_MAX_PORT", "25000")
        .env(SOCKET_DIR_KEY, sockets)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::bind_to_this_process(&mut command);
    command
}

/// Reads the first line, at most [`MAX_LINE_BYTES`] bytes of it.
/// Returns `None` if the pipe closed before the first byte.
pub(crate) async fn first_line(stdout: &mut ChildStdout) -> Option<String> {
    let mut line = Vec::new();
    loop {
        match stdout.read_u8().await {
            Ok(b'\n') => break,
            Ok(byte) => line.push(byte),
            Err(_) if line.is_empty() => return None,
            Err(_) => break,
        }
        if line.len() == MAX_LINE_BYTES {
            break;
        }
    }
    Some(String::from_utf8_lossy(&line).into_owned())
}

fn describe_file(path: &Path) -> String {
    let Ok(meta) = path.metadata() else { return "the file was deleted".to_owned() };
    let mut head = [0; 20];
    let read = std::fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut head)).unwrap_or(0);
    let kind = match head.get(..read).unwrap_or_default() {
        [0x7f, b'E', b'L', b'F', rest @ ..] => match rest.get(14) {
            Some(0x3e) => "ELF, amd64",
            Some(0xb7) => "ELF, arm64",
            Some(0x28) => "ELF, arm",
            Some(0x03) => "ELF, 386",
            _ => "ELF, another architecture",
        },
        [b'#', b'!', ..] => "a script",
        [b'M', b'Z', ..] => "a Windows program",
        [0xcf, 0xfa, 0xed, 0xfe, ..] => "a macOS program",
        _ => "an unknown file format",
    };
    format!(
        "{kind}, mode {:o}, owner {}:{}, this system is {}",
        meta.mode() & 0o7777,
        meta.uid(),
        meta.gid(),
        std::env::consts::ARCH
    )
}
