//! Pipeline hierarchies: a pipeline without a parent, with all its descendants. A hierarchy is in memory completely or
//! not at all.
//!
//! A hierarchy is *finished* if it makes no progress without a command: each pipeline has ended, and each job has ended
//! or waits for a manual start that no other job needs. A finished hierarchy is marked as not open, and can be removed
//! from memory. Its rows are read again before a command changes the hierarchy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_job::{JobStatus, PipelineId, ProjectId};

use super::{CoordinatorState, RestoredActions};
use crate::error::StoreError;
use crate::schedule::{Graph, StoredPipeline, priority};
use crate::store::{Contents, PipelineRow};

impl CoordinatorState {
    /// Adds stored hierarchies. Returns the actions that a stopped process may have left undone.
    pub(crate) fn admit(&mut self, contents: Contents, now_ms: u64) -> Result<RestoredActions, StoreError> {
        let damaged = |reason: String| StoreError::Damaged { value: "the jobs of a pipeline".to_owned(), reason };
        let pipelines: Vec<PipelineId> = contents.pipelines.iter().map(|row| row.id).collect();
        self.add_rows(contents);
        let mut stored: BTreeMap<ProjectId, Vec<StoredPipeline>> = BTreeMap::new();
        for row in pipelines.iter().filter_map(|id| self.pipelines.get(id)) {
            let graph = Graph::new(&row.compiled).map_err(|error| damaged(error.to_string()))?;
            self.priorities.insert(row.id, priority(&graph, &[]));
            stored.entry(row.spec.project.id).or_default().push(StoredPipeline {
                pipeline: row.id,
                graph,
                parent: row.parent.and_then(|parent| Some(self.jobs.get(&parent.bridge)?.job_ref())),
                status: row.status,
                jobs: self.newest_records(row.id).map(|job| job.detail.state.clone()).collect(),
            });
        }
        let mut actions = Vec::new();
        for (project, pipelines) in stored {
            let engine = self.engines.entry(project).or_default();
            let admitted = engine.admit(pipelines, now_ms).map_err(|error| damaged(error.to_string()))?;
            actions.push((project, admitted));
        }
        Ok(actions)
    }

    pub(crate) fn add_rows(&mut self, contents: Contents) {
        for row in contents.artifacts {
            self.artifacts.entry(row.job).or_default().push(row);
        }
        for row in contents.pipelines {
            self.contexts.insert(row.id, Arc::new(row.spec.context()));
            self.add_pipeline(row);
        }
        for row in contents.jobs {
            let (id, is_producer) = (row.id, !row.detail.dotenv.is_empty() || self.artifacts.contains_key(&row.id));
            self.add(row);
            if is_producer {
                self.record_producer(id);
            }
        }
    }

    pub(crate) fn add_pipeline(&mut self, row: PipelineRow) {
        self.hierarchies.entry(row.root).or_default().push(row.id);
        self.pipelines.insert(row.id, row);
    }

    /// Returns the root of a pipeline's hierarchy. `None` if the pipeline is not in memory.
    pub(crate) fn root(&self, pipeline: PipelineId) -> Option<PipelineId> {
        self.pipelines.get(&pipeline).map(|row| row.root)
    }

    pub(crate) fn hierarchy(&self, root: PipelineId) -> impl Iterator<Item = &PipelineRow> {
        self.hierarchies.get(&root).into_iter().flatten().filter_map(|id| self.pipelines.get(id))
    }

    pub(crate) fn changed_hierarchies(&self) -> BTreeSet<PipelineId> {
        let dirty = &self.dirty;
        let of_jobs = dirty.jobs.iter().filter_map(|job| Some(self.jobs.get(job)?.pipeline));
        let pipelines = dirty.pipelines.iter().chain(&dirty.new_pipelines).copied();
        pipelines.chain(of_jobs).filter_map(|id| self.root(id)).collect()
    }

    pub(crate) fn is_finished(&self, root: PipelineId) -> bool {
        let is_non_blocking = |status: JobStatus| status.is_complete() || status == JobStatus::Manual;
        self.hierarchy(root).all(|row| row.status.is_complete())
            && self.hierarchy(root).all(|row| self.jobs_of(row.id).all(|job| is_non_blocking(job.status())))
    }

    /// Marks a hierarchy as open or not open in its rows. Rows that already have the mark are not marked as changed.
    pub(crate) fn set_open(&mut self, root: PipelineId, open: bool) {
        let ids = self.hierarchies.get(&root).cloned().unwrap_or_default();
        for id in ids {
            if self.pipelines.get(&id).is_some_and(|row| row.open != open)
                && let Some(row) = self.pipeline_mut(id)
            {
                row.open = open;
            }
        }
    }

    pub(crate) fn evict(&mut self, root: PipelineId) {
        let ids = self.hierarchies.remove(&root).unwrap_or_default();
        self.all_in_memory = false;
        // Descendants are removed before their parents.
        for id in ids.into_iter().rev() {
            if let Some(row) = self.pipelines.remove(&id)
                && let Some(engine) = self.engines.get_mut(&row.spec.project.id)
            {
                engine.forget(id);
            }
            self.contexts.remove(&id);
            self.sources.remove(&id);
            self.priorities.remove(&id);
            for job in self.records.remove(&id).map(|records| records.all).unwrap_or_default() {
                if let Some(row) = self.jobs.remove(&job) {
                    self.ids.remove(&row.job_ref());
                }
                self.artifacts.remove(&job);
                self.last_contact.remove(&job);
            }
        }
        self.engines.retain(|_, engine| !engine.is_idle());
    }
}
