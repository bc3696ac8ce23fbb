//! Lowering: turns a payload of the runner API into a plan of built-in steps and the job's variables. Pure.
//!
//! ```text
//! JobPayload + Placement --variables--> layers, expanded once --settings--> knobs --steps--> JobPlan
//! ```
//!
//! This module makes the decisions that gitlab-runner makes in its shell generator. What happens inside a step is up to the agent. A
//! payload that cannot be lowered is a [`LowerError`] with the failure reason to report.

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
use muster_agent_api::plan::{ArtifactEndpoint, JobPlan, job_steps};
use muster_agent_api::step_runner::{Job, RunRequest, Variable as AgentVariable};
use muster_executor::{Directories, Slot, SlotShare};
use muster_job::mask::Secrets;
use muster_job::{FailureReason, Secret, Variable, expand_within};
use muster_runner_api::payload::JobPayload;
use muster_telemetry::metrics::InputFailure;

use muster_config::settings::{RunnerSettings, UnpackSettings};

pub(crate) use settings::job_timeout;
pub(crate) use share::asking;

/// What the manager knows about a job that its payload does not contain.
#[derive(Debug, Clone)]
pub struct Placement {
    /// Directories of the environment.
    pub directories: Directories,
    /// Slot of the job.
    pub slot: Slot,
    /// Runner that received the job. Only the short form of its token leaves this module.
    pub runner: Arc<RunnerSettings>,
    /// Name of the host, for the header of the trace.
    pub host_name: String,
    /// Lines for the trace about instances that were lost before any command of the job started.
    pub moved: Vec<String>,
    /// Lines for the trace about the connection to the environment. Empty for this host.
    pub way: Vec<String>,
    /// Whether the environment can be suspended for a later job, or the reason why it cannot.
    pub suspends: Result<(), String>,
    /// Content of the runner's `tls-*-file` keys.
    pub certificates: Certificates,
    /// The job's share of an environment that it shares with other jobs. `None` if it does not share one.
    pub share: Option<SlotShare>,
}

impl Placement {
    /// Returns whether the environment never has another job.
    fn is_alone(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.is_alone)
    }
}

/// Certificates for the coordinator, as PEM.
#[derive(Debug, Clone, Default)]
pub struct Certificates {
    /// Certificates of the authorities to trust.
    pub ca: Option<Secret>,
    /// Certificate of the client.
    pub certificate: Option<Secret>,
    /// Private key of the client.
    pub key: Option<Secret>,
}

/// A job in the form that the agent accepts.
#[derive(Debug, Clone, PartialEq)]
pub struct LoweredJob {
    /// Plan of the job's steps.
    pub plan: JobPlan,
    /// Expanded variables of the job. Each name occurs once.
    pub variables: Vec<Variable>,
    /// Number of texts of the payload that contained inputs.
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

/// Maximum size of all texts of a job after expansion. A short reference may stand for a long value.
///
/// An agent accepts plans of up to twice this size.
const EXPANDED_MAX: usize = 32 * 1024 * 1024;

/// The payload cannot be lowered. The message is the last line of the job's trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LowerError {
    /// What is wrong with the payload.
    pub message: String,
    /// Failure reason to report.
    pub reason: FailureReason,
    /// Exit code to report. `None` means no exit code.
    pub exit_code: Option<i32>,
    /// Kind of the failure if it is about the job's inputs.
    pub inputs: Option<InputFailure>,
}

impl LowerError {
    fn configuration(message: impl Into<String>) -> Self {
        let reason = FailureReason::RunnerConfigurationError;
        Self { message: message.into(), reason, exit_code: None, inputs: None }
    }

    /// Returns the error about references whose expansion exceeds [`EXPANDED_MAX`].
    fn too_long(references: &str) -> Self {
        let mib = EXPANDED_MAX / (1024 * 1024);
        Self::configuration(format!("the texts of the job, with their {references} put in, are longer than {mib} MiB"))
    }

    fn of_inputs(kind: InputFailure, message: impl Into<String>) -> Self {
        Self { inputs: Some(kind), ..Self::configuration(message) }
    }

    /// Returns the error about an option that the runner does not support.
    fn unsupported(message: impl Into<String>) -> Self {
        let reason = FailureReason::RunnerSystemFailure;
        Self { message: message.into(), reason, exit_code: Some(3), inputs: None }
    }
}

/// Lowers a payload.
///
/// # Errors
/// [`LowerError`] if the payload contradicts itself, or requests something that the runner does not allow.
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
    // Scripts and caches contain references, too.
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
        legacy_token_masking: !flags.is_on("FF_MASK_ALL_DEFAULT_TOKENS"),
        retry_wait_ms: settings.retry_wait_ms,
        steps,
        coordinator: coordinator(payload, placement, &variables, &flags),
        unpack: unpack_limits(placement.runner.unpack),
        share: share::plan(payload, placement),
        ..JobPlan::default()
    };
    Ok(LoweredJob { plan, variables: variables.into_list(), inputs_put_in })
}

/// Returns the values that a trace of the job must not show.
///
/// These are the masked values of the payload, both raw and expanded, the masked variables in `lowered`, and the job's token.
pub(crate) fn secrets(payload: &JobPayload, lowered: &[Variable]) -> Secrets {
    let values: HashMap<&str, &str> =
        payload.variables.iter().map(|variable| (variable.key.as_str(), variable.value.as_str())).collect();
    let value = |name: &str| values.get(name).copied().unwrap_or_default().to_owned();
    let mut left = EXPANDED_MAX;
    let masked = || payload.variables.iter().filter(|variable| variable.masked);
    let mut expand = |variable: &Variable| {
        // A job whose expanded value is too long cannot be lowered, so no trace shows that value.
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

/// Returns the agent's limits for unpacking archives.
fn unpack_limits(settings: UnpackSettings) -> UnpackLimits {
    let UnpackSettings { max_bytes, max_entries, max_ratio, max_header_bytes, set_in_ci_toml } = settings;
    UnpackLimits { max_bytes, max_entries, max_ratio, max_header_bytes, set_in_ci_toml }
}

fn coordinator(
    payload: &JobPayload,
    placement: &Placement,
    variables: &variables::Variables,
    flags: &flags::Flags,
) -> ArtifactEndpoint {
    let artifact = &placement.runner.artifact;
    ArtifactEndpoint {
        url: placement.runner.coordinator_url().to_owned(),
        job_id: payload.id.0,
        token: payload.token.clone(),
        tls: variables.tls(),
        upload_timeout_ms: steps::milliseconds(artifact.upload),
        response_timeout_ms: steps::milliseconds(artifact.response_header),
        direct_download: flags.is_on("FF_USE_DIRECT_DOWNLOAD"),
    }
}
