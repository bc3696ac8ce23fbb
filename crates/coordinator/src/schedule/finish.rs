//! Events from runners, and the consequences of a failure: a retry, a warning or a failed job.

use muster_job::{FailureReason, InvalidTransition, JobEvent, JobStatus, PipelineId};
use muster_pipeline::model::AllowFailure;

use super::engine::Engine;
use super::event::{Action, JobRef, Outcome, Refusal};
use super::retry::allowed_retries;

impl Engine {
    /// Moves a pending job to running after it was assigned to a runner manager.
    pub(super) fn job_taken(&mut self, job: JobRef, winds_down: bool) -> Result<(), Refusal> {
        let to = self.script_status(job)?.after(JobEvent::Run)?;
        self.change(job.pipeline, job.place, |state| state.winds_down = winds_down);
        self.move_to(job.pipeline, job.place, to, None);
        Ok(())
    }

    /// Returns an assigned job to the queue.
    pub(super) fn job_given_back(&mut self, job: JobRef) -> Result<(), Refusal> {
        let to = self.script_status(job)?.after(JobEvent::Requeue)?;
        self.move_to(job.pipeline, job.place, to, None);
        self.work.actions.push(Action::Enqueue { job });
        Ok(())
    }

    /// Ends a job with the outcome that its runner or the coordinator reports.
    pub(super) fn job_finished(&mut self, job: JobRef, outcome: Outcome) -> Result<(), Refusal> {
        let from = self.script_status(job)?;
        match outcome {
            Outcome::Success if !from.is_on_runner() => {
                return Err(InvalidTransition { from, event: JobEvent::Succeed }.into());
            }
            Outcome::Success => {
                let to = from.after(JobEvent::Succeed)?;
                self.move_to(job.pipeline, job.place, to, None);
            }
            Outcome::Failed { reason, exit_code } => {
                if from.after(JobEvent::Drop)? == JobStatus::Canceled {
                    self.move_to(job.pipeline, job.place, JobStatus::Canceled, None);
                } else {
                    self.fail(job.pipeline, job.place, reason, exit_code);
                }
            }
        }
        Ok(())
    }

    /// Retries a finished job on request: creates a new record, and lets jobs that were skipped after it wait again.
    pub(super) fn retry_by_person(&mut self, job: JobRef) -> Result<(), Refusal> {
        let status = self.newest_state(job)?.status;
        if !matches!(status, JobStatus::Success | JobStatus::Failed | JobStatus::Canceled) {
            return Err(Refusal::NotRetryable { job, status });
        }
        self.create_retry(job.pipeline, job.place);
        Ok(())
    }

    /// Fails a job. Retries it automatically if its `retry` allows that.
    pub(super) fn fail(&mut self, pipeline: PipelineId, place: usize, reason: FailureReason, exit_code: Option<i32>) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        let node = &state.graph.nodes[place];
        let job = &state.jobs[place];
        if node.bridge.is_none() && job.retry < allowed_retries(&node.retry, reason, exit_code) {
            // The old record ends as failed, but no job waits for it: the new record replaces it at once.
            let (old, from, allowed) = (state.job_ref(place), job.status, job.allowed);
            let to = JobStatus::Failed;
            self.work.actions.push(Action::JobStatusChanged { job: old, from, to, reason: Some(reason), allowed });
            return self.create_retry(pipeline, place);
        }
        let listed = match (&node.allow_failure, exit_code) {
            (AllowFailure::ExitCodes(codes), Some(code)) => codes.contains(&code),
            _ => false,
        };
        let cancel_others = state.graph.auto_cancel.on_job_failure && !(job.allowed || listed);
        self.change(pipeline, place, |job| job.allowed |= listed);
        self.move_to(pipeline, place, JobStatus::Failed, Some(reason));
        if cancel_others {
            self.cancel_pipeline(pipeline, false);
        }
    }

    /// Replaces the newest record of a job by a new one, which needs no manual start and no delay.
    fn create_retry(&mut self, pipeline: PipelineId, place: usize) {
        let Some(state) = self.pipelines.get_mut(&pipeline) else { return };
        let old = state.job_ref(place);
        let from = state.jobs[place].status;
        let allowed = state.graph.nodes[place].allow_failure == AllowFailure::Yes;
        state.change(place, &mut self.work.wake, |job| {
            job.retry += 1;
            job.status = JobStatus::Created;
            job.allowed = allowed;
            job.asked = true;
            job.winds_down = false;
            job.timer_at = None;
            job.child = None;
        });
        self.work.actions.push(Action::CreateRetry { old, new: state.job_ref(place) });
        self.after_move(pipeline, place, from, JobStatus::Created);
        self.work.wake.push_back((pipeline, place));
    }

    /// Returns the status of a job that runs on a runner. Bridges are rejected.
    fn script_status(&self, job: JobRef) -> Result<JobStatus, Refusal> {
        let status = self.newest_state(job)?.status;
        let bridge = self
            .pipelines
            .get(&job.pipeline)
            .and_then(|state| state.graph.nodes.get(job.place))
            .is_some_and(|node| node.bridge.is_some());
        if bridge { Err(Refusal::IsBridge(job)) } else { Ok(status) }
    }
}
