//! Rows of pipelines: the request, the compiled configuration and the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_job::{JobStatus, PipelineId, Secret, Variable};
use muster_pipeline::context::{Context, PipelineSource, RefKind, ScopedVariable};
use muster_pipeline::model::Pipeline;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::facts::{GitFacts, NewPipeline, Parent, ProjectFacts};

#[derive(Debug, Clone)]
pub(crate) struct PipelineRow {
    pub(crate) id: PipelineId,
    /// Pipeline at the top of the hierarchy. The pipeline itself if it has no parent.
    pub(crate) root: PipelineId,
    pub(crate) parent: Option<Parent>,
    /// Whether the pipeline's hierarchy is unfinished: its jobs can still change without a request from a user.
    /// Unfinished hierarchies are loaded at startup.
    pub(crate) open: bool,
    pub(crate) status: JobStatus,
    pub(crate) created_at: Timestamp,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) detail: PipelineDetail,
    pub(crate) spec: Arc<PipelineSpec>,
    pub(crate) compiled: Arc<Pipeline>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PipelineDetail {
    /// Whether a job that is allowed to fail has failed.
    pub(crate) warnings: bool,
}

/// The part of the request for a pipeline that its jobs and child pipelines need later.
///
/// The list of tracked paths is not stored. It is read from the sources again when a child
/// pipeline is compiled.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PipelineSpec {
    pub(crate) project: ProjectFacts,
    pub(crate) git: GitFacts,
    pub(crate) play: Vec<String>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    source: String,
    tag: bool,
    ref_name: String,
    ref_protected: bool,
    predefined: Vec<Variable>,
    project_variables: Vec<StoredVariable>,
    pipeline_variables: Vec<Variable>,
    unset_variables: Vec<String>,
    config_path: String,
    project_path: String,
    changed_paths: Option<Vec<String>>,
}

#[derive(Clone, Serialize, Deserialize)]
struct StoredVariable {
    variable: Variable,
    protected: bool,
    environment_scope: String,
}

impl std::fmt::Debug for PipelineSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PipelineSpec").field("git", &self.git).field("source", &self.source).finish_non_exhaustive()
    }
}

impl PipelineSpec {
    pub(crate) fn new(new: &NewPipeline) -> Self {
        let context = &new.context;
        let scoped = |variable: &ScopedVariable| StoredVariable {
            variable: variable.variable.clone(),
            protected: variable.protected,
            environment_scope: variable.environment_scope.clone(),
        };
        Self {
            project: new.project.clone(),
            git: new.git.clone(),
            play: new.play.clone(),
            secrets: new.secrets.clone(),
            source: context.source.as_str().to_owned(),
            tag: context.ref_kind == RefKind::Tag,
            ref_name: context.ref_name.clone(),
            ref_protected: context.ref_protected,
            predefined: context.predefined.clone(),
            project_variables: context.project_variables.iter().map(scoped).collect(),
            pipeline_variables: context.pipeline_variables.clone(),
            unset_variables: context.unset_variables.clone(),
            config_path: context.config_path.clone(),
            project_path: context.project_path.clone(),
            changed_paths: context.changed_paths.clone(),
        }
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn ref_name(&self) -> &str {
        &self.ref_name
    }

    pub(crate) fn ref_protected(&self) -> bool {
        self.ref_protected
    }

    pub(crate) fn same_ref(&self, other: &Self) -> bool {
        (self.tag, &self.ref_name) == (other.tag, &other.ref_name)
    }

    /// Returns the stored part of the context that the pipeline was compiled for.
    ///
    /// The options of the compiler have their default values. Inputs, tracked paths and [`Context::changed_since`] are
    /// empty.
    pub(crate) fn context(&self) -> Context {
        let scoped = |stored: &StoredVariable| ScopedVariable {
            variable: stored.variable.clone(),
            protected: stored.protected,
            environment_scope: stored.environment_scope.clone(),
        };
        Context {
            source: PipelineSource::from_name(&self.source).unwrap_or_default(),
            ref_kind: if self.tag { RefKind::Tag } else { RefKind::Branch },
            ref_name: self.ref_name.clone(),
            ref_protected: self.ref_protected,
            predefined: self.predefined.clone(),
            project_variables: self.project_variables.iter().map(scoped).collect(),
            pipeline_variables: self.pipeline_variables.clone(),
            unset_variables: self.unset_variables.clone(),
            config_path: self.config_path.clone(),
            project_path: self.project_path.clone(),
            changed_paths: self.changed_paths.clone(),
            ..Context::default()
        }
    }
}
