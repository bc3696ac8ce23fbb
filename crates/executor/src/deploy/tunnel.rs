//! Sends the agent's executable to a machine, and opens a stream to the agent there.

use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::model::Platform;
use muster_remote::{Exit, RemoteCommand, Session, Stream};
use tokio::io::AsyncReadExt;

use super::agents::Agents;
use super::excerpt::Excerpt;
use super::executable::Executable;
use super::shell::{self, ABSENT, CONNECTED, FAILED, MARK, OLDER, PLACED};

/// Maximum time from the command to its answer. An agent that starts reads its spool first.
const ANSWER_LIMIT: Duration = Duration::from_secs(40);
/// Maximum time to transfer the executable.
const PLACE_LIMIT: Duration = Duration::from_secs(600);
/// Maximum length of a line of an answer, in bytes.
const LINE_MAX_BYTES: usize = 8 * 1024;
/// Maximum number of lines that a profile may print before the answer.
const LINES_MAX: usize = 100;

/// A stream to an agent.
pub(super) struct AgentStream {
    /// Bytes to and from the agent.
    pub(super) stream: Box<dyn Stream>,
    /// Home directory on the machine.
    pub(super) home: PathBuf,
    /// Whether the agent runs another executable and still has jobs. After its last job, the next stream leads to a new agent.
    pub(super) is_outdated: bool,
}

/// Returns a stream to the machine's agent, and the platform of the machine.
///
/// Sends the executable if it is missing, and starts the agent if none runs. `kind` is the platform of the machine when it was reached
/// before. If the platform has changed, the machine reports so before anything is sent.
///
/// # Errors
/// Reason why there is no agent, as a message.
pub(super) async fn deploy_agent(
    session: &dyn Session,
    agents: &Agents,
    kind: Option<Platform>,
) -> Result<(AgentStream, Platform), String> {
    let mut kind = kind.unwrap_or_else(Platform::this);
    let mut executable = agents.executable_for(&kind)?;
    let (mut hash, mut command) = connect_command(&executable).await?;
    match connect(session, &command).await? {
        ConnectAnswer::Connected(tunnel) => return Ok((tunnel, kind)),
        ConnectAnswer::Absent(Some(found)) if found != kind => {
            kind = found;
            executable = agents.executable_for(&kind).map_err(|why| format!("it is {kind}: {why}"))?;
            (hash, command) = connect_command(&executable).await?;
            if let ConnectAnswer::Connected(tunnel) = connect(session, &command).await? {
                return Ok((tunnel, kind));
            }
        }
        ConnectAnswer::Absent(_) => {}
    }
    tokio::time::timeout(PLACE_LIMIT, place(session, &executable, &hash))
        .await
        .map_err(|_| format!("the agent's executable was not placed within {} s", PLACE_LIMIT.as_secs()))??;
    match connect(session, &command).await? {
        ConnectAnswer::Connected(tunnel) => Ok((tunnel, kind)),
        ConnectAnswer::Absent(_) => Err(
            "the agent's executable was placed, and is not there, or cannot be executed: is the home directory of the \
                 instance kept, and not mounted noexec?"
                .to_owned(),
        ),
    }
}

/// Returns the hash of an executable, and the command that connects to its agent.
async fn connect_command(executable: &Executable) -> Result<(String, String), String> {
    let unread = |error| format!("the agent's executable {} cannot be read: {error}", executable.path().display());
    let known = executable.known().await.map_err(unread)?;
    Ok((known.hash.clone(), shell::connect(known, &executable.path().to_string_lossy())))
}

/// Answer of the machine to the command that connects to the agent.
enum ConnectAnswer {
    Connected(AgentStream),
    /// The executable is missing. Has the platform of the machine, if it is known.
    Absent(Option<Platform>),
}

async fn connect(session: &dyn Session, command: &str) -> Result<ConnectAnswer, String> {
    let asked = async {
        let mut stream = session.dial_command(command).await.map_err(|error| error.to_string())?;
        let answer = answer(&mut *stream).await?;
        if let Some(machine) = answer.strip_prefix(ABSENT) {
            return Ok(ConnectAnswer::Absent(Platform::of_uname(machine)));
        }
        for (word, is_outdated) in [(OLDER, true), (CONNECTED, false)] {
            if let Some(home) = answer.strip_prefix(word) {
                return Ok(ConnectAnswer::Connected(AgentStream { stream, home: PathBuf::from(home), is_outdated }));
            }
        }
        Err(answer.strip_prefix(FAILED).map_or_else(|| format!("it said {answer:?}"), str::to_owned))
    };
    let late = |_| Err(format!("no answer from the instance's shell within {} s", ANSWER_LIMIT.as_secs()));
    tokio::time::timeout(ANSWER_LIMIT, asked).await.unwrap_or_else(late)
}

/// Returns the first line with the mark, without the mark. Reads nothing after that line.
async fn answer(stream: &mut dyn Stream) -> Result<String, String> {
    let mut seen = String::new();
    for _ in 0..LINES_MAX {
        let mut line = Vec::new();
        loop {
            let ended = || match seen.trim() {
                "" => "the instance's shell ended without a word: sh, sha256sum and a home directory are needed"
                    .to_owned(),
                said => format!("the instance's shell ended: {said}"),
            };
            match stream.read_u8().await {
                Ok(b'\n') => break,
                Ok(byte) if line.len() < LINE_MAX_BYTES => line.push(byte),
                Ok(_) => return Err("the instance's shell prints more than an answer".to_owned()),
                Err(_) => return Err(ended()),
            }
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        if let Some(answer) = line.strip_prefix(MARK) {
            return Ok(answer.trim_end().to_owned());
        }
        seen = line;
    }
    Err(format!("the instance's shell prints more than an answer; the last was: {seen}"))
}

async fn place(session: &dyn Session, executable: &Executable, hash: &str) -> Result<(), String> {
    let mut packed = executable.packed();
    let (mut output, mut errors) = (Excerpt::default(), Excerpt::default());
    let command = shell::place(hash);
    let run = RemoteCommand {
        stdin: Some(&mut packed),
        stdout: Some(&mut output),
        stderr: Some(&mut errors),
        ..RemoteCommand::new(&command)
    };
    let outcome = session.run(run).await;
    let why = match outcome {
        _ if output.is_over() => format!("the instance's shell prints more than 1 MiB: {output}"),
        _ if errors.is_over() => format!("the instance's shell prints more than 1 MiB of errors: {errors}"),
        Err(error) => error.to_string(),
        Ok(outcome) => {
            let is_placed = |line: &str| line.strip_prefix(MARK) == Some(PLACED);
            if outcome.exit == Exit::Code(0) && output.to_string().lines().any(is_placed) {
                tracing::info!(hash, "the agent's executable was placed");
                return Ok(());
            }
            format!("{:?}: {errors}", outcome.exit)
        }
    };
    Err(format!("the agent's executable was not placed: {why}"))
}
