//! Sends the agent's executable to a machine, and opens a stream to the agent there.

use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::model::Platform;
use muster_job::error_chain;
use muster_remote::{Exit, RemoteCommand, Session, Stream};
use tokio::io::AsyncReadExt;

use super::agents::Agents;
use super::error::DeployError;
use super::excerpt::Excerpt;
use super::executable::Executable;
use super::shell::{self, ABSENT, ANSWER_PREFIX, CONNECTED, FAILED, OUTDATED, PLACED};

/// Maximum time to wait for the answer. Long enough for a new agent, which reads its spool before it answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum length of a line that is read.
const MAX_LINE_BYTES: usize = 8 * 1024;
/// Maximum number of lines that are read. A profile may print lines before the answer.
const MAX_LINES: usize = 100;

pub(super) struct AgentStream {
    pub(super) stream: Box<dyn Stream>,
    /// Home directory on the machine.
    pub(super) home: PathBuf,
    /// Whether the agent runs another executable and still has jobs.
    ///
    /// After its last job, the next stream leads to a new agent.
    pub(super) is_outdated: bool,
}

/// Returns a stream to the machine's agent, and the platform of the machine.
///
/// Sends the executable if it is missing, and starts the agent if none runs. `platform` is the platform of the machine
/// when it was last reached; `None` means the manager's platform. If the machine reports another platform, the agent
/// for that platform is used.
///
/// # Errors
/// [`DeployError`] if there is no agent for the machine, or if the agent cannot be sent or started.
pub(super) async fn deploy_agent(
    session: &dyn Session,
    agents: &Agents,
    platform: Option<Platform>,
) -> Result<(AgentStream, Platform), DeployError> {
    let mut platform = platform.unwrap_or_else(Platform::this);
    let mut executable = agents.executable_for(&platform)?;
    let (mut hash, mut command) = hash_and_relay_command(&executable).await?;
    match connect(session, &command).await? {
        ConnectAnswer::Connected(stream) => return Ok((stream, platform)),
        ConnectAnswer::Absent(Some(reported)) if reported != platform => {
            platform = reported;
            let unsupported = |source| DeployError::UnsupportedPlatform { platform: platform.clone(), source };
            executable = agents.executable_for(&platform).map_err(unsupported)?;
            (hash, command) = hash_and_relay_command(&executable).await?;
            if let ConnectAnswer::Connected(stream) = connect(session, &command).await? {
                return Ok((stream, platform));
            }
        }
        ConnectAnswer::Absent(_) => {}
    }
    tokio::time::timeout(TRANSFER_TIMEOUT, transfer(session, &executable, &hash))
        .await
        .map_err(|_| DeployError::TransferTimeout(TRANSFER_TIMEOUT))??;
    match connect(session, &command).await? {
        ConnectAnswer::Connected(stream) => Ok((stream, platform)),
        ConnectAnswer::Absent(_) => Err(DeployError::NotExecutable),
    }
}

async fn hash_and_relay_command(executable: &Executable) -> Result<(String, String), DeployError> {
    let failed = |source| DeployError::Executable { path: executable.path().to_owned(), source };
    let identity = executable.identity().await.map_err(failed)?;
    Ok((identity.hash.clone(), shell::relay_command(identity, &executable.path().to_string_lossy())))
}

enum ConnectAnswer {
    Connected(AgentStream),
    /// The executable is missing. Contains the platform of the machine, if it is known.
    Absent(Option<Platform>),
}

async fn connect(session: &dyn Session, command: &str) -> Result<ConnectAnswer, DeployError> {
    let connecting = async {
        let mut stream = session.dial_command(command).await?;
        let answer = read_answer(&mut *stream).await?;
        if let Some(machine) = answer.strip_prefix(ABSENT) {
            return Ok(ConnectAnswer::Absent(Platform::from_uname(machine)));
        }
        for (prefix, is_outdated) in [(OUTDATED, true), (CONNECTED, false)] {
            if let Some(home) = answer.strip_prefix(prefix) {
                return Ok(ConnectAnswer::Connected(AgentStream { stream, home: PathBuf::from(home), is_outdated }));
            }
        }
        let message = answer.strip_prefix(FAILED).map(str::to_owned);
        Err(DeployError::Relay(message.unwrap_or_else(|| format!("unexpected answer {answer:?}"))))
    };
    let timed_out = |_| Err(DeployError::NoAnswer(ANSWER_TIMEOUT));
    tokio::time::timeout(ANSWER_TIMEOUT, connecting).await.unwrap_or_else(timed_out)
}

/// Returns the answer without [`ANSWER_PREFIX`], and reads nothing after it.
async fn read_answer(stream: &mut dyn Stream) -> Result<String, DeployError> {
    let mut last = String::new();
    for _ in 0..MAX_LINES {
        let mut line = Vec::new();
        loop {
            match stream.read_u8().await {
                Ok(b'\n') => break,
                Ok(byte) if line.len() < MAX_LINE_BYTES => line.push(byte),
                Ok(_) => return Err(DeployError::TooMuchOutput(String::new())),
                Err(_) if last.trim().is_empty() => {
                    let needed = "the machine needs sh, sha256sum and a home directory";
                    return Err(DeployError::ShellExited(needed.to_owned()));
                }
                Err(_) => return Err(DeployError::ShellExited(last)),
            }
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        if let Some(answer) = line.strip_prefix(ANSWER_PREFIX) {
            return Ok(answer.trim_end().to_owned());
        }
        last = line;
    }
    Err(DeployError::TooMuchOutput(last))
}

async fn transfer(session: &dyn Session, executable: &Executable, hash: &str) -> Result<(), DeployError> {
    let mut compressed = executable.compressed();
    let (mut output, mut errors) = (Excerpt::default(), Excerpt::default());
    let command = shell::install_command(hash);
    let run = RemoteCommand {
        stdin: Some(&mut compressed),
        stdout: Some(&mut output),
        stderr: Some(&mut errors),
        ..RemoteCommand::new(&command)
    };
    let outcome = session.run(run).await;
    let reason = match outcome {
        _ if output.exceeded_limit() => format!("the machine's shell printed more than 1 MiB: {output}"),
        _ if errors.exceeded_limit() => format!("the machine's shell printed more than 1 MiB of errors: {errors}"),
        Err(error) => error_chain(&error),
        Ok(outcome) => {
            let is_placed = |line: &str| line.strip_prefix(ANSWER_PREFIX) == Some(PLACED);
            if outcome.exit == Exit::Code(0) && output.to_string().lines().any(is_placed) {
                tracing::info!(hash, "agent's executable sent");
                return Ok(());
            }
            format!("{:?}: {errors}", outcome.exit)
        }
    };
    Err(DeployError::Transfer(reason))
}
