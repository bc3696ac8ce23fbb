//! A job that has ended where it ran, and whose end the coordinator does not take: it needs no slot to be reported.
//!
//! The first report that is not taken gives the slot back, so that a coordinator in trouble does not stand in the way of
//! other jobs. Log and result stay in the agent's spool; how many jobs may wait so is bounded: those beyond it keep
//! their slots. `muster_unreported_jobs` counts them, `/debug/jobs/list` shows them as ended.

use std::sync::Arc;

use muster_agent_api::result::JobResult;
use muster_executor::ExecutionEnvironment;
use muster_runner_api::wire::UpdateRequest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Actor;
use super::progress::AgentProgress;
use crate::lower::suspension;
use crate::state::JobState;
use crate::store::RunName;

/// What the actors of a manager share for it.
#[derive(Debug, Clone)]
pub(crate) struct Unreported {
    places: Arc<Semaphore>,
    /// Hears of each slot that is given back. No more are on their way than there are jobs.
    freed: mpsc::UnboundedSender<RunName>,
}

impl Unreported {
    /// That of a manager in which `max` jobs may wait so, and what it hears.
    pub(crate) fn new(max: usize) -> (Self, mpsc::UnboundedReceiver<RunName>) {
        let (freed, heard) = mpsc::unbounded_channel();
        (Self { places: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))), freed }, heard)
    }
}

/// Where a job has ended that has no slot any more.
pub(super) struct Afterwards {
    environment: Arc<dyn ExecutionEnvironment>,
    /// None beyond the bound: a job of an earlier start, whose slot is gone already.
    _place: Option<OwnedSemaphorePermit>,
}

impl Actor {
    /// Where the job is, with a slot or without.
    pub(super) fn environment(&self) -> Option<Arc<dyn ExecutionEnvironment>> {
        let afterwards = || self.afterwards.as_ref().map(|afterwards| Arc::clone(&afterwards.environment));
        self.lease.as_ref().map(|lease| Arc::clone(&lease.environment)).or_else(afterwards)
    }

    /// Goes on without a slot, as before the restart.
    pub(super) fn find_again(&mut self) {
        let JobState::Finished { place, .. } = &self.state else { return };
        match self.context.provider.environment_without_lease(place) {
            Some(environment) => {
                let _place = Arc::clone(&self.context.unreported.places).try_acquire_owned().ok();
                self.afterwards = Some(Afterwards { environment, _place });
            }
            None => self.no_lease = Some(format!("the environment {} is gone", place.environment)),
        }
    }

    /// The job has a result: its watchers hear of it. What is to be reported.
    pub(super) fn ended(&mut self, result: &JobResult) -> UpdateRequest {
        self.progress.reach(AgentProgress::Executed);
        if let (Some(used), Some(lease), AgentProgress::Executed) = (&result.used, &self.lease, self.progress) {
            self.progress.reach(AgentProgress::UsageReported);
            if let Some(environment) = lease.environment.sharing() {
                environment.report_usage(used);
            }
        }
        self.uploader.ending();
        // A job that the coordinator did not cancel was wound down by a manager: this one, or the one before it, which ended
        // before it could report.
        let interrupted = self.context.cancel.is_cancelled() || !self.uploader.is_canceled();
        let update = crate::failure::of_result(&self.payload, result, self.state.log_start(), interrupted);
        self.watch.ended(result, update.failure_reason.as_deref(), update.exit_code);
        update
    }

    /// A report was not taken: the slot of a job that has ended is another one's from now on. Stored before (R2): a
    /// successor must not take the slot for this job again.
    pub(super) async fn give_back(&mut self) {
        // What it leaves is on its instance, which goes with the slot.
        let leaves = |success| suspension::leaves(&self.payload, &self.context.runner, success).is_some();
        if leaves(true) || leaves(false) {
            return;
        }
        let (true, JobState::Leased { lease: place, .. } | JobState::Running { lease: place, .. }) =
            (self.progress.is_executed(), &self.state)
        else {
            return;
        };
        let Some(environment) = self.context.provider.environment_without_lease(place) else { return };
        let Ok(permit) = Arc::clone(&self.context.unreported.places).try_acquire_owned() else {
            return tracing::warn!("too many ended jobs wait for the coordinator: this one keeps its slot");
        };
        let next = match self.state.clone().finish() {
            Ok(next) => next,
            Err(error) => return tracing::error!(%error, "the slot is kept"),
        };
        if let Err(error) = self.move_to(next).await {
            return tracing::error!(error = &error as &dyn std::error::Error, "the slot is kept");
        }
        self.afterwards = Some(Afterwards { environment, _place: Some(permit) });
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
        self.permit = None;
        // A manager that is gone counts no jobs.
        let _ = self.context.unreported.freed.send(self.run.clone());
        tracing::warn!("the coordinator does not take the job's end: its slot is free, it is reported from the spool");
    }
}
