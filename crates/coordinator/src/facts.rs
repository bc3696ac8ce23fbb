//! What the caller tells of the project, its repository and the pipeline it wants.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_job::{JobId, PipelineId, ProjectId, Secret};
use muster_pipeline::context::{Context, Sources};
use muster_pipeline::model::Pipeline;
use serde::{Deserialize, Serialize};

/// The port to files, shared between threads: kept with the pipeline to compile its children.
pub type SharedSources = Arc<dyn Sources + Send + Sync>;

/// A project and those of its settings that reach a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectFacts {
    /// Its id, more than 0.
    pub id: ProjectId,
    /// Its short name: `app`.
    pub name: String,
    /// Its full path: `group/app`.
    pub path: String,
    /// The id of its namespace.
    pub namespace_id: i64,
    /// The time limit of a job that sets none; GitLab's default is an hour (pipeline-yaml 5.10).
    pub job_timeout: Duration,
    /// The default git strategy is `fetch`, else `clone`.
    pub allow_git_fetch: bool,
    /// Caches of protected refs are kept apart (pipeline-yaml 6, "Cache keys").
    pub separate_caches: bool,
}

impl ProjectFacts {
    /// A project with GitLab's default settings.
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

/// The commit that a pipeline is for, and where jobs get it from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GitFacts {
    /// The commit.
    pub sha: String,
    /// The commit before it on the ref; 40 zeros where there is none.
    pub before_sha: String,
    /// `sha1` or `sha256`.
    pub object_format: String,
    /// The URL to clone from, without credentials: `http://127.0.0.1:1234/group/app.git`.
    pub repo_url: String,
    /// A bare repository on this machine that holds the commit; given to managers where
    /// [`crate::Options::local_repository`] is on.
    pub repo_path: Option<PathBuf>,
    /// How many commits a job fetches unless `GIT_DEPTH` says otherwise; 0 is the full history.
    pub depth: i64,
}

/// The bridge that a child pipeline belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The parent pipeline.
    pub pipeline: PipelineId,
    /// The bridge in it.
    pub bridge: JobId,
}

/// A pipeline to create.
#[derive(Clone)]
pub struct NewPipeline {
    /// The project it is for.
    pub project: ProjectFacts,
    /// What it was compiled for.
    pub context: Context,
    /// What the configuration was compiled to.
    pub compiled: Pipeline,
    /// The commit.
    pub git: GitFacts,
    /// Where the configurations of child pipelines are read from.
    pub sources: SharedSources,
    /// Full names of manual jobs that are played as soon as their turn comes.
    pub play: Vec<String>,
    /// Values of the `secrets` keyword, by the name of the secret.
    pub secrets: BTreeMap<String, Secret>,
    /// The bridge that asked for it.
    pub parent: Option<Parent>,
}

impl NewPipeline {
    /// A pipeline without secrets, played jobs or a parent.
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

/// A runner to create: one authentication token, shared by any number of managers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NewRunner {
    /// For people; also `CI_RUNNER_DESCRIPTION`.
    pub description: String,
    /// Jobs whose tags are all in here may be given to it.
    pub tags: Vec<String>,
    /// It takes jobs whatever their tags: the only runner of a machine.
    pub any_tags: bool,
    /// It takes jobs without tags.
    pub run_untagged: bool,
    /// It only takes jobs of protected refs.
    pub ref_protected: bool,
    /// It gets no jobs.
    pub paused: bool,
    /// No job may run longer on it.
    pub maximum_timeout: Option<Duration>,
}

/// What kind of work it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Runs on a runner.
    Script,
    /// Starts another pipeline.
    Bridge,
}
