//! The client of an agent: run a job, follow its log, wait for its result, cancel and close it, and go on after the
//! connection was lost.
//!
//! A manager uses it, and so will an agent that delegates steps to another one. Every call is idempotent by the ID of the job, so
//! that a caller that heard no answer repeats it over a new connection.

mod connection;
mod follow;
mod silence;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use muster_job::TerminationCause;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::agent::{GateRequest, OpenRequest, StopRequest, WaitRequest};
use crate::result::JobResult;
use crate::step_runner::{CancelRequest, CloseRequest, FollowLogsRequest, FollowLogsResponse, RunRequest};
pub use connection::{AgentConnection, FAR, Identity, Pings, Unreachable};
pub use follow::follow_to_end;
pub use silence::Silence;

/// First and longest pause between two calls that no agent answered.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Why a call to the agent did not work.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no agent to talk to. It may come back.
    #[error(transparent)]
    NotReached(Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke, or the agent is stopping. It may come back.
    #[error("the connection to the agent broke: {0}")]
    Broken(String),
    /// The agent has never heard of the job, or has forgotten it.
    #[error("the agent does not know the job")]
    Unknown,
    /// The agent does not accept the request.
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
            // The plan is larger than the agent takes.
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::PermissionDenied => Self::Refused(message),
            _ => Self::Broken(message),
        }
    }
}

/// A way to one agent. It can be used again after a connection was lost.
#[async_trait]
pub trait Reach: Send + Sync {
    /// Returns a connection to the agent.
    ///
    /// # Errors
    /// [`AgentError::NotReached`].
    async fn reach(&self) -> Result<AgentConnection, AgentError>;
}

/// Result of [`run_until_taken`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// The agent has the job.
    Taken {
        /// The job waits before the user's first command until [`AgentConnection::open_gate`].
        asks: bool,
    },
    /// Nothing was sent: the agent would not ask before the user's first command, as [`RunOptions::only_if_asks`] wants.
    AsksNot,
}

/// How [`run_until_taken`] sends `Run`.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions<'a> {
    /// The agent is on another machine: a connection that was lost while it was idle is noticed before `Run` is sent.
    pub far: bool,
    /// The job is to wait before the user's first command (`JobPlan::ask_first`).
    pub ask_first: bool,
    /// Send `Run` only to an agent whose jobs wait before the user's first command.
    pub only_if_asks: bool,
    /// Set before `Run` is sent for the first time.
    pub sent: &'a AtomicBool,
}

/// Sends `Run` until an agent accepts or refuses it. The caller bounds the time.
///
/// # Errors
/// [`AgentError::Refused`] and [`AgentError::Unknown`].
pub async fn run_until_taken(
    agent: &(impl Reach + ?Sized),
    request: impl Fn() -> Result<RunRequest, AgentError> + Send + Sync,
    options: RunOptions<'_>,
) -> Result<Run, AgentError> {
    let (mut wait, cap) = AGAIN;
    loop {
        let tried = async {
            let connection = agent.reach().await?;
            if options.far && !options.sent.load(Ordering::Relaxed) {
                let checked = connection.check().await.inspect_err(|_| connection.doubt());
                checked.map_err(|error| AgentError::NotReached(error.into()))?;
            }
            let asks = connection.identity().asks && options.ask_first;
            if options.only_if_asks && !asks {
                return Ok(Run::AsksNot);
            }
            options.sent.store(true, Ordering::Relaxed);
            connection.run(request()?).await?;
            Ok(Run::Taken { asks })
        };
        match tried.await {
            Ok(run) => return Ok(run),
            Err(AgentError::NotReached(error)) => tracing::warn!(%error, "no agent to run the job, trying again"),
            Err(AgentError::Broken(error)) => tracing::warn!(%error, "`Run` was not answered, sending it again"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(cap);
    }
}

/// Ends a job if it runs, and has the spool forget it. Idempotent (life-of-a-job R6). An agent that is away is tried until
/// `patience` is over: one that was killed just now is there again in a moment, and no other caller would close its job (J5).
///
/// # Errors
/// [`AgentError`], but never [`AgentError::Unknown`].
pub async fn close(agent: &(impl Reach + ?Sized), id: &str, patience: Duration) -> Result<(), AgentError> {
    let until = Instant::now() + patience;
    let (mut wait, cap) = AGAIN;
    loop {
        let closed = match agent.reach().await {
            Ok(connection) => connection.close(id).await,
            Err(error) => Err(error),
        };
        match closed {
            Err(AgentError::NotReached(_) | AgentError::Broken(_)) if Instant::now() < until => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(cap);
            }
            answer => return answer,
        }
    }
}

/// The calls about one job, by its ID. Each fails with an [`AgentError`].
#[expect(clippy::missing_errors_doc, reason = "said once for all of them")]
impl AgentConnection {
    /// Marks the connection to be checked before it is used again if `answer` says that it broke.
    pub fn doubt_if_broken<T>(&self, answer: &Result<T, AgentError>) {
        if matches!(answer, Err(AgentError::Broken(_))) {
            self.doubt();
        }
    }

    fn answered<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, AgentError> {
        let answer = answer.map(tonic::Response::into_inner).map_err(AgentError::from);
        self.doubt_if_broken(&answer);
        answer
    }

    /// Starts a job. Idempotent (life-of-a-job R3).
    pub async fn run(&self, request: RunRequest) -> Result<(), AgentError> {
        self.answered(self.step_runner().run(request).await).map(drop)
    }

    /// Returns the job's log from `offset` bytes on. The stream ends when the job has ended.
    pub async fn follow(&self, id: &str, offset: u64) -> Result<Streaming<FollowLogsResponse>, AgentError> {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        self.answered(self.step_runner().follow_logs(FollowLogsRequest { id: id.to_owned(), offset }).await)
    }

    /// Returns the job's result once it has one.
    pub async fn wait(&self, id: &str) -> Result<JobResult, AgentError> {
        let answer = self.agent().wait(WaitRequest { id: id.to_owned() }).await?.into_inner();
        serde_json::from_str(&answer.result)
            .map_err(|error| AgentError::Refused(format!("its result is not readable: {error}")))
    }

    /// Waits until the job stands before the user's first command or is past it. Returns whether it waits there.
    pub async fn gate(&self, id: &str) -> Result<bool, AgentError> {
        Ok(self.agent().gate(GateRequest { id: id.to_owned() }).await?.into_inner().waits)
    }

    /// Lets the job begin the user's first command. Idempotent.
    pub async fn open_gate(&self, id: &str) -> Result<(), AgentError> {
        self.agent().open(OpenRequest { id: id.to_owned() }).await?;
        Ok(())
    }

    /// Winds the job down. Its result then says that it was canceled.
    pub async fn cancel(&self, id: &str) -> Result<(), AgentError> {
        self.step_runner().cancel(CancelRequest { id: id.to_owned() }).await?;
        Ok(())
    }

    /// Ends the job at once, for this cause. Of its steps only those that clean up run. Idempotent.
    pub async fn stop(&self, id: &str, cause: TerminationCause) -> Result<(), AgentError> {
        let cause = serde_json::to_value(cause).ok().and_then(|cause| cause.as_str().map(str::to_owned));
        let request = StopRequest { id: id.to_owned(), cause: cause.unwrap_or_default() };
        self.agent().stop(request).await?;
        Ok(())
    }

    /// Ends the job if it runs, and has the spool forget it. Idempotent.
    pub async fn close(&self, id: &str) -> Result<(), AgentError> {
        match self.answered(self.step_runner().close(CloseRequest { id: id.to_owned() }).await) {
            Ok(_) | Err(AgentError::Unknown) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
