//! Plan of a job: a tree of steps with policies.
//!
//! ```text
//! JobPlan --steps--> Step { name, policy, call } --call--> a built-in step
//!                                                      --> an author's `run:` list
//!                                                      --> more steps
//! ```
//!
//! Manager and agent may have adjacent versions: unknown fields are ignored, and missing fields have defaults.

use std::collections::BTreeMap;

use muster_job::{ExportKind, StepPolicy};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::builtin::{Inputs, ResourceShare, Tls, UnpackLimits, is_zero};
use crate::development::Development;

/// Built-in step that executes a job.
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

/// Returns `RunRequest.steps` for a plan, from which [`job_plan`] gets the same plan. Expressions in the plan, such as
/// those in scripts, do not count as expressions of a step file, and stay as they are.
///
/// # Errors
/// Never in practice: a plan can always be serialized.
pub fn job_steps(plan: &JobPlan) -> Result<String, serde_json::Error> {
    let item = Item { name: "job".to_owned(), step: JOB.to_owned(), inputs: JobInputs { plan } };
    Ok(format!("{PREAMBLE}{}", serde_json::to_string(&Definition { run: [item] })?))
}

/// Returns the plan in `RunRequest.steps`. Any other text is a step file: the returned plan then has one step, which
/// runs the file in `work_dir`.
///
/// # Errors
/// The plan is invalid. The text of a step file is not checked.
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
        // The client limits the log, as gitlab-runner does.
        output_limit: u64::MAX,
        ..JobPlan::default()
    })
}

/// Input `plan` of `builtin://job`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobPlan {
    /// First lines of the log, without line breaks, about the runner and the environment.
    pub header: Vec<String>,
    /// Further lines after the header.
    pub notices: Vec<String>,
    /// Warnings after the header, about the job's settings.
    pub warnings: Vec<String>,
    /// Project directory of the job. The directory with this path and the suffix `.tmp` has the job's temporary files.
    pub project_dir: String,
    /// Image of the steps' container. Empty means that the steps run on the agent's machine, without a container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// Configured directory that contains the project directory. Jobs can change its content.
    pub builds_dir: String,
    /// Timeout for all steps, in milliseconds. 0 means no limit.
    pub timeout_ms: u64,
    /// Time that another agent already spent on the job's sources, in milliseconds. It counts toward the timeout for
    /// the sources.
    #[serde(skip_serializing_if = "is_zero")]
    pub sources_time_ms: u64,
    /// Whether the log has `section_start` and `section_end` markers.
    pub trace_sections: bool,
    /// Whether lines of the log begin with time and stream (FF_TIMESTAMPS).
    pub timestamps: bool,
    /// Maximum size of the log in bytes, after which output is dropped with a notice. 0 means 4 MiB.
    pub output_limit: u64,
    /// Token prefixes to mask in addition to the built-in ones.
    pub mask_prefixes: Vec<String>,
    /// Whether `glpat-` is the only masked built-in token prefix (FF_MASK_ALL_DEFAULT_TOKENS off).
    pub legacy_token_masking: bool,
    /// Whether output lines `::add-mask::VALUE` add values to mask (`proxy_exec`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adds_masks: bool,
    /// Time from SIGTERM to SIGKILL, in milliseconds. 0 means 10 s.
    pub grace_ms: u64,
    /// Initial and maximum pause before a step is retried, in milliseconds. The pause doubles. If the initial pause is
    /// 0, the pauses are 5 s and 5 min.
    pub retry_wait_ms: (u64, u64),
    /// Whether the job waits for the manager's approval before its first user command. Until then, the manager can
    /// reschedule the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub require_start_approval: bool,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Whether the log has only the output of the steps, without GitLab's lines.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
    /// Endpoint for artifacts.
    pub coordinator: ArtifactEndpoint,
    /// Limits for unpacking an artifact or a cache.
    #[serde(skip_serializing_if = "UnpackLimits::is_default")]
    pub unpack: UnpackLimits,
    /// Rules and limits for the author's steps. `None` means no rules and no limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_policy: Option<StepPolicy>,
    /// Names, without `builtin://`, of built-in steps that an author's `run:` list must not call, because an operator's
    /// step runs in their place or before them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_builtins: Vec<String>,
    /// This job's share of a machine on which other jobs may run. `None` means that no other jobs run there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<ResourceShare>,
    /// Whether only this job uses the agent's network, whose traffic is then the traffic of the job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_own_network: bool,
    /// Whether the result has a [`CallRecord`](crate::result::CallRecord) for each step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub record_calls: bool,
    /// Options for authors of steps.
    #[serde(skip_serializing_if = "Development::is_default")]
    pub development: Development,
}

/// Endpoint for artifacts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactEndpoint {
    /// Base URL, without `/api/v4`.
    pub url: String,
    /// ID of the job.
    pub job_id: i64,
    /// Token of the job.
    pub token: String,
    /// Certificates for the connection.
    pub tls: Tls,
    /// Timeout of an upload, in milliseconds. 0 means one hour.
    pub upload_timeout_ms: u64,
    /// Timeout for the response after an upload, in milliseconds. 0 means ten minutes.
    pub response_timeout_ms: u64,
    /// Whether downloads try the object storage first (FF_USE_DIRECT_DOWNLOAD).
    pub direct_download: bool,
}

/// Step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the step in the result, such as GitLab's `get_sources` or `step_script`, and of its log section unless
    /// [`Policy::section`] is set.
    pub name: String,
    /// Conditions and limits of the step.
    #[serde(default)]
    pub policy: Policy,
    /// Action of the step.
    pub call: Call,
}

impl Step {
    /// Returns a step with one attempt and without a timeout. It runs if no earlier step failed.
    #[must_use]
    pub fn new(name: &str, title: &str, call: Call) -> Self {
        Self { name: name.to_owned(), policy: Policy { title: title.to_owned(), ..Policy::default() }, call }
    }
}

/// Conditions and limits of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// First line of the log section. Empty means no section.
    pub title: String,
    /// Name of the log section. Empty means that of the step.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub section: String,
    /// Condition of the step.
    pub when: When,
    /// Maximum number of attempts, at least 1. For [`Call::Delegate`], attempts to create the environment.
    pub attempts: u32,
    /// Timeout for all attempts, in milliseconds. 0 means that of the job.
    pub timeout_ms: u64,
    /// Whether a failure is only a warning.
    pub allow_failure: bool,
    /// Whether the runner's operator added the step, so that its failure is a failure of the runner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_operator: bool,
    /// Variables that an operator's step exports for the rest of the job, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exports: BTreeMap<String, ExportKind>,
    /// Role in an upload of artifacts.
    #[serde(skip_serializing_if = "UploadRole::is_none")]
    pub upload_role: UploadRole,
}

/// Role of a step in an upload of artifacts that the operator's steps check or sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UploadRole {
    /// No role.
    #[default]
    None,
    /// Checks or signs the artifacts. After a failure that is not only a warning, they are not uploaded. The output
    /// `files` adds files to the archives.
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

/// Condition of a step on the earlier steps of its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Runs if no earlier step failed and the job was not canceled.
    #[default]
    OnSuccess,
    /// Runs if an earlier step failed, or the job was canceled during its scripts.
    OnFailure,
    /// Runs after success and failure, but not after a stop or timeout of the job.
    Always,
    /// Always runs. For cleaning up.
    Finally,
}

/// Action of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Runs a built-in step with literal inputs, whose expressions, such as those in scripts, are not expanded.
    Builtin {
        /// Name without `builtin://`.
        name: String,
        /// [`Inputs`] of the step as JSON.
        inputs: Value,
    },
    /// Runs an author's `run:` list.
    Run(Value),
    /// Runs an author's step file.
    StepFile(String),
    /// Runs steps at another agent, in an environment that a built-in step creates.
    ///
    /// This step has the result of the inner steps. Its cancellation cancels the inner steps. Its log section ends when
    /// the environment is ready.
    Delegate {
        /// Built-in step that creates the environment, without `builtin://`.
        name: String,
        /// [`Inputs`] of that step as JSON.
        inputs: Value,
        /// Steps that this agent runs before the other agent starts. They start what runs beside the environment, such
        /// as services. After a failure that is not only a warning, the environment is not created.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        beside: Vec<Step>,
        /// Steps at the other agent.
        steps: Vec<Step>,
    },
    /// Runs an operator's step in place of a built-in step, with the conditions and limits of the built-in step.
    Replaced {
        /// Name of the built-in step, without `builtin://`.
        name: String,
        /// [`Inputs`] of the built-in step as JSON.
        inputs: Value,
        /// Reference of the operator's step.
        step: String,
        /// Inputs of the operator, with expressions. They replace inputs of the built-in step.
        with: Map<String, Value>,
    },
    /// Runs steps in order. Their conditions refer only to this list.
    Steps(Vec<Step>),
}

impl When {
    /// Returns whether a step with this condition may run. `has_failed` means that an earlier step of the list has
    /// failed.
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
        // Cannot fail. The agent would reject `null` and name the step.
        Self::Builtin { name: I::BUILTIN.to_owned(), inputs: serde_json::to_value(inputs).unwrap_or_default() }
    }

    /// Returns the call that runs `steps` in the environment of the built-in step with these inputs, and `beside`
    /// before them at this agent.
    pub fn delegate<I: Inputs>(inputs: &I, beside: Vec<Step>, steps: Vec<Step>) -> Self {
        // Cannot fail, as in [`Call::builtin`].
        let inputs = serde_json::to_value(inputs).unwrap_or_default();
        Self::Delegate { name: I::BUILTIN.to_owned(), inputs, beside, steps }
    }

    /// Returns the inputs of a call of the built-in step `I`.
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
