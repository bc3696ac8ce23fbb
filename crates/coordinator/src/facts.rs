//! What callers give to the coordinator: the project, its repository, and the pipelines and runners to create.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_job::{JobId, PipelineId, ProjectId, Secret};
use muster_pipeline::context::{Changes, Context, IncludeTarget, IncludedFile, Origin, SourceError, Sources};
use muster_pipeline::model::Pipeline;
use serde::{Deserialize, Serialize};

/// Access to the files of a pipeline, for compiling its child configurations.
pub type SharedSources = Arc<dyn Sources + Send + Sync>;

/// Sources without files, for pipelines that have neither includes nor child pipelines.
#[derive(Debug, Clone, Copy)]
pub struct NoFiles;

impl Sources for NoFiles {
    fn read(&self, _: &IncludeTarget) -> Result<IncludedFile, SourceError> {
        Err(SourceError::NotFound("this pipeline has no files".to_owned()))
    }

    fn paths(&self, _: &Origin) -> Result<Arc<BTreeSet<String>>, SourceError> {
        Ok(Arc::default())
    }

    fn changed_since(&self, _: &str) -> Option<Changes> {
        None
    }

    fn object_ids(&self, _: &[String], _: bool) -> Vec<String> {
        Vec::new()
    }
}

/// A project with the settings that jobs need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectFacts {
    /// ID of the project, greater than 0.
    pub id: ProjectId,
    /// Short name: `app`.
    pub name: String,
    /// Full path: `group/app`.
    pub path: String,
    /// ID of the project's namespace.
    pub namespace_id: i64,
    /// Timeout of jobs that set no timeout (docs/spec/pipeline-yaml.md, section 5.10). Defaults to 1 hour, like GitLab's.
    pub job_timeout: Duration,
    /// Whether the default git strategy is `fetch`. Otherwise, it is `clone`.
    pub allow_git_fetch: bool,
    /// Whether protected and unprotected refs have separate caches (docs/spec/pipeline-yaml.md, section 6, "Cache keys").
    pub separate_caches: bool,
}

impl ProjectFacts {
    /// Returns a project with GitLab's default settings.
    #[must_use]
    pub fn new(id: ProjectId, path: impl Into<String>) -> Self {
        let path = path.into();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            id,
            name,
            path,
            namespace_id: 1,
            job_timeout: Duration::from_secs(3600),
            allow_git_fetch: true,
            separate_caches: true,
        }
    }
}

/// The commit of a pipeline, and how jobs fetch it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GitFacts {
    /// ID of the commit.
    pub sha: String,
    /// Value of `CI_COMMIT_BEFORE_SHA`.
    pub before_sha: String,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// Clone URL without credentials: `http://127.0.0.1:1234/group/app.git`.
    pub repo_url: String,
    /// Path of a bare repository on this machine that has the commit. Sent to managers if [`crate::Options::local_repository`] is set.
    pub repo_path: Option<PathBuf>,
    /// Number of commits that a job fetches unless it sets `GIT_DEPTH`. 0 means the full history.
    pub depth: i64,
}

/// The bridge that started a child pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// Pipeline of the bridge.
    pub pipeline: PipelineId,
    /// ID of the bridge.
    pub bridge: JobId,
}

/// A pipeline to create.
#[derive(Clone)]
pub struct NewPipeline {
    /// Project of the pipeline.
    pub project: ProjectFacts,
    /// Context that the pipeline was compiled for.
    pub context: Context,
    /// The compiled configuration.
    pub compiled: Pipeline,
    /// Commit of the pipeline.
    pub git: GitFacts,
    /// Files for the configurations of child pipelines.
    pub sources: SharedSources,
    /// Full names of requested jobs ([`crate::schedule::PipelineOptions::play`]).
    pub play: Vec<String>,
    /// Values of the `secrets` keyword, by the name of the secret.
    pub secrets: BTreeMap<String, Secret>,
    /// Bridge that starts the pipeline. `None` if the pipeline has no parent.
    pub parent: Option<Parent>,
}

impl NewPipeline {
    /// Returns a pipeline without secrets, parent and requested jobs.
    #[must_use]
    pub fn new(
        project: ProjectFacts,
        context: Context,
        compiled: Pipeline,
        git: GitFacts,
        sources: SharedSources,
    ) -> Self {
        Self { project, context, compiled, git, sources, play: Vec::new(), secrets: BTreeMap::new(), parent: None }
    }
}

impl fmt::Debug for NewPipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewPipeline")
            .field("project", &self.project.path)
            .field("sha", &self.git.sha)
            .field("jobs", &self.compiled.jobs.len())
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

/// Settings of a runner. Any number of managers share the authentication token of a runner.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerSpec {
    /// Human-readable description, also the value of `CI_RUNNER_DESCRIPTION`.
    pub description: String,
    /// Tags of the runner. Unless `any_tags` is set, the runner only gets jobs whose tags are all in this list.
    pub tags: Vec<String>,
    /// Whether the runner gets tagged jobs whatever their tags are.
    pub any_tags: bool,
    /// Whether the runner gets jobs without tags.
    pub run_untagged: bool,
    /// Whether the runner only gets jobs of protected refs.
    pub ref_protected: bool,
    /// Whether the runner gets no jobs.
    pub paused: bool,
    /// Maximum run time of a job on this runner. `None` means no limit.
    pub maximum_timeout: Option<Duration>,
}

/// Kind of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A job that runs on a runner.
    Script,
    /// A job that starts another pipeline.
    Bridge,
}
