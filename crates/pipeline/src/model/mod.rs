//! The compiled pipeline: input of the coordinator, and of `muster ci list`, `graph` and `explain`.
//!
//! All names are resolved, all limits are checked, and all defaults are applied. Variables are expanded only in the
//! values in which GitLab's server expands them before a runner gets the job: environment names, resource groups, tags
//! and `workflow:name`.

mod decision;
mod work;

use std::time::Duration;

use muster_job::{FailureReason, Variable};
use serde::{Deserialize, Serialize};

pub use decision::{Decision, DecisionKind, ExcludedJob, NotCreated, NotCreatedReason, SourceLocation};
pub use work::{Artifacts, Bridge, BridgeTarget, Cache, ChildInclude, Environment, Image, ScriptWork, Strategy, Work};

use decision::lacks_parts;

/// A pipeline with the jobs that it creates for one event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pipeline {
    /// `workflow:name`, with its variables expanded.
    pub name: Option<String>,
    /// All stages in order, from `.pre` to `.post`, including stages without jobs.
    pub stages: Vec<String>,
    /// Global YAML variables and the variables of the matching `workflow:rules` entry.
    pub variables: Vec<Variable>,
    /// What a newer commit or a failed job cancels.
    pub auto_cancel: AutoCancel,
    /// The jobs of the pipeline, ordered by stage, then as written.
    pub jobs: Vec<Job>,
    /// Jobs that rules excluded, for `muster ci list` and `explain`.
    pub excluded: Vec<ExcludedJob>,
}

/// `workflow:auto_cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AutoCancel {
    /// Jobs to cancel when a newer commit is pushed to the ref.
    pub on_new_commit: OnNewCommit,
    /// True for `on_job_failure: all`: the first failed job cancels the others.
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

/// A job or bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Full name, such as `test: [linux, 1]`.
    pub name: String,
    /// Name without the suffix of a parallel job: without ` 1/3` or `: [..]`.
    pub group_name: String,
    /// Text of the comment `# @Description ...` before the job.
    pub description: Option<String>,
    /// Name of the stage.
    pub stage: String,
    /// Index of the stage in [`Pipeline::stages`].
    pub stage_index: usize,
    /// Work of the job.
    pub work: Work,
    /// Condition under which the job starts.
    pub when: When,
    /// Delay before the job starts. Set only with [`When::Delayed`].
    pub start_in: Option<Duration>,
    /// Whether the pipeline passes if the job fails.
    pub allow_failure: AllowFailure,
    /// When and how often a failed job is retried.
    pub retry: Retry,
    /// Maximum run time. `None` uses the timeout of the project.
    pub timeout: Option<Duration>,
    /// Whether a newer pipeline may cancel the running job.
    pub interruptible: bool,
    /// Jobs that must finish before this job starts. `None` means that the job waits for all earlier stages. An empty
    /// list means that the job starts immediately.
    pub needs: Option<Vec<Need>>,
    /// `dependencies` as full names, without excluded jobs. `None` selects the default set of jobs.
    pub dependencies: Option<Vec<String>>,
    /// Variables, lowest precedence first: inherited global variables, then those of `workflow:rules`, of the job, of the
    /// matrix and of the rule. Each name occurs once, with the value that wins.
    pub variables: Vec<Variable>,
    /// Names and values of the `parallel:matrix` cell. Empty for a job without `parallel:matrix`.
    pub matrix: Vec<(String, String)>,
    /// `CI_NODE_INDEX` and `CI_NODE_TOTAL` of a parallel job. `None` for any other job.
    pub node: Option<(u32, u32)>,
    /// Tags, with their variables expanded.
    pub tags: Vec<String>,
    /// The environment, with the variables in its name expanded.
    pub environment: Option<Environment>,
    /// `resource_group`, with its variables expanded.
    pub resource_group: Option<String>,
    /// `manual_confirmation`.
    pub manual_confirmation: Option<String>,
    /// Whether the job can inherit global variables: false for `inherit: {variables: false}`.
    pub inherits_variables: bool,
    /// Location of the definition of the job.
    pub defined_at: SourceLocation,
    /// Reasons why the job exists in this form, such as evaluated rules and defaults.
    pub decisions: Vec<Decision>,
}

impl Job {
    /// Returns true if parts of the job are missing because their include was skipped. Such a job can be shown but not
    /// run.
    #[must_use]
    pub fn lacks_parts(&self) -> bool {
        lacks_parts(&self.decisions)
    }
}

/// `when`
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
    /// Returns the name that the value has in YAML.
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

/// `allow_failure`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllowFailure {
    /// A failure of the job fails the pipeline.
    #[default]
    No,
    /// A failure of the job is a warning.
    Yes,
    /// A failure with one of these exit codes is a warning.
    ExitCodes(Vec<i32>),
}

/// `retry`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Retry {
    /// Maximum number of retries, from 0 to 2.
    pub max: u32,
    /// Failure reasons to retry, without `always`. Empty if `when` is missing.
    pub when: Vec<FailureReason>,
    /// Exit codes to retry.
    pub exit_codes: Vec<i32>,
    /// True if every failure is retried: `when` is `always`, or neither `when` nor `exit_codes` is set.
    pub always: bool,
}

/// A job that must finish before the job with this need starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// A job of the same pipeline. Needs whose job is not in the pipeline have been removed.
    Job {
        /// Full name of the job.
        name: String,
        /// Whether to download the artifacts of the job.
        artifacts: bool,
        /// Whether the job may be missing from the pipeline.
        optional: bool,
    },
    /// The newest successful run of a job of another project.
    Project {
        /// Path of the project, such as `group/app`.
        project: String,
        /// Name of the job.
        job: String,
        /// Branch, tag or commit.
        git_ref: String,
        /// Whether to download the artifacts of the job.
        artifacts: bool,
    },
    /// A job of another pipeline in the same hierarchy.
    Pipeline {
        /// ID of the pipeline, or a variable that contains it.
        pipeline: String,
        /// Name of the job.
        job: String,
        /// Whether to download the artifacts of the job.
        artifacts: bool,
    },
}
