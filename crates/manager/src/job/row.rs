//! A job's row in `state.log`: its state, and the only way to change it.

use std::sync::Arc;
use std::time::Instant;

use super::JobError;
use crate::observe::JobWatch;
use crate::state::{InvalidTransition, JobState};
use crate::store::{JobRunId, Store, StoreError};

/// One job's row. Every change is stored before it is visible.
pub(super) struct JobRow {
    store: Arc<Store>,
    watch: Arc<JobWatch>,
    run: JobRunId,
    /// Prefix of the job's run IDs at agents. The number of the attempt follows.
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

    /// Returns the ID of the job, which is unique among all coordinators.
    pub(super) fn run(&self) -> &JobRunId {
        &self.run
    }

    pub(super) fn state(&self) -> &JobState {
        &self.state
    }

    /// Returns the ID of the current attempt at its agent. `None` means that no agent can know the job.
    pub(super) fn run_id(&self) -> Option<String> {
        self.state.attempt().map(|attempt| format!("{}-{attempt}", self.agent_run_prefix))
    }

    /// Applies `change` to the current state and stores the result.
    ///
    /// If the result cannot be stored, the state does not change.
    ///
    /// # Errors
    /// [`JobError::Transition`] if the current state does not allow the change, [`JobError::Store`] if it cannot be stored.
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

    /// Deletes the row: nothing is left to do for the job.
    ///
    /// # Errors
    /// [`StoreError`] if the deletion cannot be stored.
    pub(super) fn delete(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        self.store.delete(&self.run)?;
        self.watch.stored("delete", began.elapsed());
        Ok(())
    }
}
