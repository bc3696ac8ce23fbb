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
mod paths;
mod phases;
mod settings;
#[cfg(test)]
mod tests;
mod variables;

use std::sync::Arc;

use muster_agent_api::builtin::{Coordinator, JobPlan};
use muster_environment::{Directories, Slot};
use muster_job::{FailureReason, Variable};
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
    let paths = paths::Paths::of(payload, placement)?;
    let variables = variables::Variables::join(payload, placement, &paths);
    let (settings, warnings) = settings::Settings::read(payload, &variables);
    let mut header = header::lines(payload, placement, &variables);
    let phases = phases::all(payload, placement, &paths, &variables, &settings?, &mut header)?;
    header.extend(warnings.into_iter().map(|warning| format!("WARNING: {warning}")));
    let plan = JobPlan {
        header,
        project_dir: paths.project_dir,
        timeout_ms: settings::job_timeout(payload).as_millis().try_into().unwrap_or(u64::MAX),
        trace_sections: payload.features.trace_sections,
        timestamps: flags::is_on(&variables, "FF_TIMESTAMPS"),
        output_limit: placement.runner.output_limit,
        mask_prefixes: payload.features.token_mask_prefixes.clone(),
        phases,
        coordinator: Coordinator {
            url: placement.runner.coordinator_url().to_owned(),
            job_id: payload.id.0,
            token: payload.token.clone(),
        },
        ..JobPlan::default()
    };
    Ok(LoweredJob { plan, variables: variables.into_list() })
}
