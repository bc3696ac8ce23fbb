//! The plan of a job: a tree of steps, each with the policy that the engine applies to it.
//!
//! ```text
//! JobPlan --steps--> Step { name, policy, call } --call--> a built-in step
//!                                                      --> an author's `run:` list
//!                                                      --> more steps
//! ```
//!
//! Unknown fields are ignored and missing fields have defaults, so that manager and agent can have adjacent versions.

use std::collections::BTreeMap;

use muster_job::{ExportKind, StepPolicy};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::builtin::{Inputs, ResourceShare, Tls, UnpackLimits, is_zero};
use crate::development::Development;

/// Reference of the built-in step that executes a job.
pub const JOB: &str = "builtin://job";

/// Prefix of `RunRequest.steps`: an empty specification, then the definition (`docs/spec/steps.md`, section 6.4).
const PREAMBLE: &str = "{}\n---\n";

#[derive(Serialize, Deserialize)]
struct Definition<P> {
    run: [Item<P>; 1],
}

#[derive(Serialize, Deserialize)]
struct Item<P> {
    name: String,
    step: String,
    inputs: JobInputs<P>,
}

#[derive(Serialize, Deserialize)]
struct JobInputs<P> {
    plan: P,
}

/// Returns the text for `RunRequest.steps` with which the agent executes `plan`.
///
/// The plan is opaque to the step language: an expression in it, for example in a script, is not expanded.
///
/// # Errors
/// Never in practice: a plan can always be serialized to JSON.
pub fn job_steps(plan: &JobPlan) -> Result<String, serde_json::Error> {
    let item = Item { name: "job".to_owned(), step: JOB.to_owned(), inputs: JobInputs { plan } };
    Ok(format!("{PREAMBLE}{}", serde_json::to_string(&Definition { run: [item] })?))
}

/// Returns the plan in `RunRequest.steps`.
///
/// Any text that was not created by [`job_steps`] is a step file: the plan then has one step, which runs that file in `work_dir`.
///
/// # Errors
/// If the plan is not valid. The text of a step file is not checked here.
pub fn job_plan(steps: &str, work_dir: &str) -> Result<JobPlan, serde_json::Error> {
    let definition = steps.strip_prefix(PREAMBLE).unwrap_or_default();
    let parse_error = match serde_json::from_str::<Definition<JobPlan>>(definition) {
        Ok(Definition { run: [item] }) if item.step == JOB => return Ok(item.inputs.plan),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    let is_job = |Definition { run: [item] }: Definition<IgnoredAny>| item.step == JOB;
    if let (Some(error), true) = (parse_error, serde_json::from_str(definition).is_ok_and(is_job)) {
        return Err(error);
    }
    Ok(JobPlan {
        project_dir: work_dir.to_owned(),
        builds_dir: work_dir.to_owned(),
        steps: vec![Step::new("run", "", Call::StepFile(steps.to_owned()))],
        bare: true,
        // The client limits what it keeps of the log, as gitlab-runner does.
        output_limit: u64::MAX,
        ..JobPlan::default()
    })
}

/// Input `plan` of `builtin://job`: the whole job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobPlan {
    /// Lines at the start of the log, without line breaks. They name the runner and the environment of the job.
    pub header: Vec<String>,
    /// Further lines after the header, shown as information.
    pub notices: Vec<String>,
    /// Problems with the job's settings, shown as warnings after the header.
    pub warnings: Vec<String>,
    /// Project directory of the job. Temporary files are in the directory of the same name with the suffix `.tmp`.
    pub project_dir: String,
    /// Image of the container in which the steps run. Empty means that they run on the machine of the agent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Configured directory that contains the project directory. A job can change everything below it.
    pub builds_dir: String,
    /// Timeout for all steps together, in milliseconds. 0 means no limit.
    pub timeout_ms: u64,
    /// Part of the timeout that the sources took before these steps, in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub sources_time_ms: u64,
    /// Whether the log has `section_start` and `section_end` markers.
    pub trace_sections: bool,
    /// Whether each line of the log begins with time and stream (FF_TIMESTAMPS).
    pub timestamps: bool,
    /// Maximum size of the log in bytes. Further output is dropped with a notice. 0 means 4 MiB.
    pub output_limit: u64,
    /// Token prefixes to mask in addition to the built-in ones.
    pub mask_prefixes: Vec<String>,
    /// Whether `glpat-` is the only built-in token prefix that is masked (FF_MASK_ALL_DEFAULT_TOKENS off).
    pub legacy_token_masking: bool,
    /// Whether lines `::add-mask::VALUE` of the output add values to mask (`proxy_exec`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adds_masks: bool,
    /// Time from SIGTERM to SIGKILL when the job is stopped, in milliseconds. 0 means 10 s.
    pub grace_ms: u64,
    /// Initial and maximum pause before a step is retried, in milliseconds. The pause doubles. An initial pause of 0 means 5 s and 5 min.
    pub retry_wait_ms: (u64, u64),
    /// Whether the job waits before its first user command until the manager approves the start.
    ///
    /// Before the approval the manager can still reschedule the job to another environment.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_start_approval: bool,
    /// Steps of the job, in order.
    pub steps: Vec<Step>,
    /// Whether the log has only the output of the steps, without the lines that GitLab's jobs print before and after it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
    /// Endpoint from which artifacts are downloaded, and to which they are uploaded.
    pub coordinator: ArtifactEndpoint,
    /// Limits for unpacking an artifact or a cache.
    #[serde(skip_serializing_if = "UnpackLimits::is_default")]
    pub unpack: UnpackLimits,
    /// Rules and limits for the steps that the author of the job wrote. `None` means that there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_policy: Option<StepPolicy>,
    /// Built-in steps, without `builtin://`, that lists of steps must not call, because the operator has a step in their place or before them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_builtins: Vec<String>,
    /// The job's share of a machine that other jobs use, too. `None` means that no other job uses the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<ResourceShare>,
    /// Whether no other job and no other program uses the network of the agent, so that its traffic is the traffic of the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_own_network: bool,
    /// Whether the result contains a [`CallRecord`](crate::result::CallRecord) for each step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub record_calls: bool,
    /// Options for authors of steps.
    #[serde(skip_serializing_if = "Development::is_default")]
    pub development: Development,
}

/// Endpoint for uploading and downloading artifacts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactEndpoint {
    /// Base URL, without `/api/v4`.
    pub url: String,
    /// ID of the job.
    pub job_id: i64,
    /// Token of the job. The spool file that contains it has mode 0600.
    pub token: String,
    /// Certificates for the connection.
    pub tls: Tls,
    /// Timeout for one upload, in milliseconds. 0 means one hour.
    pub upload_timeout_ms: u64,
    /// Timeout for the response after an upload was sent, in milliseconds. 0 means ten minutes.
    pub response_timeout_ms: u64,
    /// Whether downloads try the object storage first (FF_USE_DIRECT_DOWNLOAD).
    pub direct_download: bool,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the step in the result, such as GitLab's `get_sources` or `step_script`. Also the name of its log section, unless
    /// [`Policy::section`] is set.
    pub name: String,
    /// Conditions and limits under which the engine runs the step.
    #[serde(default)]
    pub policy: Policy,
    /// Action of the step.
    pub call: Call,
}

impl Step {
    /// Returns a step that runs once, if all steps before it succeeded, without a separate timeout.
    #[must_use]
    pub fn new(name: &str, title: &str, call: Call) -> Self {
        Self { name: name.to_owned(), policy: Policy { title: title.to_owned(), ..Policy::default() }, call }
    }
}

/// Conditions and limits under which the engine runs a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// First line of the step's log section. Empty means that the step has no section.
    pub title: String,
    /// Name of the log section. Empty means the name of the step.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub section: String,
    /// Condition for running the step.
    pub when: When,
    /// Maximum number of attempts, at least 1. For [`Call::Delegate`], attempts to create the environment.
    pub attempts: u32,
    /// Timeout for all attempts together, in milliseconds. 0 means the timeout of the job.
    pub timeout_ms: u64,
    /// Whether a failure is only a warning.
    pub allow_failure: bool,
    /// Whether the operator of the runner added the step. Its failure then counts as a failure of the runner, not of the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
    /// Variables that a step of the operator exports for the rest of the job, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exports: BTreeMap<String, ExportKind>,
    /// Role of the step in the upload of artifacts that steps of the operator check or sign.
    #[serde(skip_serializing_if = "UploadRole::is_none")]
    pub upload_role: UploadRole,
}

/// Role of a step in the upload of artifacts that steps of the operator check or sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadRole {
    /// No role.
    #[default]
    None,
    /// Checks or signs the artifacts. If the step fails, and its failure is not only a warning, the artifacts are not uploaded. The
    /// output `files` of the step names files to add to the archives.
    Check,
    /// Uploads the artifacts.
    Upload,
}

impl UploadRole {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            title: String::new(),
            section: String::new(),
            when: When::default(),
            attempts: 1,
            timeout_ms: 0,
            allow_failure: false,
            by_operator: false,
            exports: BTreeMap::new(),
            upload_role: UploadRole::None,
        }
    }
}

/// Condition for a step, given how the earlier steps in the same list have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Runs if no earlier step failed, and the job was not canceled.
    #[default]
    OnSuccess,
    /// Runs if an earlier step failed, or if the job was canceled during its scripts.
    OnFailure,
    /// Runs after success and failure, but not after the job was stopped or timed out.
    Always,
    /// Always runs, even after a timeout or a cancellation. For cleaning up.
    Finally,
}

/// Action of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Runs a built-in step. Its inputs are literal: an expression in them, for example in a script, is not expanded.
    Builtin {
        /// Name without `builtin://`.
        name: String,
        /// [`Inputs`] of the step, as JSON.
        inputs: Value,
    },
    /// Runs an author's `run:` list: steps in GitLab's step format.
    Run(Value),
    /// Runs an author's step: the two documents of a step file.
    StepFile(String),
    /// Runs steps at another agent, in an environment that a built-in step creates.
    ///
    /// The result of the steps is the result of this step, and a cancellation of this step cancels them. The log section of this step ends when
    /// the environment is ready.
    Delegate {
        /// Name of the built-in step that creates the environment, without `builtin://`.
        name: String,
        /// [`Inputs`] of that step as JSON.
        inputs: Value,
        /// Steps that this agent runs while the environment is created, before the other agent starts. They start what runs beside the
        /// steps of the job, such as services. If one of them fails, the environment is not created.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        beside: Vec<Step>,
        /// Steps that the other agent runs.
        steps: Vec<Step>,
    },
    /// Runs a step of the operator in place of a built-in step. The conditions and limits of the built-in step apply to it.
    Replaced {
        /// Name of the built-in step, without `builtin://`.
        name: String,
        /// [`Inputs`] of the built-in step, as JSON.
        inputs: Value,
        /// Reference of the operator's step.
        step: String,
        /// Inputs that the operator sets. They may contain expressions, and replace inputs of the built-in step with the same name.
        with: Map<String, Value>,
    },
    /// Runs steps, one after the other. Their conditions refer to each other and not to steps outside this list.
    Steps(Vec<Step>),
}

impl When {
    /// Returns whether a step with this condition may run. `has_failed` is whether an earlier step of the same list has failed.
    #[must_use]
    pub fn allows(self, has_failed: bool) -> bool {
        match self {
            Self::OnSuccess => !has_failed,
            Self::OnFailure => has_failed,
            Self::Always | Self::Finally => true,
        }
    }
}

impl Call {
    /// Returns the call of the built-in step with these inputs.
    pub fn builtin<I: Inputs>(inputs: &I) -> Self {
        // Inputs are plain data. If their serialization failed nevertheless, the agent would reject `null` and name the step.
        Self::Builtin { name: I::BUILTIN.to_owned(), inputs: serde_json::to_value(inputs).unwrap_or_default() }
    }

    /// Returns the call that runs `steps` in the environment that the built-in step with these inputs creates. `beside` are the steps that
    /// start what runs beside them.
    pub fn delegate<I: Inputs>(inputs: &I, beside: Vec<Step>, steps: Vec<Step>) -> Self {
        // As in [`Call::builtin`], serialization cannot fail.
        let inputs = serde_json::to_value(inputs).unwrap_or_default();
        Self::Delegate { name: I::BUILTIN.to_owned(), inputs, beside, steps }
    }

    /// Returns the inputs if this calls the built-in step of type `I`.
    #[must_use]
    pub fn inputs<I: Inputs>(&self) -> Option<I> {
        match self {
            Self::Builtin { name, inputs } if name == I::BUILTIN => I::deserialize(inputs).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::Script;

    #[test]
    fn job_plan_round_trips_through_steps_text() {
        let script = Script { commands: vec!["echo ${{ inputs.name }}".to_owned()], ..Script::default() };
        let inner = vec![Step::new("step_script", "Executing", Call::builtin(&script))];
        let mut step = Step::new("group", "", Call::Steps(inner));
        step.policy.when = When::Always;
        let plan = JobPlan { project_dir: "/p".to_owned(), steps: vec![step], ..JobPlan::default() };
        assert_eq!(job_plan(&job_steps(&plan).unwrap(), "/w").unwrap(), plan);
    }

    #[test]
    fn job_plan_accepts_step_files_and_rejects_invalid_plans() {
        let text = "{}\n---\nrun: [{script: ls}]";
        let plan = job_plan(text, "/w").unwrap();
        assert_eq!((plan.project_dir.as_str(), &plan.steps[0].call), ("/w", &Call::StepFile(text.to_owned())));
        let plan = JobPlan { steps: vec![Step::new("a", "", Call::Run(Value::Null))], ..JobPlan::default() };
        let newer = job_steps(&plan).unwrap().replace("\"run\":null", "\"newer_call\":null");
        assert!(job_plan(&newer, "/w").unwrap_err().to_string().contains("unknown variant `newer_call`"));
    }
}
