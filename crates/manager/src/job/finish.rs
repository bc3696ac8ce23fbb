//! The end of a job: its result, the release of its slot, its report, and its clean-up (R4 to R6).
//!
//! A job whose environment is suspended ends like this:
//!
//! ```text
//! result --state `suspended` stored, with the report--> job closed at its agent --> environment suspended, or not
//!        --> message in the trace --> reported
//! ```
//!
//! After the first step, no answer of the agent is needed, so a restarted manager can continue.

use std::time::Duration;

use muster_agent_api::client;
use muster_agent_api::result::{JobResult, Outcome};
use muster_executor::ExecutionEnvironment;
use muster_job::FailureReason;
use muster_job::mask::Secrets;
use muster_runner_api::retry::Backoff;
use muster_runner_api::wire::UpdateRequest;
use tokio::time::{Instant, sleep, sleep_until};

use super::actor::{JobActor, Next};
use super::environment::{JobEnvironment, SuspendRequest};
use super::follow::WATCHDOG_SLACK;
use super::interrupt::Interruption;
use super::progress::AgentProgress;
use super::uploader::{ReportAttempt, ReportOutcome, UploadOutcome};
use super::{CLOSE_RETRY, CLOSE_TIMEOUT, JobError};
use crate::failure::{self, final_trace_line};
use crate::lower::suspension;
use crate::state::{JobState, ManagerOutcome};

impl JobActor {
    /// Records the job's result and resource usage, and returns the update to report.
    pub(super) fn record_result(&mut self, result: &JobResult) -> UpdateRequest {
        self.progress.reach(AgentProgress::Executed);
        if let (Some(used), Some(lease), AgentProgress::Executed) =
            (&result.used, self.environment.lease(), self.progress)
        {
            self.progress.reach(AgentProgress::UsageReported);
            if let Some(environment) = lease.environment.sharing() {
                environment.report_usage(used);
            }
        }
        self.uploader.set_ended();
        // A canceled job that the coordinator did not cancel was canceled by this manager or an earlier process of it.
        let by_manager = self.runner.cancel.is_cancelled() || !self.uploader.is_canceled();
        let update = failure::from_result(&self.payload, result, self.row.state().trace_offset(), by_manager);
        self.watch.ended(result, update.failure_reason.as_deref(), update.exit_code);
        update
    }

    /// Reports the result, unless the environment must be suspended first. `None` means that the trace must be sent again.
    pub(super) async fn report_result(&mut self, result: &JobResult) -> Result<Option<Next>, JobError> {
        let update = self.record_result(result);
        if self.begin_suspend(result, &update)? {
            return Ok(Some(Next::Continue));
        }
        // Announced before the report, because after it the coordinator may assign the next job of the pipeline.
        if let Some(lease) = self.environment.lease() {
            lease.announce_end();
        }
        Ok(match self.report(&update).await {
            ReportOutcome::ResendTrace => {
                self.uploader.reset_to(0);
                None
            }
            ReportOutcome::Acknowledged => Some(Next::Reported),
            ReportOutcome::JobGone => Some(Next::JobGone),
        })
    }

    /// Releases the slot of an ended job whose log or report is not accepted, unless the slot must be kept.
    ///
    /// The release is stored first (R2).
    pub(super) fn release_slot(&mut self) {
        // A suspended environment is bound to the slot.
        let may_suspend = |success| suspension::suspend_owner(&self.payload, &self.runner.runner, success).is_some();
        if may_suspend(true) || may_suspend(false) {
            return;
        }
        let (true, JobState::Leased { lease, .. } | JobState::Running { lease, .. }) =
            (self.progress.is_executed(), self.row.state())
        else {
            return;
        };
        let Some(environment) = self.runner.executor.environment_without_lease(lease) else { return };
        let Some(released) = self.runner.unreported.admit(environment) else {
            return tracing::warn!("too many ended jobs are unreported, keeping the slot of this job");
        };
        if let Err(error) = self.row.transition(JobState::await_report) {
            return tracing::error!(error = &error as &dyn std::error::Error, "failed to release the slot of the job");
        }
        self.environment.release_slot(released);
        self.permit = None;
        self.runner.unreported.notify_released(self.row.job_run_id().clone());
        tracing::warn!("coordinator does not accept the report, slot released; the job is reported from its spool");
    }

    /// Sends the final update until it is acknowledged, or the job is no longer expected.
    async fn report(&mut self, update: &UpdateRequest) -> ReportOutcome {
        loop {
            match self.uploader.report(update).await {
                ReportAttempt::Ended(outcome) => return outcome,
                ReportAttempt::RetryAt(time) => {
                    self.release_slot();
                    sleep_until(time).await;
                }
            }
        }
    }

    /// If the environment must be suspended before the report, stores that and returns true.
    fn begin_suspend(&mut self, result: &JobResult, update: &UpdateRequest) -> Result<bool, JobError> {
        let is_success = matches!(result.outcome, Outcome::Success);
        let has_agent = matches!(self.row.state(), JobState::Leased { .. } | JobState::Running { .. });
        if !has_agent || self.environment.lease().is_none() || self.uploader.is_trace_refused() {
            return Ok(false);
        }
        let Some(owner) = suspension::suspend_owner(&self.payload, &self.runner.runner, is_success) else {
            return Ok(false);
        };
        if self.uploader.is_canceled() || self.runner.cancel.is_cancelled() {
            return Ok(false);
        }
        let trace_offset = self.uploader.end();
        self.row.transition(|state| state.suspend(update.clone(), owner, trace_offset))?;
        Ok(true)
    }

    /// Suspends the environment, records the outcome in the trace, and reports the job.
    pub(super) async fn suspend_and_report(
        &mut self,
        task_key: Option<&str>,
        mut update: UpdateRequest,
        owner: &str,
        trace_offset: u64,
    ) -> Next {
        let task_key = task_key.unwrap_or_default();
        let request = SuspendRequest {
            run_id: self.row.agent_run_id(),
            owner,
            task_key,
            executor: self.runner.executor.as_ref(),
            agent_reconnect_timeout: self.runner.agent_reconnect_timeout,
        };
        // The job is reported even without a suspension.
        let message = match self.environment.suspend(request).await {
            Ok(()) => {
                let key = suspension::key(&self.runner.runner, task_key);
                let message = format!("Job environment suspended: {key}\n");
                update.runtime_environment_key = Some(key);
                message
            }
            Err(reason) => {
                tracing::warn!(reason, "failed to suspend the job environment");
                format!("WARNING: Job environment not suspended: {reason}\n")
            }
        };
        self.uploader.set_ended();
        if !self.uploader.append_trace_message(&message, trace_offset).await {
            return Next::JobGone;
        }
        // The agent's checksum does not cover the message.
        update.output.checksum = None;
        update.output.bytesize = Some(trace_offset + message.len() as u64);
        self.report_without_agent(&update).await
    }

    /// Appends the manager's message to the trace, and reports the outcome.
    pub(super) async fn report_manager_outcome(&mut self, outcome: &ManagerOutcome) -> Next {
        self.uploader.set_ended();
        if !self.uploader.append_trace_message(&outcome.trace_message, outcome.trace_offset).await {
            return Next::JobGone;
        }
        self.report_without_agent(&failure::from_manager_outcome(&self.payload, outcome)).await
    }

    /// Reports a job whose log is gone. If the coordinator requests the log again, the job counts as reported.
    async fn report_without_agent(&mut self, update: &UpdateRequest) -> Next {
        match self.report(update).await {
            ReportOutcome::Acknowledged | ReportOutcome::ResendTrace => Next::Reported,
            ReportOutcome::JobGone => Next::JobGone,
        }
    }

    /// Ends the job. If an agent has it, the clean-up ends it there.
    pub(super) async fn end_interrupted(&mut self, interruption: &Interruption) -> Result<Next, JobError> {
        let prepare_timeout = self.runner.runner.prepare_timeout.unwrap_or_default();
        match interruption.failure(self.row.state(), prepare_timeout) {
            Some((reason, message)) => self.fail(reason, None, &message).await,
            None => Ok(Next::JobGone),
        }
    }

    /// Fails the job because of the runner, not of its script.
    pub(super) async fn system_failure(&mut self, message: &str) -> Result<Next, JobError> {
        self.fail(FailureReason::RunnerSystemFailure, None, message).await
    }

    /// Ends the job with an outcome that only the manager knows.
    ///
    /// Stores the offset of the message, so that a restarted manager does not append it twice.
    pub(super) async fn fail(
        &mut self,
        reason: FailureReason,
        exit_code: Option<i32>,
        message: &str,
    ) -> Result<Next, JobError> {
        self.fail_with_lines(reason, exit_code, message, &[]).await
    }

    /// Like [`Self::fail`], with `lines` before the message.
    pub(super) async fn fail_with_lines(
        &mut self,
        reason: FailureReason,
        exit_code: Option<i32>,
        message: &str,
        lines: &[String],
    ) -> Result<Next, JobError> {
        // The message may quote a masked value (J6).
        let message = &*failure::masked(message, &self.secrets());
        tracing::warn!(%reason, message, "job failed without a result from an agent");
        self.uploader.set_ended();
        if self.drain().await == UploadOutcome::JobGone || self.uploader.resync().await == UploadOutcome::JobGone {
            return Ok(Next::JobGone);
        }
        let trace_offset = self.uploader.end();
        let separator = if trace_offset > 0 { "\n" } else { "" };
        let lines = failure::masked(&failure::error_lines(lines), &self.secrets());
        let trace_message = format!("{separator}{lines}{}", final_trace_line(reason, message));
        self.watch.ended_by_manager(reason, exit_code);
        self.transition(|state| state.fail(ManagerOutcome { reason, exit_code, trace_message, trace_offset }))
    }

    /// Returns the values to mask in the manager's own messages.
    fn secrets(&self) -> Secrets {
        let lowered = self.preparation.lowered().map(|lowered| lowered.variables.as_slice()).unwrap_or_default();
        crate::lower::values_to_mask(&self.payload, lowered)
    }

    /// Closes the job at its agent, deletes its row, and releases its slot (R6).
    pub(super) async fn clean_up(&mut self) -> Result<(), JobError> {
        self.watch.cleaning();
        // Finds the environment without a lease, because another job may hold the slot now.
        let of_record = || {
            let record = self.row.state().held_lease()?;
            self.runner.executor.environment_without_lease(record)
        };
        let environment = self.environment.current().or_else(of_record).filter(|_| self.environment.must_close());
        if let (Some(environment), Some(id)) = (environment, self.row.agent_run_id()) {
            tokio::select! {
                () = self.close(environment.as_ref(), &id) => {}
                reason = environment.lost() => tracing::debug!(reason, "environment lost, nothing left to close"),
            }
        }
        // A suspended or unresponsive environment must not become leased again if the row cannot be deleted.
        if !matches!(self.environment, JobEnvironment::Leased(_)) {
            self.environment.finish();
        }
        // If the row cannot be deleted, it still names the slot, so the job keeps the slot (R2).
        self.row.delete()?;
        self.environment.finish();
        self.watch.cleaned();
        Ok(())
    }

    /// Closes the job at its agent. If the job may still run, and the environment outlives it, retries for the job's
    /// timeout and another [`WATCHDOG_SLACK`].
    ///
    /// During the retries, the job keeps its slot, so that no other job gets it (J4), and its row, so that a later start
    /// of the manager closes it (J5).
    async fn close(&self, environment: &dyn ExecutionEnvironment, id: &str) {
        let outlives_job = self.row.state().held_lease().is_some_and(|record| !record.is_remote());
        let may_run = self.progress.may_be_at_agent() && !self.progress.is_executed();
        let retry_time = match outlives_job && may_run {
            true => crate::lower::job_timeout(&self.payload) + WATCHDOG_SLACK,
            false => Duration::ZERO,
        };
        let retry_until = Instant::now() + retry_time;
        let mut backoff = Backoff::new(CLOSE_RETRY);
        let mut unclosed = None;
        loop {
            let closed = client::close(environment, id, self.runner.agent_reconnect_timeout);
            let error = match tokio::time::timeout(CLOSE_TIMEOUT, closed).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("the agent did not answer within {} s", CLOSE_TIMEOUT.as_secs()),
            };
            if Instant::now() >= retry_until {
                return tracing::warn!(
                    error,
                    "failed to close the job at its agent; the agent deletes the job after the retention time"
                );
            }
            tracing::warn!(error, "failed to close the job at its agent, retrying");
            unclosed.get_or_insert_with(|| self.runner.unclosed.count_job());
            sleep(backoff.next_wait(None).unwrap_or(CLOSE_RETRY.cap)).await;
        }
    }
}
