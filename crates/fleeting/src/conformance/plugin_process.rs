//! One process of the plugin under test.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{ExitStatus, Output};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_remote::ProcessGroup;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::plan::Plan;
use crate::host::connection::{Connection, Streams, is_transport_failure};
use crate::host::mask::Mask;
use crate::host::process::{command, first_line};
use crate::host::sockets::SocketDirectory;
use crate::host::{Address, Handshake};
use crate::model::ConnectorConfig;
use crate::protocol::group::{InitRequest, InitResponse, Settings};
use muster_job::error_chain;

/// Maximum number of log lines that are stored.
const MAX_LINES: usize = 2_000;
/// Maximum length of a stored line in bytes. A longer line is stored in pieces.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Maximum number of bytes that [`run_command_line`] reads from each of stdout and stderr.
const MAX_OUTPUT_BYTES: u64 = 1024 * 1024;

/// Maximum time to wait until the plugin has accepted the streams of [`Connection::open_streams`].
/// A Go server may delay its response until it has data to send.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(super) enum CallFailure {
    Timeout(Duration),
    /// The process ended, or the connection broke.
    Disconnected(String),
    Error(Box<Status>),
}

impl CallFailure {
    /// Returns a message such as `no response to Update within 60.0 s`.
    pub(super) fn text(&self, call: &str) -> String {
        match self {
            Self::Timeout(timeout) => format!("no response to {call} within {:.1} s", timeout.as_secs_f64()),
            Self::Disconnected(cause) => format!("connection lost during {call}: {cause}"),
            Self::Error(status) => format!("{call} failed: {:?}: {}", status.code(), status.message()),
        }
    }

    pub(super) fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Error(status) if status.code() == Code::Unimplemented)
    }
}

pub(super) struct PluginUnderTest {
    process: Process,
    pub(super) connection: Connection,
    streams: Streams,
    timeout: Duration,
}

pub(super) struct Process {
    child: Child,
    group: ProcessGroup,
    log: Log,
    _directory: SocketDirectory,
}

impl Process {
    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Waits until the process has exited. Returns `None` after `timeout`.
    pub(super) async fn wait_exit(&mut self, timeout: Duration) -> Option<ExitStatus> {
        tokio::time::timeout(timeout, self.child.wait()).await.ok().and_then(Result::ok)
    }

    /// Kills the process and returns the lines that it wrote to stderr.
    pub(super) async fn kill(mut self) -> Vec<String> {
        self.group.kill();
        let _ = self.child.wait().await;
        std::mem::take(&mut self.log.lines())
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end of the log, formatted to be appended to a message.
    fn stderr_tail(&self) -> String {
        let lines = self.lines();
        let last: Vec<String> = lines.iter().rev().take(3).rev().map(|line| line.chars().take(300).collect()).collect();
        if last.is_empty() { String::new() } else { format!("; stderr: {}", last.join(" / ")) }
    }
}

fn plugin_command(plan: &Plan, sockets: &Path, extra: &[&str]) -> Command {
    let mut command = command(&plan.executable, sockets);
    command.args(&plan.arguments).args(extra.iter().map(OsStr::new)).kill_on_drop(true);
    command
}

pub(super) fn exit_text(status: ExitStatus) -> String {
    status.code().map_or_else(|| status.to_string(), |code| code.to_string())
}

/// Runs the plugin with command-line arguments. Returns `None` if it does not exit in time.
pub(super) async fn run_command_line(plan: &Plan, arguments: &[&str]) -> Result<Option<Output>, String> {
    let directory = socket_directory()?;
    let mut command = plugin_command(plan, directory.path(), arguments);
    // The plugin is run as from an operator's shell, in which these variables are not set.
    for key in [crate::protocol::COOKIE_KEY, crate::protocol::VERSIONS_KEY, "PLUGIN_MIN_PORT", "PLUGIN_MAX_PORT"] {
        command.env_remove(key);
    }
    let mut child = command.spawn().map_err(|error| format!("failed to start: {error}"))?;
    let mut group = ProcessGroup::of(&child);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let (stdout, stderr, status) = tokio::join!(read_output(stdout), read_output(stderr), child.wait());
        status.map(|status| Output { status, stdout, stderr })
    };
    let outcome = tokio::time::timeout(plan.exit_timeout, work).await;
    match outcome {
        Ok(Ok(output)) => Ok(Some(output)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            group.kill();
            let _ = child.wait().await;
            Ok(None)
        }
    }
}

async fn read_output(pipe: Option<impl tokio::io::AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // After an error, the data read so far is returned.
        let _ = pipe.take(MAX_OUTPUT_BYTES).read_to_end(&mut bytes).await;
    }
    bytes
}

fn socket_directory() -> Result<SocketDirectory, String> {
    SocketDirectory::new()
        .map_err(|error| format!("failed to create a directory for the plugin's socket: {}", error_chain(&error)))
}

impl PluginUnderTest {
    /// Starts the plugin, reads its handshake and connects. `configure` may change environment variables.
    pub(super) async fn start(
        plan: &Plan,
        extra: &[&str],
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self, String> {
        let directory = socket_directory()?;
        let mut command = plugin_command(plan, directory.path(), extra);
        configure(&mut command);
        let mut child = command.spawn().map_err(|error| format!("failed to start: {error}"))?;
        let mut group = ProcessGroup::of(&child);
        let log = Log::default();
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(store_lines(stderr, log.clone()));
        }
        match connect(plan, &mut child, &log).await {
            Ok(connection) => {
                let streams = connection.open_streams("plugin", Mask::default());
                let process = Process { child, group, log, _directory: directory };
                Ok(Self { process, connection, streams, timeout: plan.call_timeout })
            }
            Err(error) => {
                group.kill();
                let _ = child.wait().await;
                Err(format!("{error}{}", log.stderr_tail()))
            }
        }
    }

    pub(super) async fn call<T>(&mut self, work: impl Future<Output = Result<T, Status>>) -> Result<T, CallFailure> {
        let outcome = tokio::time::timeout(self.timeout, work).await;
        match outcome {
            Err(_) => Err(CallFailure::Timeout(self.timeout)),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(status)) if is_transport_failure(&status) => {
                // The exit status of the process explains the error better, but may take a moment.
                let exit = tokio::time::timeout(Duration::from_millis(500), self.process.child.wait()).await;
                let cause = match exit {
                    Ok(Ok(status)) => format!("the plugin exited ({status}){}", self.process.log.stderr_tail()),
                    _ => error_chain(&status),
                };
                Err(CallFailure::Disconnected(cause))
            }
            Ok(Err(status)) => Err(CallFailure::Error(Box::new(status))),
        }
    }

    pub(super) async fn init(
        &mut self,
        config: Vec<u8>,
        connector: Option<&ConnectorConfig>,
    ) -> Result<InitResponse, CallFailure> {
        let settings = connector.map(|connector| Settings { connector_config: Some(connector.to_wire()) });
        let mut group = self.connection.group();
        let answer = self.call(async move { group.init(InitRequest { config, settings }).await }).await;
        answer.map(tonic::Response::into_inner)
    }

    pub(super) async fn init_as_planned(&mut self, plan: &Plan) -> Result<InitResponse, CallFailure> {
        self.init(config_bytes(&plan.config), Some(&plan.connector)).await
    }

    pub(super) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Closes the connection and returns the process.
    /// Waits first until the plugin has accepted the streams, because the plugin detects the exit of its host by the
    /// end of these streams.
    pub(super) async fn disconnect(mut self) -> Process {
        let _ = tokio::time::timeout(OPEN_TIMEOUT.min(self.timeout), self.streams.wait_opened()).await;
        self.process
    }

    pub(super) async fn kill(self) -> Vec<String> {
        self.process.kill().await
    }
}

pub(super) fn config_bytes(config: &Value) -> Vec<u8> {
    config.to_string().into_bytes()
}

async fn connect(plan: &Plan, child: &mut Child, log: &Log) -> Result<Connection, String> {
    let Some(mut stdout) = child.stdout.take() else { return Err("the process has no stdout".to_owned()) };
    let line = tokio::time::timeout(plan.call_timeout, first_line(&mut stdout)).await;
    let line = line.map_err(|_| format!("no handshake within {:.1} s", plan.call_timeout.as_secs_f64()))?;
    let Some(line) = line else {
        let exit = tokio::time::timeout(plan.exit_timeout, child.wait()).await;
        // The lines that the plugin logged may not have been read from the pipe yet.
        let _ = tokio::time::timeout(Duration::from_millis(500), wait_for_log(log)).await;
        return Err(match exit {
            Ok(Ok(status)) => format!("exited before the handshake ({status})"),
            _ => "closed stdout before the handshake".to_owned(),
        });
    };
    // The rest of stdout is read and discarded, because the plugin would block on a full pipe.
    let drain: JoinHandle<_> = tokio::spawn(async move { tokio::io::copy(&mut stdout, &mut tokio::io::sink()).await });
    let Handshake { address } = Handshake::parse(&line).map_err(|error| {
        drain.abort();
        error.to_string()
    })?;
    let address_text = match &address {
        Address::Unix(path) => path.display().to_string(),
        Address::Tcp(address) => address.clone(),
    };
    match tokio::time::timeout(plan.call_timeout, Connection::open(&address)).await {
        Ok(opened) => opened
            .map_err(|error| error_chain(&error))
            .map_err(|cause| format!("failed to connect to {address_text}: {cause}")),
        Err(_) => Err(format!("no connection to {address_text} within {:.1} s", plan.call_timeout.as_secs_f64())),
    }
}

async fn wait_for_log(log: &Log) {
    while log.lines().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn store_lines(stderr: impl tokio::io::AsyncRead + Unpin, log: Log) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut stderr).take(MAX_LINE_BYTES as u64);
        match bounded.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let mut lines = log.lines();
        if lines.len() < MAX_LINES {
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    }
}
