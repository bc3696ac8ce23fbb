//! Restores an engine from stored rows, which is also how every start works. Finished pipelines can leave the engine and return.

use std::collections::BTreeMap;

use muster_job::{JobStatus, PipelineId};

use super::engine::Engine;
use super::event::{Action, JobRef, JobState, ResourceMode};
use super::graph::Graph;
use super::groups::Member;

/// A pipeline as it was stored.
#[derive(Debug, Clone)]
pub struct StoredPipeline {
    /// ID of the pipeline.
    pub pipeline: PipelineId,
    /// Graph of the same compiled pipeline as at its creation.
    pub graph: Graph,
    /// Bridge that started this pipeline. `None` if it has no parent.
    pub parent: Option<JobRef>,
    /// Status that was last published by [`Action::PipelineStatusChanged`]; `created` before the first one.
    pub status: JobStatus,
    /// Newest record of each job, by job index.
    pub jobs: Vec<JobState>,
}

/// Error for stored rows that do not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Rows are missing, or belong to another graph.
    #[error("pipeline {pipeline} has {expected} jobs, but {stored} are stored")]
    JobCount {
        /// ID of the pipeline.
        pipeline: PipelineId,
        /// Number of jobs in the graph.
        expected: usize,
        /// Number of stored rows.
        stored: usize,
    },
    /// The same pipeline is stored twice.
    #[error("pipeline {0} is stored twice")]
    Twice(PipelineId),
}

impl Engine {
    /// Creates the engine that stored these rows.
    ///
    /// Also returns the actions that may not have been carried out before the last stop, and those that were not decided yet. The order
    /// of the pipelines does not matter.
    ///
    /// # Errors
    /// [`RestoreError`] if the rows do not fit together.
    pub fn restore(
        stored: Vec<StoredPipeline>,
        modes: &BTreeMap<String, ResourceMode>,
        now: u64,
    ) -> Result<(Self, Vec<Action>), RestoreError> {
        let mut engine = Self::new();
        for (name, mode) in modes {
            engine.groups.set_mode(name, *mode);
        }
        let actions = engine.admit(stored, now)?;
        Ok((engine, actions))
    }

    /// Adds stored pipelines, always whole hierarchies. Returns the same actions as [`Engine::restore`].
    ///
    /// # Errors
    /// [`RestoreError`] if the rows do not fit together.
    pub fn admit(&mut self, mut stored: Vec<StoredPipeline>, now: u64) -> Result<Vec<Action>, RestoreError> {
        self.work.now = now;
        // Parents are older than their children.
        stored.sort_by_key(|row| row.pipeline);
        let admitted: Vec<PipelineId> = stored.iter().map(|row| row.pipeline).collect();
        for StoredPipeline { pipeline, graph, parent, status, jobs } in stored {
            if self.pipelines.contains_key(&pipeline) {
                return Err(RestoreError::Twice(pipeline));
            }
            if graph.len() != jobs.len() {
                return Err(RestoreError::JobCount { pipeline, expected: graph.len(), stored: jobs.len() });
            }
            self.insert(pipeline, graph, jobs, parent);
            if let Some(state) = self.pipelines.get_mut(&pipeline) {
                state.status = status;
            }
        }
        self.pending_actions(&admitted);
        self.propagate();
        Ok(std::mem::take(&mut self.work.actions))
    }

    /// Removes a finished pipeline. Remove its descendants first.
    pub fn forget(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.remove(&pipeline) else { return };
        for (job_index, group) in state.groups.iter().enumerate() {
            if let Some(group) = *group {
                self.groups.leave(group, Member { root: state.root, pipeline, job_index });
            }
        }
    }

    /// Returns whether the engine equals a new one: it has no pipelines and no resource groups.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pipelines.is_empty() && self.groups.is_empty()
    }

    /// Repeats the actions that the state of the jobs says are still to be done outside the engine.
    fn pending_actions(&mut self, pipelines: &[PipelineId]) {
        for state in pipelines.iter().filter_map(|id| self.pipelines.get(id)) {
            for (job_index, job) in state.jobs.iter().enumerate() {
                let bridge = state.graph.nodes[job_index].bridge.is_some();
                let at = state.job_ref(job_index);
                let action = match (job.status, job.timer_at) {
                    (JobStatus::Pending, _) if !bridge => Action::Enqueue { job: at },
                    (JobStatus::Pending, _) if job.child.is_none() => Action::CreateChild { bridge: at },
                    (JobStatus::Scheduled, Some(due)) => Action::StartTimer { job: at, at: due },
                    (JobStatus::Canceling, _) if !bridge => Action::CancelOnRunner { job: at, gracefully: true },
                    _ => continue,
                };
                self.work.actions.push(action);
            }
        }
        self.work.freed.extend(self.groups.numbers());
    }
}
