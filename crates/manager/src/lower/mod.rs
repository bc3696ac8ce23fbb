//! Lowering: a payload of the runner API becomes a plan of built-in steps and the job's variables. Pure.
//!
//! ```text
//! JobPayload + Placement --variables--> layers, expanded once --settings--> knobs --phases--> JobPlan
//! ```
//!
//! What GitLab Runner decides with its shell generator is decided here (job-execution 1-3, 9-11); what happens inside a
//! phase is the agent's. A payload that no plan can be made of is a [`LowerError`] with the reason to report.

mod cache;
mod expand;
mod flags;
pub mod go_duration;
mod header;
mod inputs;
mod paths;
mod phases;
mod refusals;
mod settings;
#[cfg(test)]
mod tests;
mod variables;

use std::sync::Arc;

use muster_agent_api::builtin::{Coordinator, JobPlan};
use muster_environment::{Directories, Slot};
use muster_job::{FailureReason, Secret, Variable};
use muster_runner_api::payload::JobPayload;

use crate::settings::RunnerSettings;

pub use expand::expand;
pub use paths::short_token;
pub(crate) use settings::job_timeout;

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
    /// What the trace tells of the way to the environment; nothing for this host.
    pub way: Vec<String>,
    /// What the runner's `tls-*-file` keys lead to.
    pub certificates: Certificates,
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
}

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
}

impl LowerError {
    fn configuration(message: impl Into<String>) -> Self {
        Self { message: message.into(), reason: FailureReason::RunnerConfigurationError, exit_code: None }
    }

    /// An option that this manager cannot honour (job-execution 1.11).
    fn unsupported(message: impl Into<String>) -> Self {
        Self { message: message.into(), reason: FailureReason::RunnerSystemFailure, exit_code: Some(3) }
    }
}

/// Lowers a payload.
///
/// # Errors
/// [`LowerError`] where the payload contradicts itself or asks for what this manager does not allow.
pub fn lower(payload: &JobPayload, placement: &Placement) -> Result<LoweredJob, LowerError> {
    refusals::check(payload)?;
    let flags = flags::Flags::resolve(payload, &placement.runner);
    let payload = &*inputs::put_in(payload, flags.is_on("FF_ENABLE_JOB_INPUTS_INTERPOLATION"))?;
    let paths = paths::Paths::of(payload, placement)?;
    let variables = variables::Variables::join(payload, placement, &paths, &flags);
    let (settings, problems) = settings::Settings::read(payload, placement, &variables, &flags);
    let settings = settings?;
    let mut warnings = flags.warnings.clone();
    warnings.extend(problems);
    let read =
        phases::Read { payload, placement, paths: &paths, variables: &variables, settings: &settings, flags: &flags };
    let phases = phases::all(&read, &mut warnings)?;
    let plan = JobPlan {
        header: header::lines(placement, &flags),
        notices: header::policy(payload),
        warnings,
        project_dir: paths.project_dir,
        timeout_ms: phases::milliseconds(settings::job_timeout(payload)),
        trace_sections: payload.features.trace_sections,
        timestamps: flags.is_on("FF_TIMESTAMPS"),
        output_limit: placement.runner.output_limit,
        mask_prefixes: payload.features.token_mask_prefixes.clone(),
        mask_few_prefixes: !flags.is_on("FF_MASK_ALL_DEFAULT_TOKENS"),
        retry_wait_ms: settings.retry_wait_ms,
        phases,
        coordinator: coordinator(payload, placement, &variables, &flags),
        ..JobPlan::default()
    };
    Ok(LoweredJob { plan, variables: variables.into_list() })
}

/// The door for artifacts.
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
        upload_timeout_ms: phases::milliseconds(artifact.upload),
        response_timeout_ms: phases::milliseconds(artifact.response_header),
        direct_download: flags.is_on("FF_USE_DIRECT_DOWNLOAD"),
    }
}
