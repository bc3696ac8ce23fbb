//! The coordinator's state in memory: the rows of what is open, the engines, and which rows are ahead of the store.
//!
//! A family of pipelines of which nothing is left to do is removed ([`families`]), and read again when somebody asks
//! something of it.
//!
//! A change is made here first and written with the batch. Where the write fails the rows stay marked, so the next
//! write carries them; until then nobody is told.

mod dirty;
mod families;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use muster_job::{JobId, PipelineId, ProjectId, RunnerId};
use muster_pipeline::context::Context;

use crate::clock::Timestamp;
use crate::error::{CoordinatorError, StoreError};
use crate::facts::SharedSources;
use crate::outbox::JobChange;
use crate::schedule::{Action, Engine, JobRef};
use crate::store::{ArtifactRow, Contents, JobRow, LastIds, ManagerRow, PipelineRow, RunnerRow};
use crate::views::{self, JobView, PipelineView};

pub(crate) use dirty::Dirty;

/// All state of one coordinator.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) engines: BTreeMap<ProjectId, Engine>,
    pub(crate) pipelines: BTreeMap<PipelineId, PipelineRow>,
    /// What each pipeline was compiled for.
    pub(crate) contexts: HashMap<PipelineId, Arc<Context>>,
    pub(crate) sources: HashMap<PipelineId, SharedSources>,
    /// Per pipeline and place: how much is to be done after the job, for the queue.
    pub(crate) priorities: HashMap<PipelineId, Vec<u64>>,
    pub(crate) jobs: BTreeMap<JobId, JobRow>,
    /// The ids of the engine's records.
    pub(crate) ids: HashMap<JobRef, JobId>,
    /// The store has no pipeline that is not here.
    pub(crate) all_in_memory: bool,
    /// The pipelines of each family, by the pipeline at the top, oldest first.
    families: HashMap<PipelineId, Vec<PipelineId>>,
    /// The records of each pipeline.
    records: HashMap<PipelineId, Records>,
    pub(crate) artifacts: BTreeMap<JobId, Vec<ArtifactRow>>,
    pub(crate) runners: BTreeMap<RunnerId, RunnerRow>,
    /// Runners by the hash of their token.
    pub(crate) tokens: HashMap<String, RunnerId>,
    pub(crate) managers: BTreeMap<(RunnerId, String), ManagerRow>,
    /// When a job on a runner was last heard of; not stored, a restart counts as a word from all.
    pub(crate) heard: HashMap<JobId, Timestamp>,
    /// Jobs that were given out for an idempotency key.
    pub(crate) keys: HashMap<(RunnerId, String), JobId>,
    /// What the database lacks.
    pub(crate) dirty: Dirty,
    next_job: i64,
    next_pipeline: i64,
    next_runner: i64,
}

/// The records of one pipeline, found without looking at all of them.
#[derive(Default)]
struct Records {
    /// All, oldest first.
    all: Vec<JobId>,
    /// The newest record at each place.
    newest: Vec<JobId>,
    /// Places by the job's full name.
    places: HashMap<String, usize>,
    /// Places of jobs that left an archive or a dotenv report.
    producers: BTreeSet<usize>,
}

/// Per project, the actions that may not have reached the outside before the last end.
pub(crate) type Repeated = Vec<(ProjectId, Vec<Action>)>;

impl World {
    /// The state of a store's open work, and the actions that may not have reached the outside, per project. The first
    /// ids count if the store has never given one.
    pub(crate) fn restore(
        contents: Contents,
        last: LastIds,
        (first_pipeline, first_job): (PipelineId, JobId),
        now_ms: u64,
    ) -> Result<(Self, Repeated), StoreError> {
        let mut world = Self {
            all_in_memory: last.pipeline.is_none(),
            next_pipeline: last.pipeline.map_or(first_pipeline.0, |id| id.0 + 1),
            next_job: last.job.map_or(first_job.0, |id| id.0 + 1),
            next_runner: last.runner.map_or(1, |id| id.0 + 1),
            ..Self::default()
        };
        let mut contents = contents;
        for row in std::mem::take(&mut contents.runners) {
            world.tokens.insert(row.token_hash.clone(), row.id);
            world.runners.insert(row.id, row);
        }
        for row in std::mem::take(&mut contents.managers) {
            world.managers.insert((row.runner, row.system_id.clone()), row);
        }
        let actions = world.admit(contents, now_ms)?;
        Ok((world, actions))
    }

    /// The rows alone, to look at.
    pub(crate) fn read(mut contents: Contents) -> Self {
        let mut world = Self::default();
        for row in std::mem::take(&mut contents.runners) {
            world.runners.insert(row.id, row);
        }
        world.take_rows(contents);
        world
    }

    /// The newest record of each job of a pipeline, in the order of their places.
    pub(crate) fn newest_records(&self, pipeline: PipelineId) -> impl Iterator<Item = &JobRow> {
        let newest = self.records.get(&pipeline).into_iter().flat_map(|records| &records.newest);
        newest.filter_map(|id| self.jobs.get(id))
    }

    /// The newest record of the job of this name.
    pub(crate) fn newest_named(&self, pipeline: PipelineId, name: &str) -> Option<&JobRow> {
        let records = self.records.get(&pipeline)?;
        self.jobs.get(records.newest.get(*records.places.get(name)?)?)
    }

    /// The newest records of the jobs that left an archive or a dotenv report, in the order of their places.
    pub(crate) fn producers(&self, pipeline: PipelineId) -> impl Iterator<Item = &JobRow> {
        let records = self.records.get(&pipeline);
        let places = records.into_iter().flat_map(|records| &records.producers);
        places.filter_map(move |place| self.jobs.get(records?.newest.get(*place)?))
    }

    /// A job left something for later ones.
    pub(crate) fn note_producer(&mut self, job: JobId) {
        let Some(row) = self.jobs.get(&job) else { return };
        if let Some(records) = self.records.get_mut(&row.pipeline) {
            records.producers.insert(row.place);
        }
    }

    /// All records of a pipeline, oldest first.
    pub(crate) fn jobs_of(&self, pipeline: PipelineId) -> impl Iterator<Item = &JobRow> {
        let all = self.records.get(&pipeline).into_iter().flat_map(|records| &records.all);
        all.filter_map(|id| self.jobs.get(id))
    }

    /// Gives a pipeline, and those of its family that have none, its files back.
    pub(crate) fn attach(&mut self, pipeline: PipelineId, sources: &SharedSources) {
        self.sources.insert(pipeline, Arc::clone(sources));
        for row in self.pipelines.values() {
            // Parents are older than their children, so one pass reaches all.
            if row.parent.is_some_and(|parent| self.sources.contains_key(&parent.pipeline)) {
                self.sources.entry(row.id).or_insert_with(|| Arc::clone(sources));
            }
        }
    }

    /// The id for a new pipeline.
    pub(crate) fn new_pipeline_id(&mut self) -> PipelineId {
        let id = PipelineId(self.next_pipeline);
        self.next_pipeline += 1;
        id
    }

    /// The id for a new job.
    pub(crate) fn new_job_id(&mut self) -> JobId {
        let id = JobId(self.next_job);
        self.next_job += 1;
        id
    }

    /// The id for a new runner.
    pub(crate) fn new_runner_id(&mut self) -> RunnerId {
        let id = RunnerId(self.next_runner);
        self.next_runner += 1;
        id
    }

    /// Adds a new record, marks it, and reports it.
    pub(crate) fn add_new(&mut self, row: JobRow) {
        if let Some(pipeline) = self.pipelines.get(&row.pipeline) {
            let created = JobChange::Created {
                project: pipeline.spec.project.id,
                name: row.name.clone(),
                stage: row.stage.clone(),
                kind: row.kind,
                attempt: row.attempt,
            };
            self.dirty.report(row.created_at, &row, created);
        }
        self.dirty.jobs.insert(row.id);
        self.add(row);
    }

    /// Adds a record.
    fn add(&mut self, row: JobRow) {
        self.ids.insert(row.job_ref(), row.id);
        let records = self.records.entry(row.pipeline).or_default();
        records.all.push(row.id);
        // Places come in order, and the records of one place oldest first.
        match records.newest.get_mut(row.place) {
            Some(newest) => *newest = row.id,
            None => records.newest.push(row.id),
        }
        records.places.entry(row.name.clone()).or_insert(row.place);
        if let (Some(runner), Some(key), true) =
            (row.runner, row.detail.idempotency_key.clone(), row.status().is_on_runner())
        {
            self.keys.insert((runner, key), row.id);
        }
        self.jobs.insert(row.id, row);
    }

    /// Reports a change of a job to the outbox; it is written with the rows.
    pub(crate) fn report(&mut self, at: Timestamp, job: JobId, change: JobChange) {
        if let Some(row) = self.jobs.get(&job) {
            self.dirty.report(at, row, change);
        }
    }

    /// A job to change, marked.
    pub(crate) fn job_mut(&mut self, job: JobId) -> Option<&mut JobRow> {
        let row = self.jobs.get_mut(&job)?;
        self.dirty.jobs.insert(job);
        Some(row)
    }

    /// A pipeline to change, marked.
    pub(crate) fn pipeline_mut(&mut self, pipeline: PipelineId) -> Option<&mut PipelineRow> {
        let row = self.pipelines.get_mut(&pipeline)?;
        self.dirty.pipelines.insert(pipeline);
        Some(row)
    }

    /// The artifact of a kind.
    pub(crate) fn artifact(&self, job: JobId, kind: &str) -> Option<&ArtifactRow> {
        self.artifacts.get(&job)?.iter().find(|artifact| artifact.kind == kind)
    }

    /// A job as others see it.
    pub(crate) fn job_view(&self, job: JobId) -> Option<JobView> {
        let row = self.jobs.get(&job)?;
        let compiled = self.pipelines.get(&row.pipeline)?.compiled.jobs.get(row.place);
        let artifacts = self.artifacts.get(&job).map_or(&[][..], Vec::as_slice);
        let runner = row.runner.and_then(|id| self.runners.get(&id));
        Some(views::job(row, compiled, artifacts, runner))
    }

    /// A pipeline with its jobs as others see it.
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
