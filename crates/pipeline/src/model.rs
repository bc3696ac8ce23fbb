//! The checked job graph: what the coordinator runs, and what `list`, `graph` and `explain` show.
//!
//! All names are resolved, all limits checked, all defaults applied; variables inside values are *not* expanded,
//! except where GitLab's server expands them before the payload exists (environment names, resource groups, tags,
//! `workflow:name`).

use std::time::Duration;

use muster_job::{FailureReason, Variable};
use serde::{Deserialize, Serialize};

/// A pipeline that can be created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// `workflow:name`, expanded.
    pub name: Option<String>,
    /// All stages in order, `.pre` first and `.post` last, also those without jobs.
    pub stages: Vec<String>,
    /// Global YAML variables with those of the matching `workflow:rules` entry: what a bridge forwards.
    pub variables: Vec<Variable>,
    /// What cancels it early.
    pub auto_cancel: AutoCancel,
    /// The jobs that are in it, in creation order: stage, then as written.
    pub jobs: Vec<Job>,
    /// Jobs that rules kept out, for listing and explaining.
    pub excluded: Vec<ExcludedJob>,
}

/// `workflow:auto_cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AutoCancel {
    /// What a newer commit on the ref cancels.
    pub on_new_commit: OnNewCommit,
    /// `on_job_failure: all`.
    pub on_job_failure: bool,
}

/// `auto_cancel:on_new_commit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are GitLab's")]
pub enum OnNewCommit {
    #[default]
    Conservative,
    Interruptible,
    None,
}

/// A job that is not in the pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedJob {
    /// Its full name: `test: [linux, 1]`.
    pub name: String,
    /// The name without ` 1/3` or `: [..]`.
    pub group_name: String,
    /// Its stage.
    pub stage: String,
    /// Why, and every rule that was looked at.
    pub decisions: Vec<Decision>,
}

/// One job or bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its full name: `test: [linux, 1]`.
    pub name: String,
    /// The name without ` 1/3` or `: [..]`.
    pub group_name: String,
    /// The comment before it in the style `# @Description ...`, if any.
    pub description: Option<String>,
    /// Its stage.
    pub stage: String,
    /// Index of the stage in [`Pipeline::stages`].
    pub stage_index: usize,
    /// What it does.
    pub work: Work,
    /// When it runs.
    pub when: When,
    /// Only with [`When::Delayed`].
    pub start_in: Option<Duration>,
    /// Whether its failure counts.
    pub allow_failure: AllowFailure,
    /// How often it is tried again.
    pub retry: Retry,
    /// `None`: the project's.
    pub timeout: Option<Duration>,
    /// A newer pipeline may cancel it.
    pub interruptible: bool,
    /// `None`: stage order. `Some(vec![])`: starts at once.
    pub needs: Option<Vec<Need>>,
    /// `dependencies:` by full job names; `None`: the default set.
    pub dependencies: Option<Vec<String>>,
    /// Job variables in the order of precedence: inherited global ones, `workflow:rules`, job, matrix, rule. Of equal
    /// names only the winner is here.
    pub variables: Vec<Variable>,
    /// The values that `parallel:matrix` gave this instance.
    pub matrix: Vec<(String, String)>,
    /// `CI_NODE_INDEX` and `CI_NODE_TOTAL`, where the job is parallel.
    pub node: Option<(u32, u32)>,
    /// Tags, expanded.
    pub tags: Vec<String>,
    /// The environment, its name expanded.
    pub environment: Option<Environment>,
    /// Expanded.
    pub resource_group: Option<String>,
    /// `manual_confirmation`.
    pub manual_confirmation: Option<String>,
    /// Inherit list for project variables is not a thing; this is `inherit:variables`, for explaining.
    pub inherits_variables: bool,
    /// Where the job is defined.
    pub defined_at: Place,
    /// What made the job what it is: rules looked at, defaults taken, parents, matrix cell.
    pub decisions: Vec<Decision>,
}

impl Job {
    /// Whether parts of it come from includes that were left out: it can be looked at, and not run.
    #[must_use]
    pub fn lacks_parts(&self) -> bool {
        lack_parts(&self.decisions)
    }
}

impl ExcludedJob {
    /// As [`Job::lacks_parts`]: its rules may be among what is missing.
    #[must_use]
    pub fn lacks_parts(&self) -> bool {
        lack_parts(&self.decisions)
    }
}

fn lack_parts(decisions: &[Decision]) -> bool {
    decisions.iter().any(|decision| decision.kind == DecisionKind::LacksParts)
}

/// A place for people: the span's source as a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Place {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
}

/// One thing that `muster ci explain` says of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Which mechanism.
    pub kind: DecisionKind,
    /// What it did, for a person: `rules[1] matched: if $CI_COMMIT_TAG`.
    pub text: String,
    /// Where it is written.
    pub place: Option<Place>,
}

/// The mechanisms that shape a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum DecisionKind {
    Include,
    /// Parts come from includes that were left out.
    LacksParts,
    Extends,
    Default,
    Variables,
    Matrix,
    Workflow,
    RuleMatched,
    RulePassed,
    Only,
    Except,
    Needs,
}

/// What a job does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Runs on a runner.
    Script(Box<ScriptWork>),
    /// Starts another pipeline.
    Bridge(Box<Bridge>),
}

/// What a runner needs to know.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ScriptWork {
    /// `before_script`
    pub before_script: Vec<String>,
    /// `script`; empty with `run`.
    pub script: Vec<String>,
    /// `after_script`
    pub after_script: Vec<String>,
    /// `run:`, as JSON.
    pub run: Option<serde_json::Value>,
    /// `image`
    pub image: Option<Image>,
    /// `services`
    pub services: Vec<Image>,
    /// `cache`, keys computed as far as the server does it (without the protected suffix).
    pub cache: Vec<Cache>,
    /// `artifacts`
    pub artifacts: Option<Artifacts>,
    /// `coverage`, without its slashes.
    pub coverage: Option<String>,
    /// `hooks:pre_get_sources_script`
    pub pre_get_sources_script: Vec<String>,
    /// `id_tokens`: name and audiences.
    pub id_tokens: Vec<(String, Vec<String>)>,
    /// `secrets`: name and the entry as JSON.
    pub secrets: Vec<(String, serde_json::Value)>,
    /// `release`, as JSON.
    pub release: Option<serde_json::Value>,
    /// The job publishes pages: the published directory.
    pub pages: Option<String>,
    /// Job `inputs`: name and declaration, as JSON.
    pub inputs: Vec<(String, serde_json::Value)>,
}

/// An image or service.
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

/// One cache.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cache {
    /// As written, or `<prefix>-<digest>` for `key:files`.
    pub key: String,
    /// `paths`
    pub paths: Vec<String>,
    /// `untracked`
    pub untracked: bool,
    /// `on_success`, `on_failure` or `always`.
    pub when: String,
    /// As written: `pull-push`, `pull`, `push`, or a variable.
    pub policy: String,
    /// Use the non-protected cache also on protected refs.
    pub unprotect: bool,
    /// `fallback_keys`
    pub fallback_keys: Vec<String>,
}

/// `artifacts`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Artifacts {
    /// `name`; `None` is `artifacts`.
    pub name: Option<String>,
    /// `paths`
    pub paths: Vec<String>,
    /// `exclude`
    pub exclude: Vec<String>,
    /// `untracked`
    pub untracked: bool,
    /// `on_success`, `on_failure` or `always`.
    pub when: String,
    /// As written.
    pub expire_in: Option<String>,
    /// `expose_as`
    pub expose_as: Option<String>,
    /// `access`, or from `public`.
    pub access: String,
    /// Reports by their payload type (`coverage_report` already as `cobertura` or `jacoco`) with their paths.
    pub reports: Vec<(String, Vec<String>)>,
}

/// `environment`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Environment {
    /// Expanded.
    pub name: String,
    /// As written.
    pub url: Option<String>,
    /// The job that stops it.
    pub on_stop: Option<String>,
    /// `start`, `prepare`, `stop`, `verify` or `access`.
    pub action: String,
    /// As written.
    pub auto_stop_in: Option<String>,
    /// As written.
    pub deployment_tier: Option<String>,
}

/// `trigger`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bridge {
    /// What it starts.
    pub target: BridgeTarget,
    /// How its own state follows the other pipeline's.
    pub strategy: Strategy,
    /// `forward:yaml_variables`
    pub forward_yaml_variables: bool,
    /// `forward:pipeline_variables`
    pub forward_pipeline_variables: bool,
}

/// What a bridge starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BridgeTarget {
    /// A pipeline of another project.
    Project {
        /// `group/app`
        project: String,
        /// `None`: the default branch.
        branch: Option<String>,
        /// `inputs`
        inputs: Vec<(String, serde_json::Value)>,
    },
    /// A child pipeline from one to three includes.
    Child(Vec<ChildInclude>),
    /// `needs: {pipeline: group/project}`: mirrors the latest pipeline of another project.
    Mirror {
        /// `group/app`
        project: String,
    },
}

/// One entry of `trigger:include`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildInclude {
    /// An ordinary include entry (`local`, `project`, `remote`, `template`, `component`) as JSON.
    Entry(serde_json::Value),
    /// A file that a job of this pipeline makes.
    Artifact {
        /// Path inside the job's archive.
        path: String,
        /// The job.
        job: String,
        /// `inputs`
        inputs: Vec<(String, serde_json::Value)>,
    },
}

/// `trigger:strategy`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Done once the pipeline exists.
    #[default]
    None,
    /// Waits for it.
    Depend,
    /// Copies its status.
    Mirror,
}

/// When a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are GitLab's")]
pub enum When {
    #[default]
    OnSuccess,
    OnFailure,
    Always,
    Manual,
    Delayed,
}

impl When {
    /// As it is written in YAML.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnSuccess => "on_success",
            Self::OnFailure => "on_failure",
            Self::Always => "always",
            Self::Manual => "manual",
            Self::Delayed => "delayed",
        }
    }
}

/// Whether a failure counts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllowFailure {
    /// It counts.
    #[default]
    No,
    /// It is a warning.
    Yes,
    /// It is a warning for these exit codes.
    ExitCodes(Vec<i32>),
}

/// `retry`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Retry {
    /// 0 to 2.
    pub max: u32,
    /// `when`; empty with no `exit_codes` means always. `always` in YAML is stored as an empty list with
    /// [`Retry::always`] set.
    pub when: Vec<FailureReason>,
    /// `exit_codes`
    pub exit_codes: Vec<i32>,
    /// Any reason.
    pub always: bool,
}

/// One job that has to end before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A job of this pipeline, by its full name. `optional` needs on jobs that are not in the pipeline are already gone.
    Job {
        /// Full name.
        name: String,
        /// Download its artifacts.
        artifacts: bool,
        /// It may be missing.
        optional: bool,
    },
    /// The newest successful job of another project.
    Project {
        /// `group/app`
        project: String,
        /// The job.
        job: String,
        /// The ref.
        git_ref: String,
        /// Download its artifacts.
        artifacts: bool,
    },
    /// A job of another pipeline in the same hierarchy.
    Pipeline {
        /// The pipeline's id, or a variable that holds it.
        pipeline: String,
        /// The job.
        job: String,
        /// Download its artifacts.
        artifacts: bool,
    },
}
