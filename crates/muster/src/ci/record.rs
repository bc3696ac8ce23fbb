//! What a run leaves for later questions beside the coordinator's folder: `run.json`, and `pipeline.json` for `shell`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use muster_coordinator::{GitFacts, ProjectFacts};
use muster_job::{PipelineId, Variable};
use muster_pipeline::context::{Context, PipelineSource, RefKind, ScopedVariable};
use muster_pipeline::model::Pipeline;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::CiError;

/// The version of both files.
const VERSION: u32 = 1;

/// A line of `muster ci show`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) version: u32,
    /// RFC 3339.
    pub(super) started_at: String,
    pub(super) pipeline: PipelineId,
    pub(super) source: String,
    pub(super) ref_name: String,
    pub(super) head_sha: String,
    pub(super) dirty: bool,
    /// `passed`, `failed`, `cancelled` or `error`; none while it runs, or if it was killed.
    pub(super) outcome: Option<String>,
    /// Milliseconds.
    pub(super) duration_ms: Option<u64>,
}

/// What the jobs of a run were made of. It holds values of variables, so others must not read it.
#[derive(Serialize, Deserialize)]
pub(super) struct PipelineRecord {
    pub(super) version: u32,
    pub(super) pipeline: Pipeline,
    pub(super) project: ProjectFacts,
    pub(super) git: GitFacts,
    pub(super) server_url: String,
    context: StoredContext,
}

#[derive(Serialize, Deserialize)]
struct StoredContext {
    source: String,
    tag: bool,
    ref_name: String,
    ref_protected: bool,
    predefined: Vec<Variable>,
    project_variables: Vec<StoredVariable>,
    pipeline_variables: Vec<Variable>,
    config_path: String,
    project_path: String,
}

#[derive(Serialize, Deserialize)]
struct StoredVariable {
    variable: Variable,
    protected: bool,
    environment_scope: String,
}

impl RunRecord {
    /// A run that starts now.
    pub(super) fn new(pipeline: PipelineId, context: &Context, head_sha: &str, dirty: bool) -> Self {
        let now = time::OffsetDateTime::now_utc();
        Self {
            version: VERSION,
            started_at: now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default(),
            pipeline,
            source: context.source.as_str().to_owned(),
            ref_name: context.ref_name.clone(),
            head_sha: head_sha.to_owned(),
            dirty,
            outcome: None,
            duration_ms: None,
        }
    }

    pub(super) fn write(&self, run: &Path) -> Result<(), CiError> {
        write_private(&run.join("run.json"), self)
    }

    /// None for a run that ended before it had a pipeline.
    pub(super) fn read(run: &Path) -> Option<Self> {
        read_json(&run.join("run.json")).ok()
    }
}

impl PipelineRecord {
    pub(super) fn new(
        pipeline: &Pipeline,
        project: &ProjectFacts,
        git: &GitFacts,
        server_url: &str,
        context: &Context,
    ) -> Self {
        let stored = |scoped: &ScopedVariable| StoredVariable {
            variable: scoped.variable.clone(),
            protected: scoped.protected,
            environment_scope: scoped.environment_scope.clone(),
        };
        Self {
            version: VERSION,
            pipeline: pipeline.clone(),
            project: project.clone(),
            git: git.clone(),
            server_url: server_url.to_owned(),
            context: StoredContext {
                source: context.source.as_str().to_owned(),
                tag: context.ref_kind == RefKind::Tag,
                ref_name: context.ref_name.clone(),
                ref_protected: context.ref_protected,
                predefined: context.predefined.clone(),
                project_variables: context.project_variables.iter().map(stored).collect(),
                pipeline_variables: context.pipeline_variables.clone(),
                config_path: context.config_path.clone(),
                project_path: context.project_path.clone(),
            },
        }
    }

    pub(super) fn write(&self, run: &Path) -> Result<(), CiError> {
        write_private(&run.join("pipeline.json"), self)
    }

    pub(super) fn read(run: &Path) -> Result<Self, CiError> {
        read_json(&run.join("pipeline.json"))
    }

    /// The context, as far as the variables of jobs need it.
    pub(super) fn context(&self) -> Context {
        let stored = &self.context;
        let scoped = |stored: &StoredVariable| ScopedVariable {
            variable: stored.variable.clone(),
            protected: stored.protected,
            environment_scope: stored.environment_scope.clone(),
        };
        Context {
            source: PipelineSource::from_name(&stored.source).unwrap_or_default(),
            ref_kind: if stored.tag { RefKind::Tag } else { RefKind::Branch },
            ref_name: stored.ref_name.clone(),
            ref_protected: stored.ref_protected,
            predefined: stored.predefined.clone(),
            project_variables: stored.project_variables.iter().map(scoped).collect(),
            pipeline_variables: stored.pipeline_variables.clone(),
            config_path: stored.config_path.clone(),
            project_path: stored.project_path.clone(),
            ..Context::default()
        }
    }
}

/// Writes a file that only this user can read.
pub(super) fn write_private(path: &Path, value: &impl Serialize) -> Result<(), CiError> {
    let bytes = serde_json::to_vec(value).map_err(std::io::Error::other);
    let written = bytes.and_then(|bytes| write_private_bytes(path, &bytes));
    written.map_err(|source| CiError::State { path: path.to_owned(), source })
}

/// As [`write_private`], for bytes. The file is replaced as a whole.
pub(super) fn write_private_bytes(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, CiError> {
    let failed = |source| CiError::Read { path: PathBuf::from(path), source };
    let bytes = std::fs::read(path).map_err(failed)?;
    serde_json::from_slice(&bytes).map_err(|error| failed(std::io::Error::other(error)))
}
