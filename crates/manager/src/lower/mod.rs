//! Lowering: a payload of the runner API becomes a plan of built-in steps and the job's variables. Pure.
//!
//! ```text
//! JobPayload + Placement --variables--> layers, expanded once --settings--> knobs --steps--> JobPlan
//! ```
//!
//! What GitLab Runner decides with its shell generator is decided here (job-execution 1-3, 9-11); what happens inside a
//! step is the agent's. A payload that no plan can be made of is a [`LowerError`] with the reason to report.

mod cache;
mod flags;
mod header;
mod inputs;
mod paths;
mod refusals;
mod settings;
mod share;
mod steps;
pub(crate) mod suspension;
#[cfg(test)]
mod tests;
mod variables;
mod vm_image;

use std::collections::HashMap;
use std::sync::Arc;

use muster_agent_api::builtin::UnpackLimits;
use muster_agent_api::plan::{Coordinator, JobPlan, job_steps};
use muster_agent_api::step_runner::{Job, RunRequest, Variable as AgentVariable};
use muster_executor::{Directories, Slot, SlotShare};
use muster_job::mask::Secrets;
use muster_job::{FailureReason, Secret, Variable, expand_within};
use muster_runner_api::payload::JobPayload;
use muster_telemetry::metrics::InputFailure;

use muster_config::settings::{RunnerSettings, UnpackSettings};

pub(crate) use settings::job_timeout;
pub(crate) use share::asking;

/// What the manager knows that the payload does not.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The environment's directories.
    pub directories: Directories,
    /// The job's slot.
    pub slot: Slot,
    /// The runner that the job was taken with; of its token only the short form leaves this module.
    pub runner: Arc<RunnerSettings>,
    /// The host's name, for the header.
    pub host_name: String,
    /// What the trace tells of places that were lost before any command of the job's began, one line each.
    pub moved: Vec<String>,
    /// What the trace tells of the way to the environment; nothing for this host.
    pub way: Vec<String>,
    /// Whether the environment could be suspended for a later job, or why not.
    pub suspends: Result<(), String>,
    /// What the runner's `tls-*-file` keys lead to.
    pub certificates: Certificates,
    /// The job's part of an environment that it shares with others.
    pub share: Option<SlotShare>,
}

impl Placement {
    /// Whether the job is the only one that is ever in the environment.
    fn is_alone(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.is_alone)
    }
}

/// Certificates for the coordinator, as PEM.
#[derive(Debug, Clone, Default)]
pub struct Certificates {
    /// Those to trust.
    pub ca: Option<Secret>,
    /// The client's.
    pub certificate: Option<Secret>,
    /// The client's key.
    pub key: Option<Secret>,
}

/// A job as the agent takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoweredJob {
    /// What to do.
    pub plan: JobPlan,
    /// The job's variables, expanded; of equal names only the last is left.
    pub variables: Vec<Variable>,
    /// Texts of the payload into which inputs were put.
    pub inputs_put_in: u64,
}

impl LoweredJob {
    /// Returns what `Run` sends to the agent, for the job with this ID there.
    ///
    /// # Errors
    /// Never in practice: a plan is always JSON.
    pub(crate) fn request(&self, id: &str) -> Result<RunRequest, serde_json::Error> {
        let variables = self.variables.iter().map(|variable| AgentVariable {
            key: variable.key.clone(),
            value: variable.value.clone(),
            file: variable.file,
            masked: variable.masked,
        });
        Ok(RunRequest {
            id: id.to_owned(),
            work_dir: self.plan.project_dir.clone(),
            job: Some(Job { variables: variables.collect(), build_dir: self.plan.project_dir.clone() }),
            steps: job_steps(&self.plan)?,
            ..RunRequest::default()
        })
    }
}

/// Bytes that all texts of a job may have together when their references are expanded: a reference is short, and what it
/// stands for may be long. An agent takes a plan of twice that.
const EXPANDED_MAX: usize = 32 * 1024 * 1024;

/// Why no plan can be made of a payload. The text is the job's last line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LowerError {
    /// What is wrong.
    pub message: String,
    /// The reason to report (job-execution 11.1).
    pub reason: FailureReason,
    /// The exit code to report, where the rules have one.
    pub exit_code: Option<i32>,
    /// It is about the job's inputs, in this way.
    pub inputs: Option<InputFailure>,
}

impl LowerError {
    fn configuration(message: impl Into<String>) -> Self {
        let reason = FailureReason::RunnerConfigurationError;
        Self { message: message.into(), reason, exit_code: None, inputs: None }
    }

    /// References of this kind would become longer than a manager has memory for.
    fn too_long(references: &str) -> Self {
        let mib = EXPANDED_MAX / (1024 * 1024);
        Self::configuration(format!("the texts of the job, with their {references} put in, are longer than {mib} MiB"))
    }

    fn of_inputs(kind: InputFailure, message: impl Into<String>) -> Self {
        Self { inputs: Some(kind), ..Self::configuration(message) }
    }

    /// An option that this manager cannot honour (job-execution 1.11).
    fn unsupported(message: impl Into<String>) -> Self {
        let reason = FailureReason::RunnerSystemFailure;
        Self { message: message.into(), reason, exit_code: Some(3), inputs: None }
    }
}

/// Lowers a payload.
///
/// # Errors
/// [`LowerError`] where the payload contradicts itself or asks for what this manager does not allow.
pub fn lower(payload: &JobPayload, placement: &Placement) -> Result<LoweredJob, LowerError> {
    refusals::check(payload)?;
    let flags = flags::Flags::resolve(payload, &placement.runner);
    let (payload, inputs_put_in) = inputs::put_in(payload, flags.is_on("FF_ENABLE_JOB_INPUTS_INTERPOLATION"))?;
    let payload = &*payload;
    let paths = paths::Paths::of(payload, placement)?;
    let variables = variables::Variables::join(payload, placement, &paths, &flags);
    variables.check()?;
    let (settings, problems) = settings::Settings::read(payload, placement, &variables, &flags);
    let settings = settings?;
    let mut warnings = flags.warnings.clone();
    warnings.extend(problems);
    warnings.extend(share::problems(payload, placement));
    warnings.extend(suspension::problems(payload, placement));
    if placement.runner.on_instances.use_common_build_dir && !placement.is_alone() {
        warnings.push("use_common_build_dir has no effect: requires vm isolation or max_use_count = 1".to_owned());
    }
    let read =
        steps::Read { payload, placement, paths: &paths, variables: &variables, settings: &settings, flags: &flags };
    let steps = steps::all(&read, &mut warnings)?;
    // Scripts and caches have references too.
    variables.check()?;
    let plan = JobPlan {
        header: header::lines(placement, &flags),
        notices: header::policy(payload),
        warnings,
        project_dir: paths.project_dir,
        builds_dir: paths.builds_dir,
        timeout_ms: steps::milliseconds(settings::job_timeout(payload)),
        trace_sections: payload.features.trace_sections,
        timestamps: flags.is_on("FF_TIMESTAMPS"),
        output_limit: placement.runner.output_limit,
        mask_prefixes: payload.features.token_mask_prefixes.clone(),
        mask_few_prefixes: !flags.is_on("FF_MASK_ALL_DEFAULT_TOKENS"),
        retry_wait_ms: settings.retry_wait_ms,
        steps,
        coordinator: coordinator(payload, placement, &variables, &flags),
        unpack: unpack_limits(placement.runner.unpack),
        share: share::plan(payload, placement),
        ..JobPlan::default()
    };
    Ok(LoweredJob { plan, variables: variables.into_list(), inputs_put_in })
}

/// What a trace of the job must not show: the masked values of the payload, as they are written there and expanded, those
/// of `lowered`, as far as there is a plan, and the job's token.
pub(crate) fn secrets(payload: &JobPayload, lowered: &[Variable]) -> Secrets {
    let values: HashMap<&str, &str> =
        payload.variables.iter().map(|variable| (variable.key.as_str(), variable.value.as_str())).collect();
    let value = |name: &str| values.get(name).copied().unwrap_or_default().to_owned();
    let mut left = EXPANDED_MAX;
    let masked = || payload.variables.iter().filter(|variable| variable.masked);
    let mut expand = |variable: &Variable| {
        // A job that would have a longer one has no plan.
        let expanded = expand_within(&variable.value, left, value)?;
        left -= expanded.len();
        Some(expanded)
    };
    let expanded: Vec<String> = masked().filter_map(&mut expand).collect();
    let lowered = lowered.iter().filter(|variable| variable.masked).map(|variable| variable.value.as_str());
    let written = masked().map(|variable| variable.value.as_str());
    let values = written.chain(expanded.iter().map(String::as_str)).chain(lowered).chain([payload.token.as_str()]);
    Secrets::new(values, payload.features.token_mask_prefixes.iter().map(String::as_str))
}

/// The door for artifacts.
fn unpack_limits(settings: UnpackSettings) -> UnpackLimits {
    let UnpackSettings { max_bytes, max_entries, max_ratio, max_header_bytes, set_in_ci_toml } = settings;
    UnpackLimits { max_bytes, max_entries, max_ratio, max_header_bytes, set_in_ci_toml }
}

fn coordinator(
    payload: &JobPayload,
    placement: &Placement,
    variables: &variables::Variables,
    flags: &flags::Flags,
) -> Coordinator {
    let artifact = &placement.runner.artifact;
    Coordinator {
        url: placement.runner.coordinator_url().to_owned(),
        job_id: payload.id.0,
        token: payload.token.clone(),
        tls: variables.tls(),
        upload_timeout_ms: steps::milliseconds(artifact.upload),
        response_timeout_ms: steps::milliseconds(artifact.response_header),
        direct_download: flags.is_on("FF_USE_DIRECT_DOWNLOAD"),
    }
}
