//! The actor of one job, from its stored state to its report.

use std::sync::Arc;

use muster_executor::Lease;
use muster_runner_api::payload::JobPayload;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use super::environment::JobEnvironment;
use super::follow::{self, FollowOutcome};
use super::interrupt::{Interruption, watch_for_interruption};
use super::preparation::Preparation;
use super::progress::AgentProgress;
use super::row::JobRow;
use super::uploader::{UploadOutcome, Uploader};
use super::{CLOSE_TIMEOUT, JobError, RunnerContext};
use crate::observe::JobWatch;
use crate::running::RunPermit;
use crate::state::{InvalidTransition, JobState};
use crate::store::StoredJob;

/// What the actor does after a step.
pub(super) enum Next {
    /// Continues with the state of the row.
    Continue,
    /// Cleans up, because the coordinator has the final update.
    Reported,
    /// Cleans up, because the coordinator no longer expects the job.
    JobGone,
}

/// Resources for the job's next actor after a failed write of `state.log`.
pub(super) struct Retained {
    pub(super) lease: Option<Lease>,
    pub(super) permit: Option<RunPermit>,
}

pub(super) struct JobActor {
    pub(super) runner: Arc<RunnerContext>,
    pub(super) watch: Arc<JobWatch>,
    pub(super) payload: Arc<JobPayload>,
    pub(super) row: JobRow,
    pub(super) environment: JobEnvironment,
    pub(super) preparation: Preparation,
    pub(super) progress: AgentProgress,
    pub(super) uploader: Uploader,
    /// `None` while the job waits for a permit, and after its slot was released.
    pub(super) permit: Option<RunPermit>,
}

impl JobActor {
    /// Creates the actor. If an earlier manager process held a lease for the job, starts to restore that lease.
    pub(super) fn new(
        runner: Arc<RunnerContext>,
        watch: &Arc<JobWatch>,
        job: StoredJob,
        retained: &mut Retained,
    ) -> Self {
        let agent_run_prefix = job.agent_run_prefix();
        let StoredJob { run, payload, state, .. } = job;
        let payload = Arc::new(payload);
        let environment = environment_of(&runner, &state, retained.lease.take());
        Self {
            preparation: Preparation::new(&payload, &runner.runner),
            uploader: Uploader::new(runner.client.clone(), Arc::clone(&payload), Arc::clone(watch), &runner.runner),
            row: JobRow::new(Arc::clone(&runner.store), Arc::clone(watch), run, agent_run_prefix, state),
            environment,
            progress: AgentProgress::default(),
            permit: retained.permit.take(),
            watch: Arc::clone(watch),
            payload,
            runner,
        }
    }

    pub(super) fn into_retained(self) -> Retained {
        Retained { lease: self.environment.into_lease(), permit: self.permit }
    }

    /// Runs the job to its end, and deletes its row.
    pub(super) async fn run(&mut self, recovered: bool) -> Result<(), JobError> {
        if recovered {
            tracing::info!(state = self.row.state().name(), "resuming job after restart");
            if !matches!(self.row.state(), JobState::Received { .. }) {
                // An earlier manager process may have sent `Run`.
                self.progress.reach(AgentProgress::Sent);
            }
            if matches!(self.row.state(), JobState::Running { .. } | JobState::AwaitingReport { .. }) {
                self.watch.restored_running();
            }
        }
        let mut interruption = self.accept().await;
        if interruption.is_none() && recovered && self.uploader.resync().await == UploadOutcome::JobGone {
            interruption = Some(Interruption::JobGone);
        }
        if interruption.is_none() {
            self.watch.accepted();
        }
        interruption = self.restore_lease(interruption).await;
        loop {
            let next = match interruption.take() {
                Some(interruption) => self.end_interrupted(&interruption).await?,
                None => self.advance().await?,
            };
            match next {
                Next::Continue => {}
                Next::Reported => {
                    tracing::info!("job reported");
                    return self.clean_up().await;
                }
                Next::JobGone => return self.clean_up().await,
            }
        }
    }

    /// Stores the next state. The actor must not act on a state before it is stored.
    pub(super) fn transition(
        &mut self,
        change: impl FnOnce(JobState) -> Result<JobState, InvalidTransition>,
    ) -> Result<Next, JobError> {
        self.row.transition(change).map(|()| Next::Continue)
    }

    /// Waits until the lease of an earlier manager process is restored.
    ///
    /// If the job must end anyway, the wait is at most [`CLOSE_TIMEOUT`].
    async fn restore_lease(&mut self, interruption: Option<Interruption>) -> Option<Interruption> {
        let is_ending = interruption.is_some()
            || matches!(self.row.state(), JobState::FailedByManager { .. } | JobState::Suspended { .. });
        let timeout =
            if is_ending { CLOSE_TIMEOUT } else { crate::lower::job_timeout(&self.payload) + follow::WATCHDOG_SLACK };
        tokio::select! {
            biased;
            () = self.environment.wait_restored(timeout) => interruption,
            new = watch_for_interruption(&mut self.uploader, &self.runner.cancel, None), if interruption.is_none() => {
                self.environment.abandon_restore();
                Some(new)
            }
        }
    }

    async fn advance(&mut self) -> Result<Next, JobError> {
        match self.row.state() {
            JobState::Received { .. } => match self.payload.decode_error().map(str::to_owned) {
                Some(error) => self.system_failure(&error).await,
                None => self.acquire_lease().await,
            },
            JobState::Leased { .. } => self.start().await,
            JobState::Running { .. } | JobState::AwaitingReport { .. } => self.follow_and_report().await,
            JobState::Suspended { lease, update, owner, trace_offset, .. } => {
                let (task_key, update, owner, trace_offset) =
                    (lease.task_key().map(str::to_owned), update.clone(), owner.clone(), *trace_offset);
                Ok(self.suspend_and_report(task_key.as_deref(), *update, &owner, trace_offset).await)
            }
            JobState::FailedByManager { outcome, .. } => {
                let outcome = outcome.clone();
                Ok(self.report_manager_outcome(&outcome).await)
            }
        }
    }

    /// Accepts the job, which is already stored (R1).
    ///
    /// Unlike gitlab-runner, waits for an answer: a coordinator that has requeued the job can reject it before anything starts (J2).
    async fn accept(&mut self) -> Option<Interruption> {
        // In a later state, an agent may have the job already, and the next upload contacts the coordinator.
        if !matches!(self.row.state(), JobState::Received { .. } | JobState::Leased { .. }) {
            return None;
        }
        loop {
            let outcome = tokio::select! {
                outcome = self.uploader.send() => outcome,
                () = self.runner.cancel.cancelled() => return Some(Interruption::ManagerStopping),
            };
            match outcome {
                UploadOutcome::Cancel => return Some(Interruption::Canceled),
                UploadOutcome::JobGone => return Some(Interruption::JobGone),
                UploadOutcome::Continue | UploadOutcome::Resync if !self.uploader.must_repeat() => return None,
                // The coordinator does not support this call, so no attempt would succeed.
                UploadOutcome::Continue | UploadOutcome::Resync if self.uploader.was_rejected() => return None,
                UploadOutcome::Continue | UploadOutcome::Resync => {}
            }
            tokio::select! {
                () = self.uploader.pause() => {}
                () = self.runner.cancel.cancelled() => return Some(Interruption::ManagerStopping),
            }
        }
    }

    /// Copies the log and reports the result (R4, R5).
    pub(super) async fn follow_and_report(&mut self) -> Result<Next, JobError> {
        loop {
            match self.follow().await {
                FollowOutcome::Result(result) => {
                    if let Some(next) = self.report_result(&result).await? {
                        return Ok(next);
                    }
                }
                FollowOutcome::JobGone => return Ok(Next::JobGone),
                FollowOutcome::Interrupted(interruption) => return self.end_interrupted(&interruption).await,
                FollowOutcome::Lost(message) if self.can_reschedule() => return self.reschedule(&message).await,
                FollowOutcome::Lost(message) => return self.fail_as_lost(&message).await,
                FollowOutcome::AgentRefused(message) => return self.system_failure(&message).await,
                FollowOutcome::Failed(error) => return Err(error),
            }
        }
    }
}

/// `retained` is the lease of the job's previous actor.
fn environment_of(runner: &RunnerContext, state: &JobState, retained: Option<Lease>) -> JobEnvironment {
    if let JobState::AwaitingReport { lease, .. } = state {
        return match runner.executor.environment_without_lease(lease) {
            Some(environment) => JobEnvironment::Released(runner.unreported.readmit(environment)),
            None => JobEnvironment::Lost(format!("environment {} no longer exists", lease.environment)),
        };
    }
    let Some(record) = state.held_lease() else { return JobEnvironment::Unassigned };
    if let Some(lease) = retained.filter(|lease| lease.record == *record) {
        return JobEnvironment::Leased(lease);
    }
    let (executor, record) = (Arc::clone(&runner.executor), record.clone());
    let restore = async move { executor.restore(&record).await }.in_current_span();
    JobEnvironment::Restoring(AbortOnDropHandle::new(tokio::spawn(restore)))
}
