//! The user's first command: an agent that asks before it is answered once the beginning is stored (J2).

use std::pin::Pin;

use muster_agent_api::client::AgentError;

use super::{Context, JobError};
use crate::state::JobState;
use crate::store::RunName;

type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T, AgentError>> + Send + 'a>>;

enum Stage<'a> {
    /// The agent has not come to the command, or has not said so.
    Asked {
        gate: Call<'a, bool>,
        open: Call<'a, ()>,
    },
    /// It waits, and is told to go on.
    Opened(Call<'a, ()>),
    Over,
}

/// One connection's part in the beginning of the user's first command.
pub(super) struct Beginning<'a>(Stage<'a>);

impl<'a> Beginning<'a> {
    /// `gate` answers whether the agent waits at the command, `open` lets it go on. An agent that does not ask is asked nothing.
    pub(super) fn new(
        asks: bool,
        gate: impl Future<Output = Result<bool, AgentError>> + Send + 'a,
        open: impl Future<Output = Result<(), AgentError>> + Send + 'a,
    ) -> Self {
        Self(if asks { Stage::Asked { gate: Box::pin(gate), open: Box::pin(open) } } else { Stage::Over })
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self.0, Stage::Over)
    }

    /// Its next stage. Cancel-safe: a call that was begun goes on with the next use.
    ///
    /// # Errors
    /// The outer one is the agent's; the inner one says that the beginning could not be stored.
    pub(super) async fn go_on(
        &mut self,
        state: &mut JobState,
        context: &Context,
        run: &RunName,
    ) -> Result<Result<(), JobError>, AgentError> {
        let waits = match &mut self.0 {
            Stage::Asked { gate, .. } => gate.await?,
            Stage::Opened(open) => {
                open.await?;
                false
            }
            Stage::Over => return std::future::pending().await,
        };
        self.0 = match std::mem::replace(&mut self.0, Stage::Over) {
            Stage::Asked { open, .. } if waits => {
                if let Err(error) = may_begin(state, context, run) {
                    return Ok(Err(error));
                }
                Stage::Opened(open)
            }
            _ => Stage::Over,
        };
        Ok(Ok(()))
    }
}

/// Stored before the command may begin (J2).
fn may_begin(state: &mut JobState, context: &Context, run: &RunName) -> Result<(), JobError> {
    if matches!(state, JobState::Leased { .. }) {
        let next = state.clone().start()?;
        context.store.set_state(run, &next)?;
        tracing::debug!("the first command may begin");
        *state = next;
    }
    Ok(())
}
