//! The coordinator's state in memory: the rows of the database, the engines, and which rows are ahead of the database.
//!
//! A change is made here first and written with the batch. Where the write fails the rows stay marked, so the next
//! write carries them; until then nobody is told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use muster_job::{JobId, PipelineId, ProjectId, RunnerId};
use muster_pipeline::context::Context;

use crate::clock::Timestamp;
use crate::error::{CoordinatorError, StoreError};
use crate::facts::SharedSources;
use crate::schedule::{Action, Engine, Graph, JobRef, StoredPipeline, priority};
use crate::store::{ArtifactRow, Changes, Contents, JobRow, ManagerRow, PipelineRow, RunnerRow};
use crate::views::{self, JobView, PipelineView};

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

/// Rows that are ahead of the database.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) new_pipelines: BTreeSet<PipelineId>,
    pub(crate) pipelines: BTreeSet<PipelineId>,
    pub(crate) jobs: BTreeSet<JobId>,
    pub(crate) artifacts: BTreeSet<(JobId, String)>,
    pub(crate) runners: BTreeSet<RunnerId>,
    pub(crate) managers: BTreeSet<(RunnerId, String)>,
    pub(crate) removed_runners: BTreeSet<RunnerId>,
    pub(crate) removed_managers: BTreeSet<(RunnerId, String)>,
}

impl World {
    /// The state that the database holds, and the actions that may not have reached the outside, per project.
    pub(crate) fn restore(
        contents: Contents,
        first_pipeline: PipelineId,
        first_job: JobId,
        now_ms: u64,
    ) -> Result<(Self, Repeated), StoreError> {
        let mut world = Self::read(contents);
        world.next_pipeline = world.pipelines.keys().next_back().map_or(first_pipeline.0, |id| id.0 + 1);
        world.next_job = world.jobs.keys().next_back().map_or(first_job.0, |id| id.0 + 1);
        // Also the id of a runner that is gone stays its own: jobs name it.
        let runners = world.runners.keys().copied().chain(world.jobs.values().filter_map(|row| row.runner));
        world.next_runner = runners.max().map_or(1, |id| id.0 + 1);
        let actions = world.restore_engines(now_ms)?;
        Ok((world, actions))
    }

    /// The rows alone, to look at.
    pub(crate) fn read(contents: Contents) -> Self {
        let mut world = Self::default();
        for row in contents.runners {
            world.tokens.insert(row.token_hash.clone(), row.id);
            world.runners.insert(row.id, row);
        }
        for row in contents.managers {
            world.managers.insert((row.runner, row.system_id.clone()), row);
        }
        for row in contents.artifacts {
            world.artifacts.entry(row.job).or_default().push(row);
        }
        for row in contents.pipelines {
            world.contexts.insert(row.id, Arc::new(row.spec.context()));
            world.pipelines.insert(row.id, row);
        }
        for row in contents.jobs {
            let (id, left) = (row.id, !row.detail.dotenv.is_empty() || world.artifacts.contains_key(&row.id));
            world.index(row);
            if left {
                world.note_producer(id);
            }
        }
        world.dirty = Dirty::default();
        world
    }

    fn restore_engines(&mut self, now_ms: u64) -> Result<Repeated, StoreError> {
        let damaged = |why: String| StoreError::Damaged { what: "a pipeline's jobs".to_owned(), why };
        let mut stored: BTreeMap<ProjectId, Vec<StoredPipeline>> = BTreeMap::new();
        let mut priorities = HashMap::new();
        for row in self.pipelines.values() {
            let graph = Graph::new(&row.compiled).map_err(|error| damaged(error.to_string()))?;
            priorities.insert(row.id, priority(&graph, &[]));
            let newest = self.newest_records(row.id);
            stored.entry(row.spec.project.id).or_default().push(StoredPipeline {
                pipeline: row.id,
                graph,
                parent: row.parent.and_then(|parent| Some(self.jobs.get(&parent.bridge)?.job_ref())),
                status: row.status,
                jobs: newest.map(|job| job.detail.state.clone()).collect(),
            });
        }
        self.priorities = priorities;
        let mut actions = Vec::new();
        for (project, pipelines) in stored {
            let (engine, repeated) =
                Engine::restore(pipelines, &BTreeMap::new(), now_ms).map_err(|error| damaged(error.to_string()))?;
            self.engines.insert(project, engine);
            actions.push((project, repeated));
        }
        Ok(actions)
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

    /// Adds a record, and marks it.
    pub(crate) fn index(&mut self, row: JobRow) {
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
        self.dirty.jobs.insert(row.id);
        self.jobs.insert(row.id, row);
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
    pub(crate) fn job_view(&self, job: JobId, dir: &Path) -> Option<JobView> {
        let row = self.jobs.get(&job)?;
        let compiled = self.pipelines.get(&row.pipeline)?.compiled.jobs.get(row.place);
        let artifacts = self.artifacts.get(&job).map_or(&[][..], Vec::as_slice);
        let runner = row.runner.and_then(|id| self.runners.get(&id));
        Some(views::job(row, compiled, artifacts, runner, dir))
    }

    /// A pipeline with its jobs as others see it.
    pub(crate) fn pipeline_view(
        &self,
        pipeline: PipelineId,
        dir: &Path,
        problem: Option<&str>,
    ) -> Result<PipelineView, CoordinatorError> {
        let row = self.pipelines.get(&pipeline);
        let row = row.ok_or_else(|| CoordinatorError::NotFound(format!("pipeline {pipeline}")))?;
        let jobs = self.jobs_of(pipeline).filter_map(|job| self.job_view(job.id, dir)).collect();
        Ok(PipelineView { summary: views::summary(row, problem), jobs })
    }

    /// What the next write has to carry.
    pub(crate) fn changes(&self) -> Changes<'_> {
        let dirty = &self.dirty;
        let artifact = |(job, kind): &(JobId, String)| self.artifact(*job, kind);
        Changes {
            removed_runners: dirty.removed_runners.iter().copied().collect(),
            removed_managers: dirty.removed_managers.iter().collect(),
            runners: dirty.runners.iter().filter_map(|id| self.runners.get(id)).collect(),
            managers: dirty.managers.iter().filter_map(|key| self.managers.get(key)).collect(),
            new_pipelines: dirty.new_pipelines.iter().filter_map(|id| self.pipelines.get(id)).collect(),
            pipelines: dirty
                .pipelines
                .difference(&dirty.new_pipelines)
                .filter_map(|id| self.pipelines.get(id))
                .collect(),
            jobs: dirty.jobs.iter().filter_map(|id| self.jobs.get(id)).collect(),
            artifacts: dirty.artifacts.iter().filter_map(artifact).collect(),
        }
    }
}
