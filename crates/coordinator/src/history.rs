//! Past runs, read only: what `muster ci show` looks at.
//!
//! The run's coordinator may be gone, killed, or still at work in another process: what is shown is the database as it
//! was when it was opened.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use muster_job::{JobId, PipelineId, RunnerId, Secret, Variable};
use muster_pipeline::layers;

use crate::artifacts;
use crate::error::{CoordinatorError, OpenError};
use crate::handout::Handout;
use crate::inherit::Inheritance;
use crate::payload::Archive;
use crate::store::{self, Store};
use crate::traces;
use crate::variables::{JobVariablesInput, RunnerFacts, job_variables};
use crate::views::{self, PipelineSummary, PipelineView};
use crate::world::World;

/// The state folder of a run whose coordinator may be gone.
pub struct History {
    dir: PathBuf,
    world: World,
}

/// What a job was given, as far as it is still there.
#[derive(Debug)]
pub struct JobSetup {
    /// Its variables as its runner got them, without a token.
    pub variables: Vec<Variable>,
    /// The archives of the jobs before it.
    pub archives: Vec<PathBuf>,
    /// The commit that it checked out.
    pub sha: String,
    /// The path of the project: `group/app`.
    pub project_path: String,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl History {
    /// Opens the folder of a run without changing anything in it.
    ///
    /// # Errors
    /// [`OpenError`] where it is not one, or one of a newer version.
    pub async fn open(dir: &Path) -> Result<Self, OpenError> {
        let mut store = Store::open_read_only(dir).await?;
        let contents = store.read().await.map_err(|error| store::unreadable(dir, error))?;
        if let Err(error) = store.close().await {
            tracing::debug!(%error, "a database that was only read was not closed in order");
        }
        Ok(Self { dir: dir.to_owned(), world: World::read(contents) })
    }

    /// All pipelines, oldest first.
    #[must_use]
    pub fn pipelines(&self) -> Vec<PipelineSummary> {
        self.world.pipelines.values().map(|row| views::summary(row, None)).collect()
    }

    /// One pipeline with its jobs, as they were left.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub fn pipeline(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        self.world.pipeline_view(pipeline, &self.dir, None)
    }

    /// What a job was given.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub fn job_setup(&self, job: JobId) -> Result<JobSetup, CoordinatorError> {
        let missing = || CoordinatorError::NotFound(format!("job {job}"));
        let row = self.world.jobs.get(&job).ok_or_else(missing)?;
        let pipeline = self.world.pipelines.get(&row.pipeline).ok_or_else(missing)?;
        let context = self.world.contexts.get(&row.pipeline).ok_or_else(missing)?;
        let compiled = pipeline.compiled.jobs.get(row.place).ok_or_else(missing)?;
        let now = row.started_at.unwrap_or(pipeline.created_at);
        let inheritance = Inheritance { world: &self.world, dir: &self.dir, now };
        // A job that could not get all it needs was given nothing.
        let inherited = inheritance.of(row).unwrap_or_default();
        let runner = row.runner.and_then(|runner| self.world.runners.get(&runner));
        let handout = Handout {
            job: compiled,
            job_id: job,
            pipeline_id: row.pipeline,
            pipeline_iid: row.pipeline.0,
            token: &Secret::default(),
            project: &pipeline.spec.project,
            context,
            git: &pipeline.spec.git,
            server_url: coordinator_url(context),
            now,
        };
        let variables = job_variables(&JobVariablesInput {
            handout,
            runner: RunnerFacts {
                id: row.runner.unwrap_or(RunnerId(0)),
                description: runner.map_or("", |runner| &runner.settings.description),
                tags: runner.map_or(&[], |runner| &runner.settings.tags),
            },
            dotenv: &inherited.dotenv,
            manual: &row.detail.variables,
        });
        let archive = |name: &Archive| {
            let archive = self.world.artifact(name.job, artifacts::ARCHIVE)?;
            inheritance.archive_path(archive)
        };
        Ok(JobSetup {
            variables,
            archives: inherited.archives.iter().filter_map(archive).collect(),
            sha: pipeline.spec.git.sha.clone(),
            project_path: pipeline.spec.project.path.clone(),
        })
    }

    /// The trace of a job from `offset` on, at most 1 MiB; empty where there is no more.
    ///
    /// # Errors
    /// [`CoordinatorError::Read`].
    pub async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, CoordinatorError> {
        traces::read(self.trace_path(job), offset).await
    }

    /// Where the trace of a job lies.
    #[must_use]
    pub fn trace_path(&self, job: JobId) -> PathBuf {
        traces::path_in(&self.dir, job)
    }
}

/// The address that the jobs of a pipeline had for the coordinator.
fn coordinator_url(context: &muster_pipeline::context::Context) -> &str {
    let api = layers::value(&context.predefined, "CI_API_V4_URL").unwrap_or_default();
    api.strip_suffix("/api/v4").unwrap_or(api)
}
