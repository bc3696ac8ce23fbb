//! Start approval: before the user's first command may run, the manager stores that the job is running (J2).

use std::pin::Pin;

use muster_agent_api::client::AgentError;

use super::JobError;
use super::row::JobRow;
use crate::state::JobState;

type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, AgentError>> + Send + 'a>>;

enum Stage<'a> {
    /// The agent has not reached the first user command.
    WaitForRequest {
        reached: Call<'a, bool>,
        approve: Call<'a, ()>,
    },
    /// The job is stored as running, and the approval is being sent.
    Approving(Call<'a, ()>),
    Done,
}

/// Start approval over one connection to the agent.
pub(super) struct StartApproval<'a>(Stage<'a>);

impl<'a> StartApproval<'a> {
    /// `reached` waits for the first user command, and returns whether it needs approval.
    pub(super) fn new(
        is_required: bool,
        reached: impl Future<Output = Result<bool, AgentError>> + Send + 'a,
        approve: impl Future<Output = Result<(), AgentError>> + Send + 'a,
    ) -> Self {
        Self(if is_required {
            Stage::WaitForRequest { reached: Box::pin(reached), approve: Box::pin(approve) }
        } else {
            Stage::Done
        })
    }

    /// Returns whether no approval is needed any more.
    pub(super) const fn is_done(&self) -> bool {
        matches!(self.0, Stage::Done)
    }

    /// Waits for the next stage, or forever if [`Self::is_done`].
    ///
    /// Cancel-safe: the next call continues the request. The inner error means that the start could not be stored.
    pub(super) async fn advance(&mut self, row: &mut JobRow) -> Result<Result<(), JobError>, AgentError> {
        let is_waiting = match &mut self.0 {
            Stage::WaitForRequest { reached, .. } => reached.await?,
            Stage::Approving(approve) => {
                approve.await?;
                false
            }
            Stage::Done => return std::future::pending().await,
        };
        self.0 = match std::mem::replace(&mut self.0, Stage::Done) {
            Stage::WaitForRequest { approve, .. } if is_waiting => {
                // Stored before the first user command may run (J2).
                if matches!(row.state(), JobState::Leased { .. })
                    && let Err(error) = row.transition(JobState::start)
                {
                    return Ok(Err(error));
                }
                Stage::Approving(approve)
            }
            _ => Stage::Done,
        };
        Ok(Ok(()))
    }
}
