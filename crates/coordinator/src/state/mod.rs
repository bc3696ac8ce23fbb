//! The state of the coordinator in memory: the rows of open pipelines, the engines, and the set of rows that are not stored yet.
//!
//! Finished pipeline hierarchies are removed ([`hierarchies`]) and read again when a command needs them.
//!
//! A change is first applied here, and then written to the store with the next batch.

mod dirty;
mod hierarchies;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_job::{JobId, PipelineId, ProjectId, RunnerId};
use muster_pipeline::context::Context;

use crate::clock::Timestamp;
use crate::error::{CoordinatorError, StoreError};
use crate::facts::SharedSources;
use crate::outbox::JobChange;
use crate::registry::RunnerRegistry;
use crate::schedule::{Action, Engine, JobRef};
use crate::store::{ArtifactRow, Contents, JobRow, LastIds, PipelineRow};
use crate::views::{self, JobView, PipelineView};

pub(crate) use dirty::Dirty;

#[derive(Default)]
pub(crate) struct CoordinatorState {
    pub(crate) engines: BTreeMap<ProjectId, Engine>,
    pub(crate) pipelines: BTreeMap<PipelineId, PipelineRow>,
    /// Context that each pipeline was compiled for.
    pub(crate) contexts: HashMap<PipelineId, Arc<Context>>,
    pub(crate) sources: HashMap<PipelineId, SharedSources>,
    /// Priorities in the queue, by pipeline and job index: the length of the longest path from the job to the end of the pipeline.
    pub(crate) priorities: HashMap<PipelineId, Vec<u64>>,
    pub(crate) jobs: BTreeMap<JobId, JobRow>,
    pub(crate) ids: HashMap<JobRef, JobId>,
    /// Whether it is known that all pipelines of the store are in memory.
    pub(crate) all_in_memory: bool,
    /// Pipelines of each hierarchy, oldest first, by the root of the hierarchy.
    hierarchies: HashMap<PipelineId, Vec<PipelineId>>,
    records: HashMap<PipelineId, Records>,
    pub(crate) artifacts: BTreeMap<JobId, Vec<ArtifactRow>>,
    pub(crate) registry: RunnerRegistry,
    /// Time of the last contact for each job on a runner. Not stored: a restart counts as contact for all jobs.
    pub(crate) last_contact: HashMap<JobId, Timestamp>,
    /// Assigned jobs, by runner and idempotency key of the request.
    pub(crate) jobs_by_key: HashMap<(RunnerId, String), JobId>,
    pub(crate) dirty: Dirty,
    /// Whether events are added to the outbox.
    writes_events: bool,
    next_job: i64,
    next_pipeline: i64,
}

/// Jobs of a pipeline. A job that was retried has several records.
#[derive(Default)]
struct Records {
    /// All records, those of the same job oldest first.
    all: Vec<JobId>,
    /// Newest record of each job, by job index.
    newest: Vec<JobId>,
    /// Job indexes, by the name of the job.
    indexes: HashMap<String, usize>,
    /// Indexes of jobs that uploaded an artifact of any kind.
    producers: BTreeSet<usize>,
}

/// Actions, by project, that the last process may not have carried out.
pub(crate) type RestoredActions = Vec<(ProjectId, Vec<Action>)>;

impl CoordinatorState {
    /// Restores the state of a store's unfinished work, with the actions that may not have been carried out.
    ///
    /// `first_pipeline` and `first_job` are used if the store has never assigned an ID.
    pub(crate) fn restore(
        contents: Contents,
        last: LastIds,
        (first_pipeline, first_job): (PipelineId, JobId),
        writes_events: bool,
        now_ms: u64,
    ) -> Result<(Self, RestoredActions), StoreError> {
        let mut contents = contents;
        let (runners, managers) = (std::mem::take(&mut contents.runners), std::mem::take(&mut contents.managers));
        let mut state = Self {
            registry: RunnerRegistry::new(runners, managers, last.runner),
            writes_events,
            all_in_memory: last.pipeline.is_none(),
            next_pipeline: last.pipeline.map_or(first_pipeline.0, |id| id.0 + 1),
            next_job: last.job.map_or(first_job.0, |id| id.0 + 1),
            ..Self::default()
        };
        let actions = state.admit(contents, now_ms)?;
        Ok((state, actions))
    }

    pub(crate) fn read_only(mut contents: Contents) -> Self {
        let runners = std::mem::take(&mut contents.runners);
        let mut state = Self { registry: RunnerRegistry::new(runners, Vec::new(), None), ..Self::default() };
        state.add_rows(contents);
        state
    }

    /// Returns the newest record of each job.
    pub(crate) fn newest_records(&self, pipeline: PipelineId) -> impl Iterator<Item = &JobRow> {
        let newest = self.records.get(&pipeline).into_iter().flat_map(|records| &records.newest);
        newest.filter_map(|id| self.jobs.get(id))
    }

    pub(crate) fn newest_named(&self, pipeline: PipelineId, name: &str) -> Option<&JobRow> {
        let records = self.records.get(&pipeline)?;
        self.jobs.get(records.newest.get(*records.indexes.get(name)?)?)
    }

    pub(crate) fn producers(&self, pipeline: PipelineId) -> impl Iterator<Item = &JobRow> {
        let records = self.records.get(&pipeline);
        let indexes = records.into_iter().flat_map(|records| &records.producers);
        indexes.filter_map(move |job_index| self.jobs.get(records?.newest.get(*job_index)?))
    }

    pub(crate) fn record_producer(&mut self, job: JobId) {
        let Some(row) = self.jobs.get(&job) else { return };
        if let Some(records) = self.records.get_mut(&row.pipeline) {
            records.producers.insert(row.job_index);
        }
    }

    pub(crate) fn jobs_of(&self, pipeline: PipelineId) -> impl Iterator<Item = &JobRow> {
        let all = self.records.get(&pipeline).into_iter().flat_map(|records| &records.all);
        all.filter_map(|id| self.jobs.get(id))
    }

    /// Attaches files to a pipeline, and to those of its descendants that have no files.
    pub(crate) fn attach(&mut self, pipeline: PipelineId, sources: &SharedSources) {
        self.sources.insert(pipeline, Arc::clone(sources));
        for row in self.pipelines.values() {
            // Parents are older than their children, so one pass is enough.
            if row.parent.is_some_and(|parent| self.sources.contains_key(&parent.pipeline)) {
                self.sources.entry(row.id).or_insert_with(|| Arc::clone(sources));
            }
        }
    }

    pub(crate) fn new_pipeline_id(&mut self) -> PipelineId {
        let id = PipelineId(self.next_pipeline);
        self.next_pipeline += 1;
        id
    }

    pub(crate) fn new_job_id(&mut self) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        id
    }

    pub(crate) fn add_new(&mut self, row: JobRow) {
        if let Some(pipeline) = self.pipelines.get(&row.pipeline) {
            let created = JobChange::Created {
                project: pipeline.spec.project.id,
                name: row.name.clone(),
                stage: row.stage.clone(),
                kind: row.kind,
                attempt: row.attempt,
            };
            if self.writes_events {
                self.dirty.add_event(row.created_at, &row, created);
            }
        }
        self.dirty.jobs.insert(row.id);
        self.add(row);
    }

    fn add(&mut self, row: JobRow) {
        self.ids.insert(row.job_ref(), row.id);
        let records = self.records.entry(row.pipeline).or_default();
        records.all.push(row.id);
        // Job indexes come in ascending order, and the records of one job oldest first.
        match records.newest.get_mut(row.job_index) {
            Some(newest) => *newest = row.id,
            None => records.newest.push(row.id),
        }
        records.indexes.entry(row.name.clone()).or_insert(row.job_index);
        if let (Some(runner), Some(key), true) =
            (row.runner, row.detail.idempotency_key.clone(), row.status().is_on_runner())
        {
            self.jobs_by_key.insert((runner, key), row.id);
        }
        self.jobs.insert(row.id, row);
    }

    pub(crate) fn add_event(&mut self, at: Timestamp, job: JobId, change: JobChange) {
        if self.writes_events
            && let Some(row) = self.jobs.get(&job)
        {
            self.dirty.add_event(at, row, change);
        }
    }

    pub(crate) fn job_mut(&mut self, job: JobId) -> Option<&mut JobRow> {
        let row = self.jobs.get_mut(&job)?;
        self.dirty.jobs.insert(job);
        Some(row)
    }

    pub(crate) fn pipeline_mut(&mut self, pipeline: PipelineId) -> Option<&mut PipelineRow> {
        let row = self.pipelines.get_mut(&pipeline)?;
        self.dirty.pipelines.insert(pipeline);
        Some(row)
    }

    pub(crate) fn artifact(&self, job: JobId, kind: &str) -> Option<&ArtifactRow> {
        self.artifacts.get(&job)?.iter().find(|artifact| artifact.kind == kind)
    }

    pub(crate) fn mark_deleted(&mut self, job: JobId, kind: String) {
        let row = self.artifacts.get_mut(&job).into_iter().flatten().find(|row| row.kind == kind);
        if let Some(row) = row {
            row.deleted = true;
        }
        self.dirty.deleted_artifacts.insert((job, kind));
    }

    /// Counts the entries of all maps, for tests.
    #[cfg(test)]
    pub(crate) fn pipeline_entries(&self) -> usize {
        let of_pipelines = self.engines.len() + self.pipelines.len() + self.contexts.len() + self.sources.len();
        let of_hierarchies = self.priorities.len() + self.hierarchies.len() + self.records.len();
        let of_jobs = self.jobs.len() + self.ids.len() + self.artifacts.len();
        of_pipelines + of_hierarchies + of_jobs + self.last_contact.len() + self.jobs_by_key.len()
    }

    pub(crate) fn job_view(&self, job: JobId) -> Option<JobView> {
        let row = self.jobs.get(&job)?;
        let compiled = self.pipelines.get(&row.pipeline)?.compiled.jobs.get(row.job_index);
        let artifacts = self.artifacts.get(&job).map_or(&[][..], Vec::as_slice);
        let runner = row.runner.and_then(|id| self.registry.get(id));
        Some(views::job(row, compiled, artifacts, runner))
    }

    pub(crate) fn pipeline_view(
        &self,
        pipeline: PipelineId,
        problem: Option<&str>,
    ) -> Result<PipelineView, CoordinatorError> {
        let row = self.pipelines.get(&pipeline);
        let row = row.ok_or_else(|| CoordinatorError::NotFound(format!("pipeline {pipeline}")))?;
        let jobs = self.jobs_of(pipeline).filter_map(|job| self.job_view(job.id)).collect();
        Ok(PipelineView { summary: views::summary(row, problem), jobs })
    }
}
