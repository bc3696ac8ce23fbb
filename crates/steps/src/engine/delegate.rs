//! Runs steps at another agent, in an environment that a step creates: a second process or a container.
//!
//! ```text
//! environment created -> log section ends -> Run -> log copied, result awaited -> job closed -> environment removed
//!   (steps beside it run)
//!                        cancel       --> Cancel
//!                        stop, timeout --> Stop, then the environment is removed
//! ```
//!
//! The engine is the client of the second agent, and reconnects if the connection breaks. The step fails if the agent
//! does not answer for [`OpenTarget::silence_timeout`] or its environment is lost. The step never runs again, because
//! the user's code may have run (invariant J2).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use muster_agent_api::client::{self, AgentError, RunOptions};
use muster_agent_api::result::{JobResult, MAX_RESULT_BYTES, StepNode, remove_calls};
use muster_agent_api::step_runner::RunRequest;
use muster_job::{TerminationCause, go_duration};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::beside::{Beside, complete};
use super::policy::MAX_ATTEMPTS;
use super::{Engine, Job, JobCancellation};
use crate::builtin::{DelegateTarget, Delegation, OpenTarget, Step};
use crate::failure::Failure;
use crate::log::Stream;
use crate::stop::StopToken;
use crate::style;

/// Maximum time for the second agent's cleanup after `Stop`.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const OPEN_RETRY_DELAY: Duration = Duration::from_secs(3);
const CANCEL_RETRY_DELAY: Duration = Duration::from_secs(1);
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

impl<J: Job> Engine<J> {
    pub(super) async fn delegate(
        &self,
        step: &Step<J>,
        delegation: &Delegation<J>,
        cancellation: &JobCancellation,
        nodes: &mut Vec<StepNode>,
    ) -> Result<(), Failure> {
        let open_stop = cancellation.stop.child();
        let beside = Beside::new(self, &delegation.beside, &open_stop);
        let opened = self.open_target(step, &*delegation.target, &beside, &open_stop);
        let target = open_stop.stop_on(cancellation.cancel.cancelled(), TerminationCause::CanceledByUser, opened).await;
        self.job.log().end_lines();
        self.close_section(step.section_name(), &step.policy.title);
        *nodes = beside.into_nodes();
        let target = target?;
        let result = match self.job.delegate_request(&*target, &delegation.steps) {
            Ok(request) => match self.job.wait_until_user_code_may_run(&cancellation.stop).await {
                Ok(()) => self.run_at(&*target, &request, cancellation).await,
                Err(failure) => Err(failure),
            },
            Err(failure) => Err(failure),
        };
        let failure = result.as_ref().map_or(None, Failure::from_result);
        if let Some(failure) = &failure
            && let Some(explanation) = target.explain(failure).await
        {
            self.print(&style::error(&explanation));
        }
        complete(nodes, target.beside_nodes().await);
        target.close().await;
        let result = result?;
        if let Some(usage) = &result.used {
            self.job.add_delegated_usage(usage);
        }
        let mut steps = result.tree.steps;
        if !self.job.records_calls() {
            // A process of the job could impersonate the second agent, and add records that were not requested.
            steps.iter_mut().for_each(remove_calls);
        }
        nodes.append(&mut steps);
        let Some(failure) = failure else { return Ok(()) };
        // If this engine stopped the steps, it reports the cause of the stop instead of the second agent's message.
        let stopped = cancellation.stop.cause().filter(|cause| failure.cause() == Some(*cause));
        Err(stopped.map_or(failure, Failure::Stopped))
    }

    /// Creates the environment. A system failure is retried, as in gitlab-runner (docs/spec/job-execution.md, section 1.2).
    async fn open_target(
        &self,
        step: &Step<J>,
        target: &dyn DelegateTarget<J>,
        beside: &Beside<'_, J>,
        stop: &StopToken,
    ) -> Result<Box<dyn OpenTarget>, Failure> {
        let mut attempts_left = step.policy.attempts.clamp(1, MAX_ATTEMPTS);
        loop {
            attempts_left -= 1;
            beside.forget_nodes();
            let message = match target.open(&self.job, beside, stop).await {
                Err(Failure::System(message)) if attempts_left > 0 && stop.cause().is_none() => message,
                opened => return opened,
            };
            self.print(&style::error(&format!("Preparation failed: {message}")));
            self.print(&style::info(&format!("Will be retried in {} ...", go_duration(OPEN_RETRY_DELAY))));
            tokio::select! {
                cause = stop.stopped() => return Err(Failure::Stopped(cause)),
                () = sleep(OPEN_RETRY_DELAY) => {}
            }
        }
    }

    async fn run_at(
        &self,
        target: &dyn OpenTarget,
        request: &RunRequest,
        cancellation: &JobCancellation,
    ) -> Result<JobResult, Failure> {
        let log = self.job.log();
        let lost_error =
            |reason: &dyn std::fmt::Display| Failure::System(format!("the agent of the step was lost: {reason}"));
        let silence_timeout = target.silence_timeout();
        let max_result_bytes = self
            .job
            .development()
            .map_or(MAX_RESULT_BYTES, muster_agent_api::development::Development::max_result_bytes);
        let running = async {
            let sent = AtomicBool::new(false);
            let options = RunOptions {
                is_remote: false,
                require_start_approval: false,
                only_with_start_approval: false,
                was_sent: &sent,
            };
            let accepted =
                timeout(silence_timeout, client::run_until_accepted(target, || Ok(request.clone()), options));
            let no_answer = |_| AgentError::Broken(format!("no answer within {} s", silence_timeout.as_secs()));
            accepted.await.map_err(no_answer).flatten().map_err(|error| lost_error(&error))?;
            let copy = |bytes: &[u8]| log.write(Stream::Output, bytes);
            let result = client::follow_to_end(target, &request.id, silence_timeout, max_result_bytes, copy).await;
            let result = result.map_err(|error| lost_error(&error))?;
            if let Err(error) = client::close(target, &request.id, CALL_TIMEOUT).await {
                tracing::warn!(%error, "failed to close the job at the agent of a step, removing its environment");
            }
            Ok(result)
        };
        tokio::pin!(running);
        let (mut canceled, mut next_cancel) = (false, Instant::now());
        let mut stopped: Option<(TerminationCause, Instant)> = None;
        loop {
            tokio::select! {
                biased;
                result = &mut running => return result,
                reason = target.lost() => return Err(lost_error(&reason)),
                cause = cancellation.stop.stopped(), if stopped.is_none() => {
                    stopped = Some((cause, Instant::now() + STOP_TIMEOUT));
                    ok_or_log(timeout(CALL_TIMEOUT, async { target.reach().await?.stop(&request.id, cause).await }).await);
                }
                () = async { cancellation.cancel.cancelled().await; sleep_until(next_cancel).await }, if !canceled && stopped.is_none() => {
                    canceled =
                        ok_or_log(timeout(CALL_TIMEOUT, async { target.reach().await?.cancel(&request.id).await }).await);
                    next_cancel = Instant::now() + CANCEL_RETRY_DELAY;
                }
                cause = stop_timeout(stopped) => return Err(Failure::Stopped(cause)),
            }
        }
    }
}

/// Returns whether a call succeeded. Logs the error of a failed call.
fn ok_or_log(result: Result<Result<(), AgentError>, tokio::time::error::Elapsed>) -> bool {
    match &result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "failed to end the job at the agent of a step"),
        Err(_) => tracing::warn!("the agent of a step did not respond to the request to end its job"),
    }
    matches!(result, Ok(Ok(())))
}

/// Waits until the deadline of a stopped agent, and returns the cause of the stop. `None` waits forever.
async fn stop_timeout(stopped: Option<(TerminationCause, Instant)>) -> TerminationCause {
    match stopped {
        Some((cause, deadline)) => {
            sleep_until(deadline).await;
            cause
        }
        None => std::future::pending().await,
    }
}
