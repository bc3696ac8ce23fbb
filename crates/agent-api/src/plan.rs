//! The plan of a job: a tree of steps, each with the policy that the engine applies to it.
//!
//! ```text
//! JobPlan --steps--> Step { name, policy, call } --call--> a built-in step
//!                                                      --> an author's `run:` list
//!                                                      --> more steps
//! ```
//!
//! Unknown fields are ignored and missing ones have defaults, so that manager and agent may be of neighbouring versions.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::builtin::{Inputs, Share, Tls, UnpackLimits};

/// The reference of the step that a job is.
pub const JOB: &str = "builtin://job";

/// What `RunRequest.steps` starts with: an empty specification, then the definition (steps 6.4).
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

/// The text for `RunRequest.steps` that has the agent execute `plan`.
///
/// The plan is opaque to the step language: an expression in it, say in a script, is left as it is.
///
/// # Errors
/// Never in practice: a plan is always JSON.
pub fn job_steps(plan: &JobPlan) -> Result<String, serde_json::Error> {
    let item = Item { name: "job".to_owned(), step: JOB.to_owned(), inputs: JobInputs { plan } };
    Ok(format!("{PREAMBLE}{}", serde_json::to_string(&Definition { run: [item] })?))
}

/// Returns the plan in `RunRequest.steps`. A text that was not made by [`job_steps`] is the plan of one step: the step file that it
/// is, which runs in `work_dir`.
///
/// # Errors
/// What is wrong with the plan. The text of a step file is not read here.
pub fn job_plan(steps: &str, work_dir: &str) -> Result<JobPlan, serde_json::Error> {
    let definition = steps.strip_prefix(PREAMBLE).unwrap_or_default();
    let unreadable = match serde_json::from_str::<Definition<JobPlan>>(definition) {
        Ok(Definition { run: [item] }) if item.step == JOB => return Ok(item.inputs.plan),
        Ok(_) => None,
        Err(error) => Some(error),
    };
    let is_job = |Definition { run: [item] }: Definition<IgnoredAny>| item.step == JOB;
    if let (Some(error), true) = (unreadable, serde_json::from_str(definition).is_ok_and(is_job)) {
        return Err(error);
    }
    Ok(JobPlan {
        project_dir: work_dir.to_owned(),
        builds_dir: work_dir.to_owned(),
        steps: vec![Step::new("run", "", Call::StepFile(steps.to_owned()))],
        bare: true,
        ..JobPlan::default()
    })
}

/// Input `plan` of `builtin://job`: the whole job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobPlan {
    /// Lines to print before anything else, each without its line end: who runs the job, and where.
    pub header: Vec<String>,
    /// Further lines behind the header, as good news are shown.
    pub notices: Vec<String>,
    /// What is wrong with the job's settings; each is a warning behind the header.
    pub warnings: Vec<String>,
    /// The job's checkout; its `.tmp` neighbour holds temporary files.
    pub project_dir: String,
    /// The directory above it that an operator chose. A job can change all that is below.
    pub builds_dir: String,
    /// Limit for all steps together, milliseconds; 0 means none.
    pub timeout_ms: u64,
    /// Print `section_start` and `section_end` markers.
    pub trace_sections: bool,
    /// Prefix each line with time and stream (FF_TIMESTAMPS).
    pub timestamps: bool,
    /// Bytes of log after which output is dropped with a notice; 0 means 4 MiB.
    pub output_limit: u64,
    /// Token prefixes to mask beside the built-in ones.
    pub mask_prefixes: Vec<String>,
    /// Of the built-in token prefixes mask `glpat-` only (FF_MASK_ALL_DEFAULT_TOKENS off).
    pub mask_few_prefixes: bool,
    /// From TERM to KILL when the job is ended, milliseconds; 0 means 10 s.
    pub grace_ms: u64,
    /// The wait before a step is tried again, at first, and the most that it doubles to, milliseconds; 0 means 5 s and
    /// 5 min.
    pub retry_wait_ms: (u64, u64),
    /// Before anything of the user's runs, the job waits until its manager has said that it may: until then another place can
    /// have it instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ask_first: bool,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The log is what the steps print and nothing else: without the lines around them that GitLab's jobs have.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
    /// Where to send artifacts, and get them from.
    pub coordinator: Coordinator,
    /// Limits of unpacking an artifact or a cache.
    #[serde(skip_serializing_if = "UnpackLimits::is_default")]
    pub unpack: UnpackLimits,
    /// The job's part of a machine that it shares with others; none where it has it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// The door for artifacts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Coordinator {
    /// Base URL, without `/api/v4`.
    pub url: String,
    /// The job.
    pub job_id: i64,
    /// The job's token. The spool file that holds it is 0600.
    pub token: String,
    /// How to know it, and be known to it.
    pub tls: Tls,
    /// Limit for one upload, milliseconds; 0 means one hour.
    pub upload_timeout_ms: u64,
    /// Limit for the answer once an upload is sent, milliseconds; 0 means ten minutes.
    pub response_timeout_ms: u64,
    /// Downloads ask for the object storage first (FF_USE_DIRECT_DOWNLOAD).
    pub direct_download: bool,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name in the result: of GitLab's stages `get_sources`, `step_script`, ... Also the name of its log section.
    pub name: String,
    /// How the engine runs it.
    #[serde(default)]
    pub policy: Policy,
    /// What it does.
    pub call: Call,
}

impl Step {
    /// Returns a step that runs once, if all steps before it succeeded, with no time limit.
    #[must_use]
    pub fn new(name: &str, title: &str, call: Call) -> Self {
        Self { name: name.to_owned(), policy: Policy { title: title.to_owned(), ..Policy::default() }, call }
    }
}

/// How the engine runs a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// First line of the step's log section. Empty means that the step has no section.
    pub title: String,
    /// When it runs.
    pub when: When,
    /// Maximum number of tries, at least 1.
    pub attempts: u32,
    /// Limit of all tries together, in milliseconds. 0 means the limit of the job.
    pub timeout_ms: u64,
    /// A failure is a warning and has no other effect.
    pub allow_failure: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { title: String::new(), when: When::default(), attempts: 1, timeout_ms: 0, allow_failure: false }
    }
}

/// When a step runs, given how the steps before it in the same list have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// Nothing failed yet, and the job was not canceled.
    #[default]
    OnSuccess,
    /// Something failed.
    OnFailure,
    /// After success and failure, but not after the job's timeout.
    Always,
    /// In any case, also after a timeout or a cancel: cleaning up.
    Finally,
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Runs a built-in step. Its inputs are literal: an expression in them, for example in a script, is not expanded.
    Builtin {
        /// Name without `builtin://`.
        name: String,
        /// Its [`Inputs`] as JSON.
        inputs: Value,
    },
    /// Runs an author's `run:` list: steps in GitLab's step format.
    Run(Value),
    /// Runs an author's step: the two documents of a step file.
    StepFile(String),
    /// Runs steps at another agent: in a place that a built-in step makes. Their log, result and cancellation are those of this step.
    Delegate {
        /// Name of the built-in step that makes the place, without `builtin://`.
        name: String,
        /// Its [`Inputs`] as JSON.
        inputs: Value,
        /// Plan of the agent there.
        steps: Vec<Step>,
    },
    /// Runs steps, one after the other. Their conditions refer to each other and not to steps outside this list.
    Steps(Vec<Step>),
}

impl Call {
    /// Returns the call of the built-in step with these inputs.
    pub fn builtin<I: Inputs>(inputs: &I) -> Self {
        // Inputs are plain data. If one should not become JSON, the agent refuses the null and names the step.
        Self::Builtin { name: I::BUILTIN.to_owned(), inputs: serde_json::to_value(inputs).unwrap_or_default() }
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
    fn a_plan_survives_the_way_through_the_steps_text() {
        let script = Script { commands: vec!["echo ${{ not.ours }}".to_owned()], ..Script::default() };
        let inner = vec![Step::new("step_script", "Executing", Call::builtin(&script))];
        let mut step = Step::new("group", "", Call::Steps(inner));
        step.policy.when = When::Always;
        let plan = JobPlan { project_dir: "/p".to_owned(), steps: vec![step], ..JobPlan::default() };
        assert_eq!(job_plan(&job_steps(&plan).unwrap(), "/w").unwrap(), plan);
    }

    #[test]
    fn any_other_text_is_a_step_file_and_a_plan_that_cannot_be_read_is_an_error() {
        let text = "{}\n---\nrun: [{script: ls}]";
        let plan = job_plan(text, "/w").unwrap();
        assert_eq!((plan.project_dir.as_str(), &plan.steps[0].call), ("/w", &Call::StepFile(text.to_owned())));
        let newer = JobPlan { steps: vec![Step::new("a", "", Call::Run(Value::Null))], ..JobPlan::default() };
        let newer = job_steps(&newer).unwrap().replace("\"run\":null", "\"dream\":null");
        assert!(job_plan(&newer, "/w").unwrap_err().to_string().contains("unknown variant `dream`"));
    }
}
