//! Lowering: turns a payload into a plan of built-in steps and the job's variables, without I/O.
//!
//! ```text
//! JobPayload + JobContext --variables--> expanded variables --settings--> JobSettings --steps--> JobPlan
//! ```
//!
//! This module makes the decisions that gitlab-runner makes in its shell generator. The agent implements the steps.

mod cache;
pub(crate) mod docker;
mod driver;
mod flags;
mod header;
mod inputs;
mod mirror;
mod paths;
mod policy;
mod protection;
pub(crate) mod secrets;
mod settings;
mod share;
mod steps;
pub(crate) mod suspension;
#[cfg(test)]
mod tests;
mod unsupported;
mod variables;
mod vm_image;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use globset::GlobBuilder;
use muster_agent_api::builtin::{CacheObject, ChunkStore, UnpackLimits};
use muster_agent_api::plan::{ArtifactEndpoint, JobPlan, job_steps};
use muster_agent_api::step_runner::{Job, RunRequest, Variable as AgentVariable};
use muster_executor::{Directories, Slot, SlotShare};
use muster_job::mask::Secrets;
use muster_job::{FailureReason, Secret, StepLimits, Variable, expand_within};
use muster_runner_api::payload::JobPayload;
use muster_telemetry::metrics::InputFailure;

use muster_config::settings::{RunnerSettings, UnpackSettings};

pub(crate) use cache::{CacheUse, CacheUses, ChunkUse};
pub use docker::{AuthFile, DockerFiles, HelperAnswers, HelperLogin, HelperQuestion};
pub(crate) use settings::job_timeout;
pub(crate) use share::environment_request;

/// Data that a job's plan depends on, besides its payload.
#[derive(Debug, Clone)]
pub struct JobContext {
    /// Directories of the environment.
    pub directories: Directories,
    /// Slot of the job.
    pub slot: Slot,
    /// Runner that received the job. The plan contains only the short form of its token.
    pub runner: Arc<RunnerSettings>,
    /// Name of the host, for the header of the trace.
    pub host_name: String,
    /// Lines for the trace about instances that were lost before any command of the job started.
    pub reschedule_notes: Vec<String>,
    /// Lines for the trace about the connection to the environment. Empty if the job runs on this host.
    pub connection_lines: Vec<String>,
    /// Whether the environment can be suspended for a later job, or the reason why it cannot.
    pub suspend_support: Result<(), String>,
    /// Content of the runner's `tls-*-file` keys.
    pub certificates: Certificates,
    /// Files that the job's containers need. Empty if the job has no containers.
    pub docker: DockerFiles,
    /// The job's slot on an instance, with its share of the instance. `None` if the environment has no such slots.
    pub share: Option<SlotShare>,
    /// Signed URLs of the job's cache archives in the object store, by the keys of [`CacheUse`].
    pub cache_objects: BTreeMap<String, CacheObject>,
    /// Signed URLs of the job's caches that are stored as chunks, by the keys of [`ChunkUse`].
    pub cache_chunks: BTreeMap<String, ChunkStore>,
    /// Variables with the job's secrets.
    pub secrets: Vec<Variable>,
}

impl JobContext {
    /// Returns whether no other job ever uses the environment.
    fn is_exclusive(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.is_exclusive)
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
    /// Number of strings of the payload that the interpolation of inputs changed.
    pub interpolated_inputs: u64,
}

impl LoweredJob {
    /// `id` is the ID of the run. Never fails in practice.
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

/// Maximum size of all strings of a job after expansion.
///
/// An agent accepts plans of up to twice this size.
const MAX_EXPANDED_BYTES: usize = 32 * 1024 * 1024;

/// The payload cannot be lowered. The message is the last line of the job's trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LowerError {
    /// Description of the problem.
    pub message: String,
    /// Failure reason to report.
    pub reason: FailureReason,
    /// Exit code to report, if any.
    pub exit_code: Option<i32>,
    /// Kind of the failure if the job's inputs caused it.
    pub inputs: Option<InputFailure>,
    /// Lines of the trace before the message. The first line is shown as an error.
    pub trace_lines: Vec<String>,
}

impl LowerError {
    pub(crate) fn of_reason(reason: FailureReason, message: impl Into<String>) -> Self {
        Self { message: message.into(), reason, exit_code: None, inputs: None, trace_lines: Vec::new() }
    }

    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::of_reason(FailureReason::RunnerConfigurationError, message)
    }

    fn too_long(references: &str) -> Self {
        let mib = MAX_EXPANDED_BYTES / (1024 * 1024);
        Self::configuration(format!("the texts of the job, with expanded {references}, are longer than {mib} MiB"))
    }

    fn invalid_inputs(kind: InputFailure, message: impl Into<String>) -> Self {
        Self { inputs: Some(kind), ..Self::configuration(message) }
    }

    fn unsupported(message: impl Into<String>) -> Self {
        Self { exit_code: Some(3), ..Self::of_reason(FailureReason::RunnerSystemFailure, message) }
    }
}

/// Lowers a payload.
///
/// # Errors
/// [`LowerError`] if the payload contradicts itself, or requests something that the runner does not allow.
pub fn lower(payload: &JobPayload, context: &JobContext) -> Result<LoweredJob, LowerError> {
    unsupported::check(payload)?;
    secrets::check_fetched(payload, context)?;
    let flags = flags::Flags::resolve(payload, &context.runner);
    let (payload, interpolated_inputs) =
        inputs::interpolate_inputs(payload, flags.is_on("FF_ENABLE_JOB_INPUTS_INTERPOLATION"))?;
    let payload = &*payload;
    let host_context = docker::host_context(payload, context);
    let outside = host_context.as_ref().unwrap_or(context);
    let inside = inner_context(outside);
    let context = inside.as_ref().unwrap_or(outside);
    let paths = paths::Paths::new(payload, context)?;
    let variables = variables::Variables::join(payload, context, &paths, &flags);
    variables.check()?;
    let (settings, problems) = settings::JobSettings::read(payload, context, &variables, &flags);
    let settings = settings?;
    let mut warnings = flags.warnings.clone();
    warnings.extend(problems);
    warnings.extend(share::problems(payload, context));
    warnings.extend(suspension::problems(payload, context));
    if context.runner.on_instances.use_common_build_dir && !context.is_exclusive() {
        warnings.push("use_common_build_dir has no effect: requires vm isolation or max_use_count = 1".to_owned());
    }
    let parts = steps::JobParts {
        payload,
        context,
        machine: &outside.directories,
        paths: &paths,
        variables: &variables,
        settings: &settings,
        flags: &flags,
    };
    let steps = steps::all(&parts, &mut warnings)?;
    let mut step_policy = context.runner.steps.policy.clone();
    if context.runner.uses_containers()
        && let Some(policy) = &mut step_policy
    {
        // The container enforces these limits.
        policy.limits = StepLimits { cpu_milli: None, memory_bytes: None, ..policy.limits.clone() };
    }
    if let Some(policy) = &step_policy {
        policy::check_builtins(&steps, policy)?;
    }
    // Expanding the references in scripts and caches may have exceeded the limit.
    variables.check()?;
    let (project_dir, builds_dir) = if inside.is_some() {
        let outer_dir = if driver::runs_job(outside) { driver::outer_dir(outside) } else { docker::outer_dir(outside) };
        (outer_dir.display().to_string(), outside.directories.builds.display().to_string())
    } else {
        (paths.project_dir, paths.builds_dir)
    };
    let plan = JobPlan {
        header: header::lines(context, &flags),
        notices: header::execution_policy(payload),
        warnings,
        project_dir,
        builds_dir,
        timeout_ms: muster_job::milliseconds(settings::job_timeout(payload)),
        trace_sections: payload.features.trace_sections,
        timestamps: flags.is_on("FF_TIMESTAMPS"),
        output_limit: context.runner.output_limit,
        mask_prefixes: payload.features.token_mask_prefixes.clone(),
        legacy_token_masking: !flags.is_on("FF_MASK_ALL_DEFAULT_TOKENS"),
        adds_masks: context.runner.proxy_exec,
        retry_wait_ms: settings.retry_wait_ms,
        steps,
        coordinator: coordinator(payload, context, &variables, &flags),
        unpack: unpack_limits(context.runner.unpack),
        step_policy,
        reserved_builtins: steps::reserved(&context.runner.steps),
        share: share::resource_share(payload, context),
        // Only coordinators that receive the result tree need the records.
        record_calls: wants_result_tree(payload),
        ..JobPlan::default()
    };
    Ok(LoweredJob { plan, variables: variables.into_list(), interpolated_inputs })
}

pub(crate) fn wants_result_tree(payload: &JobPayload) -> bool {
    payload.muster.as_ref().is_some_and(|extension| extension.result_tree)
}

/// Returns the context in the container or the driver's environment. `None` means that the job has neither.
fn inner_context(outside: &JobContext) -> Option<JobContext> {
    if driver::runs_job(outside) {
        return Some(driver::driver_context(outside));
    }
    outside.runner.uses_containers().then(|| docker::container_context(outside))
}

/// Returns nothing if the payload cannot be lowered.
pub(crate) fn cache_uses(payload: &JobPayload, context: &JobContext) -> CacheUses {
    // [`lower`] reports the error.
    with_variables(payload, context, cache::list_uses).unwrap_or_default()
}

/// Calls `read` with the interpolated payload, its context, and what is derived from them.
fn with_variables<T>(
    payload: &JobPayload,
    context: &JobContext,
    read: impl FnOnce(
        &JobPayload,
        &JobContext,
        &paths::Paths,
        &variables::Variables,
        &flags::Flags,
    ) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    let flags = flags::Flags::resolve(payload, &context.runner);
    let interpolate = flags.is_on("FF_ENABLE_JOB_INPUTS_INTERPOLATION");
    let (payload, _) = inputs::interpolate_inputs(payload, interpolate)?;
    let host_context = docker::host_context(&payload, context);
    let outside = host_context.as_ref().unwrap_or(context);
    let inside = inner_context(outside);
    let context = inside.as_ref().unwrap_or(outside);
    let paths = paths::Paths::new(&payload, context)?;
    let variables = variables::Variables::join(&payload, context, &paths, &flags);
    variables.check()?;
    let result = read(&payload, context, &paths, &variables, &flags)?;
    variables.check()?;
    Ok(result)
}

/// Returns the values that a trace must not show: masked values, both raw and expanded, and the job's token.
///
/// `lowered` may have further masked variables.
pub(crate) fn values_to_mask(payload: &JobPayload, lowered: &[Variable]) -> Secrets {
    let values: HashMap<&str, &str> =
        payload.variables.iter().map(|variable| (variable.key.as_str(), variable.value.as_str())).collect();
    let value = |name: &str| values.get(name).copied().unwrap_or_default().to_owned();
    let mut remaining = MAX_EXPANDED_BYTES;
    let masked = || payload.variables.iter().filter(|variable| variable.masked);
    let mut expand = |variable: &Variable| {
        // A job with a longer value cannot be lowered.
        let expanded = expand_within(&variable.value, remaining, value)?;
        remaining -= expanded.len();
        Some(expanded)
    };
    let expanded: Vec<String> = masked().filter_map(&mut expand).collect();
    let lowered = lowered.iter().filter(|variable| variable.masked).map(|variable| variable.value.as_str());
    let raw = masked().map(|variable| variable.value.as_str());
    let values = raw.chain(expanded.iter().map(String::as_str)).chain(lowered).chain([payload.token.as_str()]);
    Secrets::new(values, payload.features.token_mask_prefixes.iter().map(String::as_str))
}

/// `*` does not match a slash, `**` does. An invalid pattern matches nothing.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    glob.is_ok_and(|glob| glob.compile_matcher().is_match(text))
}

fn unpack_limits(settings: UnpackSettings) -> UnpackLimits {
    let UnpackSettings { max_bytes, max_entries, max_ratio, max_header_bytes, set_in_ci_toml } = settings;
    UnpackLimits { max_bytes, max_entries, max_ratio, max_header_bytes, set_in_ci_toml }
}

fn coordinator(
    payload: &JobPayload,
    context: &JobContext,
    variables: &variables::Variables,
    flags: &flags::Flags,
) -> ArtifactEndpoint {
    let artifact = &context.runner.artifact;
    ArtifactEndpoint {
        url: context.runner.coordinator_url().to_owned(),
        job_id: payload.id.0,
        token: payload.token.clone(),
        tls: variables.tls(),
        upload_timeout_ms: muster_job::milliseconds(artifact.upload),
        response_timeout_ms: muster_job::milliseconds(artifact.response_header),
        direct_download: flags.is_on("FF_USE_DIRECT_DOWNLOAD"),
    }
}
