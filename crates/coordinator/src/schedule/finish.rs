//! Events from runners, and the consequences of a failure: a retry, a warning or a failed job.

use muster_job::{FailureReason, InvalidTransition, JobEvent, JobStatus, PipelineId};
use muster_pipeline::model::AllowFailure;

use super::engine::Engine;
use super::event::{Action, JobRef, Outcome, RejectedEvent};
use super::retry::allowed_retries;

impl Engine {
    pub(super) fn job_assigned(&mut self, job: JobRef, supports_graceful_cancel: bool) -> Result<(), RejectedEvent> {
        let to = self.pipelines.script_status(job)?.after(JobEvent::Run)?;
        self.change(job.pipeline, job.job_index, |state| state.supports_graceful_cancel = supports_graceful_cancel);
        self.move_to(job.pipeline, job.job_index, to, None);
        Ok(())
    }

    pub(super) fn job_requeued(&mut self, job: JobRef) -> Result<(), RejectedEvent> {
        let to = self.pipelines.script_status(job)?.after(JobEvent::Requeue)?;
        self.move_to(job.pipeline, job.job_index, to, None);
        self.work.actions.push(Action::Enqueue { job });
        Ok(())
    }

    pub(super) fn job_finished(&mut self, job: JobRef, outcome: Outcome) -> Result<(), RejectedEvent> {
        let from = self.pipelines.script_status(job)?;
        match outcome {
            Outcome::Success if !from.is_on_runner() => {
                return Err(InvalidTransition { from, event: JobEvent::Succeed }.into());
            }
            Outcome::Success => {
                let to = from.after(JobEvent::Succeed)?;
                self.move_to(job.pipeline, job.job_index, to, None);
            }
            Outcome::Failed { reason, exit_code } => {
                if from.after(JobEvent::Drop)? == JobStatus::Canceled {
                    self.move_to(job.pipeline, job.job_index, JobStatus::Canceled, None);
                } else {
                    self.fail(job.pipeline, job.job_index, reason, exit_code);
                }
            }
        }
        Ok(())
    }

    pub(super) fn retry_by_user(&mut self, job: JobRef) -> Result<(), RejectedEvent> {
        let status = self.pipelines.newest_state(job)?.status;
        if !matches!(status, JobStatus::Success | JobStatus::Failed | JobStatus::Canceled) {
            return Err(RejectedEvent::NotRetryable { job, status });
        }
        self.create_retry(job.pipeline, job.job_index);
        Ok(())
    }

    pub(super) fn fail(
        &mut self,
        pipeline: PipelineId,
        job_index: usize,
        reason: FailureReason,
        exit_code: Option<i32>,
    ) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        let (node, job) = (entry.node, entry.state);
        if node.bridge.is_none() && job.retry < allowed_retries(&node.retry, reason, exit_code) {
            // The old record ends as failed. Other jobs do not see the failure, because the new record replaces the old
            // one immediately.
            let (from, to, failure_allowed) = (job.status, JobStatus::Failed, job.failure_allowed);
            let (job, reason) = (entry.job_ref(), Some(reason));
            self.work.actions.push(Action::JobStatusChanged { job, from, to, reason, failure_allowed });
            return self.create_retry(pipeline, job_index);
        }
        let is_listed_code = match (&node.allow_failure, exit_code) {
            (AllowFailure::ExitCodes(codes), Some(code)) => codes.contains(&code),
            _ => false,
        };
        let cancel_others = entry.pipeline.graph.auto_cancel.on_job_failure && !(job.failure_allowed || is_listed_code);
        self.change(pipeline, job_index, |job| job.failure_allowed |= is_listed_code);
        self.move_to(pipeline, job_index, JobStatus::Failed, Some(reason));
        if cancel_others {
            self.cancel_pipeline(pipeline, false);
        }
    }

    /// Replaces the newest record of a job with a new one, which needs no manual start and no delay.
    fn create_retry(&mut self, pipeline: PipelineId, job_index: usize) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        let (old, from) = (entry.job_ref(), entry.state.status);
        let failure_allowed = entry.node.allow_failure == AllowFailure::Yes;
        self.change(pipeline, job_index, |job| {
            job.retry += 1;
            job.status = JobStatus::Created;
            job.failure_allowed = failure_allowed;
            job.requested_by_user = true;
            job.supports_graceful_cancel = false;
            job.timer_at = None;
            job.child = None;
        });
        self.work.actions.push(Action::CreateRetry { old, new: JobRef { retry: old.retry + 1, ..old } });
        self.after_transition(pipeline, job_index, from, JobStatus::Created);
        self.work.wake.push_back((pipeline, job_index));
    }
}
