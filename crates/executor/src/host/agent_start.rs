//! Finds the agent's process, or starts it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::agent::HostAgent;
use super::{HostEnvironment, HostOptions, user};
use crate::ExecutorError;

/// Text that the agent prints when it listens (`docs/spec/job-execution.md`, section 12.2).
pub const READY_MARKER: &str = "step-runner is listening on socket";
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which an agent exits if no manager is connected, no job runs, and no result waits to be fetched.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const LOG_TAIL_BYTES: u64 = 1000;
/// Time to wait for the lock. A manager holds the lock until its agent listens.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The lock is polled, because a blocking `flock` could not be canceled.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// # Errors
/// [`ExecutorError`], also if the process that listens on the socket is not an agent.
pub(super) async fn find_or_start(environment: &HostEnvironment) -> Result<HostAgent, ExecutorError> {
    if let Some(agent) = find(environment).await? {
        return Ok(agent);
    }
    let HostEnvironment { options, socket, spool, .. } = environment;
    // Held until the agent listens, so that no other manager starts a second agent.
    let _lock = lock(options.state_dir.join("agent.lock")).await?;
    if let Some(agent) = find(environment).await? {
        return Ok(agent);
    }
    let child = start(options, socket, spool).await?;
    let agent = HostAgent::find(environment, child).await?;
    tracing::info!(pid = agent.process.pid(), "agent started");
    Ok(agent)
}

/// `None` means that no agent answers.
async fn find(environment: &HostEnvironment) -> Result<Option<HostAgent>, ExecutorError> {
    match HostAgent::find(environment, None).await {
        Ok(agent) => Ok(Some(agent)),
        Err(ExecutorError::Unreachable(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn lock(path: PathBuf) -> Result<File, ExecutorError> {
    let failed = |source| ExecutorError::File { action: "lock", path: path.clone(), source };
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let file = open(&path, OpenOptions::new().create(true).truncate(false).write(true)).await.map_err(failed)?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => tokio::time::sleep(LOCK_POLL_INTERVAL).await,
            Err(Errno::WOULDBLOCK) => {
                let seconds = LOCK_TIMEOUT.as_secs();
                let message = format!(
                    "another process has held it for {seconds} s; run `fuser` to find that process, and end it"
                );
                return Err(failed(io::Error::new(io::ErrorKind::TimedOut, message)));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// Opens a file for this process's user only. Never blocks, even if a FIFO has replaced the file.
async fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let (own, mut options) = (path.to_owned(), options.mode(0o600).clone());
    Ok(muster_files::run_blocking(path, move || muster_files::open_with(&mut options, &own)).await?)
}

/// Returns the ID of the child process as soon as the agent listens.
async fn start(options: &HostOptions, socket: &Path, spool: &Path) -> Result<Option<u32>, ExecutorError> {
    let log_path = options.state_dir.join("agent.log");
    let failed = |message: String| ExecutorError::Start { message, log: log_path.clone() };
    let log = open(&log_path, OpenOptions::new().create(true).append(true)).await;
    let log = log.map_err(|source| ExecutorError::File { action: "write", path: log_path.clone(), source })?;
    let mut command = Command::from(command(options, socket, spool));
    command.current_dir(user::agent_dir(options)).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    // The agent leaves this session and outlives this process.
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(START_TIMEOUT, wait_ready(&mut child)).await {
        Ok(true) => Ok(child.id()),
        Ok(false) => Err(failed(format!("it exited before it listened: {}", tail(log_path.clone()).await))),
        Err(_) => {
            let killed = child.kill().await;
            tracing::warn!(?killed, "agent killed, because it did not become ready");
            Err(failed(format!(
                "it did not listen within {} s: {}",
                START_TIMEOUT.as_secs(),
                tail(log_path.clone()).await
            )))
        }
    }
}

/// Returns the command that starts the agent, wrapped in `su` if the agent runs as another user.
pub(super) fn command(options: &HostOptions, socket: &Path, spool: &Path) -> std::process::Command {
    let mut agent = std::process::Command::new(&options.executable);
    agent.args(["agent", "serve", "--socket"]).arg(socket).arg("--spool").arg(spool);
    agent.arg("--idle-timeout").arg(IDLE_TIMEOUT.as_secs().to_string());
    if let Some(files) = options.nofile_limit {
        agent.arg("--job-nofile-limit").arg(files.to_string());
    }
    if let Some(pid) = options.exit_with_pid {
        agent.arg("--exit-with-pid").arg(pid.to_string());
    }
    if options.user.is_some() {
        // Jobs run as the user of the agent, and must not send it calls.
        agent.arg("--only-user").arg(geteuid().as_raw().to_string());
    }
    let mut command = match &options.user {
        Some(user) => user::as_user(user, &agent),
        None => agent,
    };
    for name in &options.hidden_variables {
        command.env_remove(name);
    }
    command
}

/// Returns `false` if the output ends before [`READY_MARKER`].
async fn wait_ready(child: &mut Child) -> bool {
    let Some(output) = child.stdout.take() else { return false };
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.contains(READY_MARKER) {
            return true;
        }
    }
    false
}

async fn tail(log: PathBuf) -> String {
    match muster_files::read_tail(log, LOG_TAIL_BYTES).await {
        Ok(text) if text.trim().is_empty() => "it logged nothing".to_owned(),
        Ok(text) => text.trim().to_owned(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lock_times_out_while_another_process_holds_it() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("agent.lock");
        let other = File::create(&path).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        let error = lock(path.clone()).await.unwrap_err().to_string();
        assert!(error.contains("agent.lock") && error.contains("held it for 60 s"), "{error}");
        drop(other);
        lock(path).await.unwrap();
    }
}
