//! Runs steps at another agent, in an environment that a step creates: a second process or a container.
//!
//! ```text
//! environment created -> Run -> log copied, result awaited -> job closed -> environment removed
//!                        cancel       --> Cancel
//!                        stop, timeout --> Stop, then the environment is removed
//! ```
//!
//! This engine is the client of the second agent, as a manager is of the first, and reconnects if the connection breaks. The step
//! fails if the agent does not answer for [`SILENCE_MAX`] or its environment is lost. It is never run again, because the user's
//! code may have run already (invariant J2).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use muster_agent_api::client::{self, AgentError, RunOptions};
use muster_agent_api::plan;
use muster_agent_api::result::{JobResult, StepNode};
use muster_agent_api::step_runner::RunRequest;
use muster_job::TerminationCause;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Brakes, Engine, Job};
use crate::builtin::{OpenPlace, Place};
use crate::failure::Failure;
use crate::log::Stream;

/// Time without an answer after which the second agent is considered lost.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum time for the second agent to clean up after it was told to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Maximum duration of a call that cancels, stops or closes a job.
const CALL_LIMIT: Duration = Duration::from_secs(5);

impl<J: Job> Engine<J> {
    pub(super) async fn delegate(
        &self,
        place: &dyn Place<J>,
        steps: &[plan::Step],
        brakes: &Brakes,
        nodes: &mut Vec<StepNode>,
    ) -> Result<(), Failure> {
        self.job.user_code_starts(&brakes.stop).await?;
        let place = place.open(&self.job, &brakes.stop).await?;
        let request = self.job.delegated(place.project_dir(), steps);
        let ended = match request {
            Ok(request) => self.at(&*place, &request, brakes).await,
            Err(failure) => Err(failure),
        };
        place.close().await;
        let result = ended?;
        nodes.clone_from(&result.tree.steps);
        let Some(failure) = Failure::of_result(&result) else { return Ok(()) };
        // If this engine stopped the steps, the failure is its own cause, not the other agent's description of it.
        let stopped = brakes.stop.cause().filter(|cause| failure.cause() == Some(*cause));
        Err(stopped.map_or(failure, Failure::Stopped))
    }

    /// Sends the request to the agent of the environment and waits until the job has ended there.
    async fn at(&self, place: &dyn OpenPlace, request: &RunRequest, brakes: &Brakes) -> Result<JobResult, Failure> {
        let log = self.job.log();
        let lost = |error: AgentError| Failure::System(format!("the agent of the step is lost: {error}"));
        let running = async {
            let sent = AtomicBool::new(false);
            let options = RunOptions {
                is_remote: false,
                require_start_approval: false,
                only_with_start_approval: false,
                was_sent: &sent,
            };
            let taken = timeout(SILENCE_MAX, client::run_until_accepted(place, || Ok(request.clone()), options)).await;
            let no_answer = |_| AgentError::Broken(format!("no answer within {} s", SILENCE_MAX.as_secs()));
            taken.map_err(no_answer).flatten().map_err(lost)?;
            let copy = |bytes: &[u8]| log.write(Stream::Output, bytes);
            let result = client::follow_to_end(place, &request.id, SILENCE_MAX, copy).await.map_err(lost)?;
            if let Err(error) = client::close(place, &request.id, CALL_LIMIT).await {
                tracing::warn!(%error, "the agent of a step did not close its job, it ends with its place");
            }
            Ok(result)
        };
        tokio::pin!(running);
        let mut canceled = false;
        let mut stopped: Option<(TerminationCause, Instant)> = None;
        loop {
            tokio::select! {
                biased;
                result = &mut running => return result,
                why = place.lost() => return Err(Failure::System(format!("the agent of the step is lost: {why}"))),
                cause = brakes.stop.stopped(), if stopped.is_none() => {
                    stopped = Some((cause, Instant::now() + STOP_LIMIT));
                    told(timeout(CALL_LIMIT, async { place.reach().await?.stop(&request.id, cause).await }).await);
                }
                () = brakes.cancel.cancelled(), if !canceled && stopped.is_none() => {
                    canceled = true;
                    told(timeout(CALL_LIMIT, async { place.reach().await?.cancel(&request.id).await }).await);
                }
                cause = past(stopped) => return Err(Failure::Stopped(cause)),
            }
        }
    }
}

fn told(answer: Result<Result<(), AgentError>, tokio::time::error::Elapsed>) {
    match answer {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the agent of a step could not be told to end"),
        Err(_) => tracing::warn!("the agent of a step did not answer when it was told to end"),
    }
}

/// Waits until the deadline of a stopped agent. `None` waits forever: the agent was not stopped.
async fn past(stopped: Option<(TerminationCause, Instant)>) -> TerminationCause {
    match stopped {
        Some((cause, until)) => {
            sleep_until(until).await;
            cause
        }
        None => std::future::pending().await,
    }
}
