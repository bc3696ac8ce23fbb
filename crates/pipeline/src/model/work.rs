//! The work of a job: to run scripts on a runner, or to start or mirror another pipeline.

use muster_job::Variable;
use serde::{Deserialize, Serialize};

/// Work of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The job runs on a runner.
    Script(Box<ScriptWork>),
    /// The job starts or mirrors another pipeline.
    Bridge(Box<Bridge>),
}

/// The part of a job that is sent to a runner.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ScriptWork {
    /// `before_script`
    pub before_script: Vec<String>,
    /// `script`. Empty if the job has `run`.
    pub script: Vec<String>,
    /// `after_script`
    pub after_script: Vec<String>,
    /// `run`, as JSON.
    pub run: Option<serde_json::Value>,
    /// `image`
    pub image: Option<Image>,
    /// `services`
    pub services: Vec<Image>,
    /// `cache`. As on GitLab, the suffix for protected refs is added to the keys later.
    pub cache: Vec<Cache>,
    /// `artifacts`
    pub artifacts: Option<Artifacts>,
    /// `coverage`: the regular expression without its slashes.
    pub coverage: Option<String>,
    /// `hooks:pre_get_sources_script`
    pub pre_get_sources_script: Vec<String>,
    /// `id_tokens` as pairs of a name and its audiences.
    pub id_tokens: Vec<(String, Vec<String>)>,
    /// `secrets` as pairs of a name and the entry in JSON.
    pub secrets: Vec<(String, serde_json::Value)>,
    /// `release`, as JSON.
    pub release: Option<serde_json::Value>,
    /// Directory to publish as GitLab Pages. `None` if the job publishes none.
    pub pages: Option<String>,
    /// `inputs` as pairs of a name and the declaration in JSON.
    pub inputs: Vec<(String, serde_json::Value)>,
}

/// `image`, or an entry of `services`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are GitLab's")]
pub struct Image {
    pub name: String,
    pub alias: Option<String>,
    pub entrypoint: Option<Vec<String>>,
    pub command: Option<Vec<String>>,
    pub pull_policy: Vec<String>,
    pub docker_platform: Option<String>,
    pub docker_user: Option<String>,
    pub kubernetes_user: Option<String>,
    pub variables: Vec<Variable>,
}

/// An entry of `cache`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cache {
    /// `key` as written, or `<prefix>-<digest>` for a key derived from files.
    pub key: String,
    /// `paths`
    pub paths: Vec<String>,
    /// `untracked`
    pub untracked: bool,
    /// `when`: `on_success`, `on_failure` or `always`.
    pub when: String,
    /// `policy` as written: `pull-push`, `pull`, `push`, or a variable.
    pub policy: String,
    /// `unprotect`: whether protected refs share the cache with other refs.
    pub unprotect: bool,
    /// `fallback_keys`
    pub fallback_keys: Vec<String>,
}

/// `artifacts`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Artifacts {
    /// `name`. `None` means `artifacts`.
    pub name: Option<String>,
    /// `paths`
    pub paths: Vec<String>,
    /// `exclude`
    pub exclude: Vec<String>,
    /// `untracked`
    pub untracked: bool,
    /// `when`: `on_success`, `on_failure` or `always`.
    pub when: String,
    /// `expire_in` as written.
    pub expire_in: Option<String>,
    /// `expose_as`
    pub expose_as: Option<String>,
    /// `access`, or its equivalent if the job has `public`. Defaults to `all`.
    pub access: String,
    /// Report types of the payload with their paths. `coverage_report` is already replaced by `cobertura` or `jacoco`.
    pub reports: Vec<(String, Vec<String>)>,
}

/// `environment`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Environment {
    /// `name`, with its variables expanded.
    pub name: String,
    /// `url` as written.
    pub url: Option<String>,
    /// `on_stop`: name of the job that stops the environment.
    pub on_stop: Option<String>,
    /// `action`: `start`, `prepare`, `stop`, `verify` or `access`.
    pub action: String,
    /// `auto_stop_in` as written.
    pub auto_stop_in: Option<String>,
    /// `deployment_tier` as written.
    pub deployment_tier: Option<String>,
}

/// `trigger`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bridge {
    /// The pipeline that the bridge starts or mirrors.
    pub target: BridgeTarget,
    /// How the status of the bridge depends on that pipeline.
    pub strategy: Strategy,
    /// `forward:yaml_variables`
    pub forward_yaml_variables: bool,
    /// `forward:pipeline_variables`
    pub forward_pipeline_variables: bool,
}

/// The pipeline that a bridge starts or mirrors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeTarget {
    /// A pipeline of another project.
    Project {
        /// Path of the project, such as `group/app`.
        project: String,
        /// Branch of the pipeline. `None` means the default branch.
        branch: Option<String>,
        /// `inputs`
        inputs: Vec<(String, serde_json::Value)>,
    },
    /// A child pipeline from one to three includes.
    Child(Vec<ChildInclude>),
    /// `needs: {pipeline: group/project}`: mirrors the latest pipeline of another project.
    Mirror {
        /// Path of the project, such as `group/app`.
        project: String,
    },
}

/// An entry of `trigger:include`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildInclude {
    /// An entry with `local`, `project`, `remote`, `template` or `component`, as JSON.
    Entry(serde_json::Value),
    /// A file in the artifacts of a job of this pipeline.
    Artifact {
        /// Path in the artifacts.
        path: String,
        /// Name of the job.
        job: String,
        /// `inputs`
        inputs: Vec<(String, serde_json::Value)>,
    },
}

/// `trigger:strategy`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The bridge succeeds once the pipeline exists.
    #[default]
    None,
    /// The bridge waits for the pipeline. The bridge fails if the pipeline fails or is skipped, and is canceled if the
    /// pipeline is canceled.
    Depend,
    /// The bridge has the status of the pipeline. While that status is `created`, the bridge is running.
    Mirror,
}
