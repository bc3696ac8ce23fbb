//! Client of an agent: runs a job, follows its log, waits for its result, cancels it and closes it.
//!
//! Each call has the ID of its job and is idempotent: a caller without an answer repeats the call over a new
//! connection.
//!
//! The agent may also be GitLab's step-runner, without Muster's extension ([`Identity::has_extension`], [`stock`]).

mod connection;
mod follow;
mod silence;
mod stock;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use muster_job::TerminationCause;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::agent::{ApproveStartRequest, StopRequest, WaitForResultRequest, WaitForStartApprovalRequest};
use crate::call_record::cut;
use crate::result::JobResult;
use crate::step_runner::{CancelRequest, CloseRequest, FollowLogsRequest, FollowLogsResponse, RunRequest};
pub use connection::{AgentConnection, Identity, KeepAlive, REMOTE_KEEPALIVE, Unreachable};
pub use follow::follow_to_end;
pub use silence::Silence;

/// Maximum number of bytes that a `WaitForResult` response has in addition to the result.
const RESPONSE_OVERHEAD_BYTES: usize = 16;
const MAX_PARSE_ERROR_BYTES: usize = 1024;
/// Initial and maximum pause.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Reason why a call to the agent failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No agent could be reached. A retry may succeed.
    #[error(transparent)]
    NotReached(Box<dyn std::error::Error + Send + Sync>),
    /// The connection broke, or the agent is shutting down. A retry may succeed.
    #[error("the connection to the agent broke: {0}")]
    Broken(String),
    /// The agent never had the job, or has deleted it.
    #[error("the agent has no such job")]
    Unknown,
    /// The agent rejects the request, or cannot read the job's log. A retry does not help.
    #[error("the agent rejected the request: {0}")]
    Refused(String),
    /// The result is too large or invalid.
    #[error("the agent returned an invalid result of the job: {0}")]
    InvalidResult(String),
}

impl From<Status> for AgentError {
    fn from(status: Status) -> Self {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => Self::Unknown,
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            // The plan exceeds the agent's limit.
            | Code::OutOfRange
            | Code::Unimplemented
            // The agent cannot read the job's log.
            | Code::DataLoss
            | Code::PermissionDenied => Self::Refused(message),
            _ => Self::Broken(message),
        }
    }
}

/// Opens connections to one agent, also after a lost connection.
#[async_trait]
pub trait Reach: Send + Sync {
    /// Returns a connection to the agent.
    ///
    /// # Errors
    /// [`AgentError::NotReached`] if no agent can be reached.
    async fn reach(&self) -> Result<AgentConnection, AgentError>;
}

/// Result of [`run_until_accepted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// The agent has the job.
    Accepted {
        /// Whether the job waits for [`AgentConnection::approve_start`] before the user's first command.
        awaits_approval: bool,
    },
    /// Nothing was sent, because the agent lacks start approval, which [`RunOptions::only_with_start_approval`]
    /// requires.
    StartApprovalUnsupported,
}

/// Options of [`run_until_accepted`].
#[derive(Debug, Clone, Copy)]
pub struct RunOptions<'a> {
    /// Whether the agent is on another machine, so that the connection is checked before `Run`.
    pub is_remote: bool,
    /// Whether the job requires start approval (`JobPlan::require_start_approval`).
    pub require_start_approval: bool,
    /// Whether nothing is sent to an agent without start approval ([`RunOutcome::StartApprovalUnsupported`]).
    pub only_with_start_approval: bool,
    /// Whether a `Run` was sent. [`run_until_accepted`] sets this to true before the first `Run`.
    pub was_sent: &'a AtomicBool,
}

/// Sends `Run` until an agent accepts or rejects it. The caller must apply a timeout.
///
/// # Errors
/// Any [`AgentError`] that a retry cannot fix.
pub async fn run_until_accepted(
    agent: &(impl Reach + ?Sized),
    request: impl Fn() -> Result<RunRequest, AgentError> + Send + Sync,
    options: RunOptions<'_>,
) -> Result<RunOutcome, AgentError> {
    let (mut wait, max_wait) = RETRY_BACKOFF;
    loop {
        let attempt = async {
            let connection = agent.reach().await?;
            if options.is_remote && !options.was_sent.load(Ordering::Relaxed) {
                let checked = connection.check().await.inspect_err(|_| connection.mark_suspect());
                checked.map_err(|error| AgentError::NotReached(error.into()))?;
            }
            let supports_approval = connection.identity().supports_start_approval;
            if options.only_with_start_approval && !supports_approval {
                return Ok(RunOutcome::StartApprovalUnsupported);
            }
            options.was_sent.store(true, Ordering::Relaxed);
            connection.run(request()?).await?;
            Ok(RunOutcome::Accepted { awaits_approval: supports_approval && options.require_start_approval })
        };
        match attempt.await {
            Ok(outcome) => return Ok(outcome),
            Err(AgentError::NotReached(error)) => {
                tracing::warn!(%error, "failed to reach an agent for the job, retrying")
            }
            Err(AgentError::Broken(error)) => tracing::warn!(%error, "no answer to `Run`, retrying"),
            Err(error) => return Err(error),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(max_wait);
    }
}

/// Ends a running job, and deletes the job from the spool. Idempotent (R6 in `docs/spec/life-of-a-job.md`).
///
/// Without an answer, retries until `timeout` expires, because no other caller closes the job (J5).
///
/// # Errors
/// [`AgentError`], but never [`AgentError::Unknown`].
pub async fn close(agent: &(impl Reach + ?Sized), id: &str, timeout: Duration) -> Result<(), AgentError> {
    let deadline = Instant::now() + timeout;
    let (mut wait, max_wait) = RETRY_BACKOFF;
    loop {
        let closed = match agent.reach().await {
            Ok(connection) => connection.close(id).await,
            Err(error) => Err(error),
        };
        match closed {
            Err(AgentError::NotReached(_) | AgentError::Broken(_)) if Instant::now() < deadline => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(max_wait);
            }
            answer => return answer,
        }
    }
}

#[expect(clippy::missing_errors_doc, reason = "the variants of `AgentError` describe the errors")]
impl AgentConnection {
    /// Marks the connection as suspect if `answer` is [`AgentError::Broken`].
    pub fn mark_suspect_if_broken<T>(&self, answer: &Result<T, AgentError>) {
        if matches!(answer, Err(AgentError::Broken(_))) {
            self.mark_suspect();
        }
    }

    fn error(&self, status: Status) -> AgentError {
        if self.identity().has_extension { status.into() } else { stock::error(status) }
    }

    fn convert_answer<T>(&self, answer: Result<tonic::Response<T>, Status>) -> Result<T, AgentError> {
        let answer = answer.map(tonic::Response::into_inner).map_err(|status| self.error(status));
        self.mark_suspect_if_broken(&answer);
        answer
    }

    /// Starts a job. Idempotent (R3 in `docs/spec/life-of-a-job.md`).
    pub async fn run(&self, request: RunRequest) -> Result<(), AgentError> {
        self.convert_answer(self.step_runner().run(request).await).map(drop)
    }

    /// Returns the job's log from `offset` in bytes, until the job ends.
    pub async fn follow(&self, id: &str, offset: u64) -> Result<Streaming<FollowLogsResponse>, AgentError> {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        self.convert_answer(self.step_runner().follow_logs(FollowLogsRequest { id: id.to_owned(), offset }).await)
    }

    /// Waits for the job's result. A result of more than `max_bytes` from Muster's agent is an error.
    pub async fn wait(&self, id: &str, max_bytes: usize) -> Result<JobResult, AgentError> {
        if !self.identity().has_extension {
            return self.wait_for_status(id).await;
        }
        let mut agent = self.agent().max_decoding_message_size(max_bytes.saturating_add(RESPONSE_OVERHEAD_BYTES));
        let answer = match agent.wait_for_result(WaitForResultRequest { id: id.to_owned() }).await {
            // The client returns this code for a message above the limit. Agents do not return it here.
            Err(status) if status.code() == Code::OutOfRange => {
                return Err(AgentError::InvalidResult(format!(
                    "it has more than {} MiB, the maximum; agents shorten results, so update the agent, or check whether the job replaced the agent",
                    max_bytes >> 20
                )));
            }
            answer => answer?.into_inner(),
        };
        serde_json::from_str(&answer.result).map_err(|error| {
            // The message may quote a long text.
            let mut message = error.to_string();
            cut(&mut message, MAX_PARSE_ERROR_BYTES);
            AgentError::InvalidResult(message)
        })
    }

    /// Waits until the job reaches its first user command or ends. Returns whether the job waits for approval.
    pub async fn wait_for_start_approval(&self, id: &str) -> Result<bool, AgentError> {
        let request = WaitForStartApprovalRequest { id: id.to_owned() };
        Ok(self.agent().wait_for_start_approval(request).await?.into_inner().is_waiting)
    }

    /// Approves the job's first user command. Idempotent.
    pub async fn approve_start(&self, id: &str) -> Result<(), AgentError> {
        self.agent().approve_start(ApproveStartRequest { id: id.to_owned() }).await?;
        Ok(())
    }

    /// Cancels the job, which then cleans up. If the step-runner has no `Cancel`, closes the job instead.
    pub async fn cancel(&self, id: &str) -> Result<(), AgentError> {
        match self.step_runner().cancel(CancelRequest { id: id.to_owned() }).await {
            Err(status) if stock::has_no_cancel(self.identity(), &status) => self.close(id).await,
            answer => answer.map(drop).map_err(|status| self.error(status)),
        }
    }

    /// Stops the job for this cause. Only its cleanup steps still run. Idempotent. At GitLab's step-runner, cancels the
    /// job instead.
    pub async fn stop(&self, id: &str, cause: TerminationCause) -> Result<(), AgentError> {
        if !self.identity().has_extension {
            return self.cancel(id).await;
        }
        let cause = serde_json::to_value(cause).ok().and_then(|cause| cause.as_str().map(str::to_owned));
        let request = StopRequest { id: id.to_owned(), cause: cause.unwrap_or_default() };
        self.agent().stop(request).await?;
        Ok(())
    }

    /// Ends a running job, and deletes the job from the spool. Idempotent.
    pub async fn close(&self, id: &str) -> Result<(), AgentError> {
        match self.convert_answer(self.step_runner().close(CloseRequest { id: id.to_owned() }).await) {
            Ok(_) | Err(AgentError::Unknown) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
