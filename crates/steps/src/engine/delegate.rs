//! Runs steps at another agent, in an environment that a step creates: a second process or a container.
//!
//! ```text
//! environment created -> Run -> log copied, result awaited -> job closed -> environment removed
//!                        cancel       --> Cancel
//!                        stop, timeout --> Stop, then the environment is removed
//! ```
//!
//! This engine is the client of the second agent, as a manager is of the first, and reconnects if the connection breaks. The step
//! fails if the agent does not answer for [`SILENCE_TIMEOUT`] or its environment is lost. It is never run again, because the user's
//! code may have run already (invariant J2).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use muster_agent_api::client::{self, AgentError, RunOptions};
use muster_agent_api::plan;
use muster_agent_api::result::{JobResult, StepNode};
use muster_agent_api::step_runner::RunRequest;
use muster_job::TerminationCause;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Engine, Job, JobCancellation};
use crate::builtin::{DelegateTarget, OpenTarget};
use crate::failure::Failure;
use crate::log::Stream;

/// Time without an answer after which the second agent is considered lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the second agent to clean up after it was told to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum duration of a call that cancels, stops or closes a job.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

impl<J: Job> Engine<J> {
    pub(super) async fn delegate(
        &self,
        target: &dyn DelegateTarget<J>,
        steps: &[plan::Step],
        cancellation: &JobCancellation,
        nodes: &mut Vec<StepNode>,
    ) -> Result<(), Failure> {
        self.job.user_code_starts(&cancellation.stop).await?;
        let target = target.open(&self.job, &cancellation.stop).await?;
        let result = match self.job.delegate_request(target.project_dir(), steps) {
            Ok(request) => self.run_at(&*target, &request, cancellation).await,
            Err(failure) => Err(failure),
        };
        target.close().await;
        let result = result?;
        nodes.clone_from(&result.tree.steps);
        let Some(failure) = Failure::from_result(&result) else { return Ok(()) };
        // If this engine stopped the steps, the failure is its own cause, not the other agent's description of it.
        let stopped = cancellation.stop.cause().filter(|cause| failure.cause() == Some(*cause));
        Err(stopped.map_or(failure, Failure::Stopped))
    }

    /// Sends the request to the agent of the environment and waits until the job has ended there.
    async fn run_at(
        &self,
        target: &dyn OpenTarget,
        request: &RunRequest,
        cancellation: &JobCancellation,
    ) -> Result<JobResult, Failure> {
        let log = self.job.log();
        let lost =
            |reason: &dyn std::fmt::Display| Failure::System(format!("the agent of the step was lost: {reason}"));
        let running = async {
            let sent = AtomicBool::new(false);
            let options = RunOptions {
                is_remote: false,
                require_start_approval: false,
                only_with_start_approval: false,
                was_sent: &sent,
            };
            let accepted =
                timeout(SILENCE_TIMEOUT, client::run_until_accepted(target, || Ok(request.clone()), options));
            let no_answer = |_| AgentError::Broken(format!("no answer within {} s", SILENCE_TIMEOUT.as_secs()));
            accepted.await.map_err(no_answer).flatten().map_err(|error| lost(&error))?;
            let copy = |bytes: &[u8]| log.write(Stream::Output, bytes);
            let result = client::follow_to_end(target, &request.id, SILENCE_TIMEOUT, copy).await;
            let result = result.map_err(|error| lost(&error))?;
            if let Err(error) = client::close(target, &request.id, CALL_TIMEOUT).await {
                tracing::warn!(%error, "failed to close the job at the agent of a step, removing its environment");
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
                reason = target.lost() => return Err(lost(&reason)),
                cause = cancellation.stop.stopped(), if stopped.is_none() => {
                    stopped = Some((cause, Instant::now() + STOP_TIMEOUT));
                    log_failure(timeout(CALL_TIMEOUT, async { target.reach().await?.stop(&request.id, cause).await }).await);
                }
                () = cancellation.cancel.cancelled(), if !canceled && stopped.is_none() => {
                    canceled = true;
                    log_failure(timeout(CALL_TIMEOUT, async { target.reach().await?.cancel(&request.id).await }).await);
                }
                cause = stop_timeout(stopped) => return Err(Failure::Stopped(cause)),
            }
        }
    }
}

fn log_failure(result: Result<Result<(), AgentError>, tokio::time::error::Elapsed>) {
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "failed to end the job at the agent of a step"),
        Err(_) => tracing::warn!("the agent of a step did not respond to the request to end its job"),
    }
}

/// Waits until the deadline of a stopped agent. `None` waits forever: the agent was not stopped.
async fn stop_timeout(stopped: Option<(TerminationCause, Instant)>) -> TerminationCause {
    match stopped {
        Some((cause, deadline)) => {
            sleep_until(deadline).await;
            cause
        }
        None => std::future::pending().await,
    }
}
