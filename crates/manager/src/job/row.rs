//! A job's row in `state.log`.

use std::sync::Arc;
use std::time::Instant;

use super::JobError;
use crate::observe::JobWatch;
use crate::state::{InvalidTransition, JobState};
use crate::store::{JobRunId, Store, StoreError};

/// Every change is stored before it is visible.
pub(super) struct JobRow {
    store: Arc<Store>,
    watch: Arc<JobWatch>,
    run: JobRunId,
    /// Prefix of the run IDs at agents. The number of the attempt follows.
    agent_run_prefix: String,
    state: JobState,
}

impl JobRow {
    pub(super) fn new(
        store: Arc<Store>,
        watch: Arc<JobWatch>,
        run: JobRunId,
        agent_run_prefix: String,
        state: JobState,
    ) -> Self {
        Self { store, watch, run, agent_run_prefix, state }
    }

    /// Returns the job's ID. Jobs of different coordinators have different IDs.
    pub(super) fn job_run_id(&self) -> &JobRunId {
        &self.run
    }

    pub(super) fn state(&self) -> &JobState {
        &self.state
    }

    /// Returns the ID by which an agent knows the current attempt to run the job. `None` means that no agent can know
    /// the job.
    pub(super) fn agent_run_id(&self) -> Option<String> {
        self.state.attempt().map(|attempt| format!("{}-{attempt}", self.agent_run_prefix))
    }

    /// If the state that `change` computes cannot be stored, the state does not change.
    pub(super) fn transition(
        &mut self,
        change: impl FnOnce(JobState) -> Result<JobState, InvalidTransition>,
    ) -> Result<(), JobError> {
        let next = change(self.state.clone())?;
        let began = Instant::now();
        self.store.set_state(&self.run, &next)?;
        self.watch.stored("update", began.elapsed());
        tracing::debug!(from = self.state.name(), to = next.name(), "job state changed");
        self.state = next;
        Ok(())
    }

    pub(super) fn delete(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        self.store.delete(&self.run)?;
        self.watch.stored("delete", began.elapsed());
        Ok(())
    }
}
