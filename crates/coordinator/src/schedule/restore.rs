//! The engine from what the shell stored: the ordinary start, also after a crash. Pipelines that have ended can leave the
//! engine, and come back to it.

use std::collections::BTreeMap;

use muster_job::{JobStatus, PipelineId};

use super::engine::Engine;
use super::event::{Action, JobRef, JobState, ResourceMode};
use super::graph::Graph;
use super::groups::Member;

/// A stored pipeline.
#[derive(Debug, Clone)]
pub struct StoredPipeline {
    /// Its id.
    pub pipeline: PipelineId,
    /// From the same compiled pipeline as at its creation.
    pub graph: Graph,
    /// The bridge that it is a child of.
    pub parent: Option<JobRef>,
    /// As last published by [`Action::PipelineStatusChanged`]; `created` before the first.
    pub status: JobStatus,
    /// The newest record of each job, in the order of their places.
    pub jobs: Vec<JobState>,
}

/// Why stored rows make no engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Rows are missing, or belong to another graph.
    #[error("pipeline {pipeline} has {expected} jobs, but {stored} are stored")]
    JobCount {
        /// Which.
        pipeline: PipelineId,
        /// By its graph.
        expected: usize,
        /// By its rows.
        stored: usize,
    },
    /// The same pipeline twice.
    #[error("pipeline {0} is stored twice")]
    Twice(PipelineId),
}

impl Engine {
    /// Makes the engine that stored these rows, and says what has to be done (again): what was to be done outside the
    /// store before the last end, and what was not decided yet. Order of the pipelines does not matter.
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

    /// Takes in stored pipelines beside those that it has: whole hierarchies. The actions are as for [`Engine::restore`].
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
        self.ask_again(&admitted);
        self.settle();
        Ok(std::mem::take(&mut self.work.actions))
    }

    /// Removes a pipeline of which nothing is left to do. Descendants are removed before it.
    pub fn forget(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.remove(&pipeline) else { return };
        for (place, group) in state.groups.iter().enumerate() {
            if let Some(group) = *group {
                self.groups.leave(group, Member { root: state.root, pipeline, place });
            }
        }
    }

    /// Whether it has nothing that a new engine lacks.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pipelines.is_empty() && self.groups.is_empty()
    }

    /// Repeats the requests to the outside that the state of the jobs says are open.
    fn ask_again(&mut self, pipelines: &[PipelineId]) {
        for state in pipelines.iter().filter_map(|id| self.pipelines.get(id)) {
            for (place, job) in state.jobs.iter().enumerate() {
                let bridge = state.graph.nodes[place].bridge.is_some();
                let at = state.job_ref(place);
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
