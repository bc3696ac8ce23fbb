//! What the actor says to the agent, and how it understands its refusals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_agent_api::agent::{GateRequest, OpenRequest, WaitRequest};
use muster_agent_api::builtin::job_steps;
use muster_agent_api::result::JobResult;
use muster_agent_api::step_runner::{
    CancelRequest, CloseRequest, FollowLogsRequest, FollowLogsResponse, Job, RunRequest, Variable,
};
use muster_environment::{AgentConnection, Environment, EnvironmentError};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::lower::LoweredJob;

/// Between two `Run`s that no agent answered, at first and at most.
const RUN_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Why a call to the agent did not work.
#[derive(Debug, thiserror::Error)]
pub(super) enum AgentError {
    /// There is no agent to talk to, or it went away: it may come back.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The connection broke, or the agent is stopping: it may come back.
    #[error("the connection to the agent broke: {0}")]
    Broken(String),
    /// The agent has never heard of the job, or has forgotten it.
    #[error("the agent does not know the job")]
    Unknown,
    /// The agent does not take what it was asked.
    #[error("the agent refuses: {0}")]
    Refused(String),
}

impl From<Status> for AgentError {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => Self::Unknown,
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            // The plan is larger than it takes.
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::PermissionDenied => Self::Refused(message),
            _ => Self::Broken(message),
        }
    }
}

/// A connection that broke is checked before it is used again.
pub(super) fn doubt_if_broken<T>(connection: &AgentConnection, answer: &Result<T, AgentError>) {
    if matches!(answer, Err(AgentError::Broken(_))) {
        connection.doubt();
    }
}

/// What the agent of a job made of its `Run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// It has the job. `asks`: it waits before the user's first command until it is told that it may go on.
    Taken { asks: bool },
    /// It was not said: the agent would not ask before the user's first command, which was wanted.
    AsksNot,
}

/// How `Run` is said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Saying<'a> {
    /// On another machine: an agent that was lost while nobody used its connection is found out before it is asked.
    pub(super) far: bool,
    /// Only to an agent that asks before the user's first command.
    pub(super) only_if_asks: bool,
    /// Set before it is said first.
    pub(super) said: &'a AtomicBool,
}

/// Says `Run` until an agent takes or refuses it; the caller bounds the time.
pub(super) async fn run_until_taken(
    environment: &dyn Environment,
    id: &str,
    lowered: &LoweredJob,
    how: Saying<'_>,
) -> Result<Run, AgentError> {
    let (mut wait, cap) = RUN_AGAIN;
    loop {
        let tried = async {
            let connection = environment.connect().await?;
            if how.far && !how.said.load(Ordering::Relaxed) {
                connection.check().await.inspect_err(|_| connection.doubt())?;
            }
            let asks = connection.identity().asks && lowered.plan.ask_first;
            if how.only_if_asks && !asks {
                return Ok(Run::AsksNot);
            }
            how.said.store(true, Ordering::Relaxed);
            let answer = run(&connection, id, lowered).await;
            doubt_if_broken(&connection, &answer);
            answer.map(|()| Run::Taken { asks })
        };
        match tried.await {
            Ok(run) => return Ok(run),
            Err(AgentError::Environment(error)) => tracing::warn!(%error, "no agent to run the job, trying again"),
            Err(AgentError::Broken(error)) => tracing::warn!(%error, "`Run` was not answered, saying it again"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(cap);
    }
}

/// Waits until the job stands before the user's first command, or does not any more: whether it waits there.
pub(super) async fn gate(connection: &AgentConnection, id: &str) -> Result<bool, AgentError> {
    Ok(connection.agent().gate(GateRequest { id: id.to_owned() }).await?.into_inner().waits)
}

/// The user's first command may begin. Idempotent.
pub(super) async fn open(connection: &AgentConnection, id: &str) -> Result<(), AgentError> {
    connection.agent().open(OpenRequest { id: id.to_owned() }).await?;
    Ok(())
}

/// `Run`: idempotent by id (life-of-a-job R3).
async fn run(connection: &AgentConnection, id: &str, job: &LoweredJob) -> Result<(), AgentError> {
    let steps = job_steps(&job.plan).map_err(|error| AgentError::Refused(error.to_string()))?;
    let variables = job.variables.iter().map(|variable| Variable {
        key: variable.key.clone(),
        value: variable.value.clone(),
        file: variable.file,
        masked: variable.masked,
    });
    let request = RunRequest {
        id: id.to_owned(),
        work_dir: job.plan.project_dir.clone(),
        job: Some(Job { variables: variables.collect(), build_dir: job.plan.project_dir.clone() }),
        steps,
        ..RunRequest::default()
    };
    connection.step_runner().run(request).await?;
    Ok(())
}

/// The job's log from `offset` on; ends when the job has ended.
pub(super) async fn follow(
    connection: &AgentConnection,
    id: &str,
    offset: u64,
) -> Result<Streaming<FollowLogsResponse>, AgentError> {
    let offset = i64::try_from(offset).unwrap_or(i64::MAX);
    Ok(connection.step_runner().follow_logs(FollowLogsRequest { id: id.to_owned(), offset }).await?.into_inner())
}

/// The job's result, when it has one.
pub(super) async fn wait(connection: &AgentConnection, id: &str) -> Result<JobResult, AgentError> {
    let answer = connection.agent().wait(WaitRequest { id: id.to_owned() }).await?.into_inner();
    serde_json::from_str(&answer.result)
        .map_err(|error| AgentError::Refused(format!("its result is not readable: {error}")))
}

/// Winds the job down; the result then says so.
pub(super) async fn cancel(connection: &AgentConnection, id: &str) -> Result<(), AgentError> {
    connection.step_runner().cancel(CancelRequest { id: id.to_owned() }).await?;
    Ok(())
}

/// The spool may forget the job. Idempotent (life-of-a-job R6). An agent that is away is hoped for until `patience` is
/// over: one that was killed just now is there again in a moment, and nobody else would close its job (J5).
pub(super) async fn close(environment: &dyn Environment, id: &str, patience: Duration) -> Result<(), AgentError> {
    let until = Instant::now() + patience;
    let (mut wait, cap) = RUN_AGAIN;
    loop {
        match close_once(environment, id).await {
            Err(AgentError::Environment(_) | AgentError::Broken(_)) if Instant::now() < until => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(cap);
            }
            answer => return answer,
        }
    }
}

async fn close_once(environment: &dyn Environment, id: &str) -> Result<(), AgentError> {
    let connection = environment.connect().await?;
    let answer = connection.step_runner().close(CloseRequest { id: id.to_owned() }).await.map_err(AgentError::from);
    doubt_if_broken(&connection, &answer);
    match answer {
        Ok(_) | Err(AgentError::Unknown) => Ok(()),
        Err(error) => Err(error),
    }
}
