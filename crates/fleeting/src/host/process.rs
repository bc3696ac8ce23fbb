//! A plugin's process: start, handshake, end.

use std::collections::VecDeque;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, sink};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::handshake::{Handshake, LINE_MAX};
use super::{PluginSpec, StartError, log, sys};
use crate::protocol::{APP_VERSION, COOKIE_KEY, COOKIE_VALUE, SOCKET_DIR_KEY, VERSIONS_KEY};

/// Lines of a plugin's log that the error of a failed start quotes.
const LAST_LINES: usize = 5;

/// The last lines of a plugin's log.
#[derive(Debug, Clone, Default)]
pub(super) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl LastLines {
    pub(super) fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line.chars().take(400).collect());
    }

    /// `: it said: ...`, or nothing.
    fn said(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        format!("; it said: {}", lines.iter().cloned().collect::<Vec<_>>().join(" / "))
    }
}

/// A plugin that runs and has said where it listens.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    pid: Option<Pid>,
    pumps: Vec<JoinHandle<()>>,
    /// Holds the socket; removed with the process.
    _directory: TempDir,
}

impl Process {
    /// Starts the plugin and waits for its handshake. A plugin that fails is killed and reaped.
    pub(super) async fn start(spec: &PluginSpec) -> Result<(Self, Handshake), StartError> {
        let path = &spec.executable;
        let directory = tempfile::Builder::new()
            .prefix("muster-plugin-")
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .map_err(|source| StartError::Directory { path: path.clone(), source })?;
        let mut child = command(path, directory.path())
            .args(&spec.arguments)
            .spawn()
            .map_err(|source| StartError::Spawn { path: path.clone(), source })?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let last = LastLines::default();
        let mut pumps = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            pumps.push(tokio::spawn(log::pump(spec.name(), stderr, last.clone())));
        }
        let stdout = child.stdout.take();
        let mut process = Self { child, pid, pumps, _directory: directory };
        match process.handshake(spec, stdout, &last).await {
            Ok(handshake) => Ok((process, handshake)),
            Err(error) => {
                process.kill().await;
                Err(error)
            }
        }
    }

    async fn handshake(
        &mut self,
        spec: &PluginSpec,
        stdout: Option<ChildStdout>,
        last: &LastLines,
    ) -> Result<Handshake, StartError> {
        let path = spec.executable.clone();
        let Some(mut stdout) = stdout else {
            return Err(StartError::Exited { path, status: "no stdout".to_owned(), said: String::new() });
        };
        let line = match tokio::time::timeout(spec.limits.start, first_line(&mut stdout)).await {
            Err(_) => return Err(StartError::Silent { path, limit: spec.limits.start, said: last.said() }),
            Ok(line) => line,
        };
        let Some(line) = line else {
            let status = match tokio::time::timeout(spec.limits.exit, self.child.wait()).await {
                Ok(Ok(status)) => status.to_string(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "it closed its stdout".to_owned(),
            };
            // Its last words are on their way.
            let pumps = futures::future::join_all(self.pumps.drain(..));
            let _ = tokio::time::timeout(spec.limits.exit, pumps).await;
            return Err(StartError::Exited { path, status, said: last.said() });
        };
        let handshake =
            Handshake::parse(&line).map_err(|source| StartError::Handshake { about: about(&path), path, source })?;
        // What else it prints is of no interest, but must be read: a full pipe would stop it.
        self.pumps.push(tokio::spawn(async move {
            let _ = tokio::io::copy(&mut stdout, &mut sink()).await;
        }));
        Ok(handshake)
    }

    /// Its id; 0 once it has ended.
    pub(super) fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Waits until the process ends. Cancel-safe.
    pub(super) async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Waits for its end; kills it where it does not come.
    pub(super) async fn end_within(mut self, limit: Duration) -> bool {
        let by_itself = tokio::time::timeout(limit, self.child.wait()).await.is_ok();
        self.kill().await;
        by_itself
    }

    /// Ends the process and what it started, now.
    pub(super) async fn kill(&mut self) {
        if let Some(pid) = self.pid.take() {
            // The group's id is the child's: nobody else can have it before the child is reaped, and its descendants
            // keep it after.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait().await;
        for pump in self.pumps.drain(..) {
            pump.abort();
        }
    }
}

/// A plugin's process as a host starts it, without arguments so far.
pub(crate) fn command(path: &Path, sockets: &Path) -> Command {
    let mut command = Command::new(path);
    // A stray PLUGIN_CLIENT_CERT or PLUGIN_MULTIPLEX_GRPC would make a plugin speak TLS or yamux (fleeting.md 1.2).
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
        // Of its own, so that nobody else can put a socket there.
        .env(SOCKET_DIR_KEY, sockets)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::bind_to_this_process(&mut command);
    command
}

/// The first line, or what there is of it where it is too long; `None` where the pipe ended before.
pub(crate) async fn first_line(stdout: &mut ChildStdout) -> Option<String> {
    let mut line = Vec::new();
    loop {
        match stdout.read_u8().await {
            Ok(b'\n') => break,
            Ok(byte) => line.push(byte),
            Err(_) if line.is_empty() => return None,
            Err(_) => break,
        }
        if line.len() == LINE_MAX {
            break;
        }
    }
    Some(String::from_utf8_lossy(&line).into_owned())
}

/// What kind of file this is, for the error of a thing that is no plugin.
fn about(path: &Path) -> String {
    let Ok(meta) = path.metadata() else { return "not there any more".to_owned() };
    let mut head = [0; 20];
    let read = std::fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut head)).unwrap_or(0);
    let kind = match head.get(..read).unwrap_or_default() {
        [0x7f, b'E', b'L', b'F', ..] => match head[18] {
            0x3e => "ELF, amd64",
            0xb7 => "ELF, arm64",
            0x28 => "ELF, arm",
            0x03 => "ELF, 386",
            _ => "ELF, another architecture",
        },
        [b'#', b'!', ..] => "a script",
        [b'M', b'Z', ..] => "a Windows program",
        [0xcf, 0xfa, 0xed, 0xfe, ..] => "a macOS program",
        _ => "no known program format",
    };
    format!(
        "{kind}, mode {:o}, owner {}:{}, this system is {}",
        meta.mode() & 0o7777,
        meta.uid(),
        meta.gid(),
        std::env::consts::ARCH
    )
}
