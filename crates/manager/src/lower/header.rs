//! The lines of the trace before the first command: the runner, the executor and the host.

use muster_agent_api::builtin::Prepare;
use muster_config::settings::RunnerSettings;
use muster_job::short_token;
use muster_runner_api::payload::{Image, JobPayload};

use super::flags::Flags;
use super::steps::services;
use super::suspension;
use super::variables::Variables;
use super::{JobContext, docker};

/// Returns the lines before the first section.
pub(super) fn lines(context: &JobContext, flags: &Flags) -> Vec<String> {
    // The last line of an earlier attempt may be incomplete.
    let gap = (!context.reschedule_notes.is_empty()).then(String::new);
    let mut lines: Vec<String> = gap.into_iter().chain(context.reschedule_notes.iter().cloned()).collect();
    lines.push(format!("Running with muster {}", env!("CARGO_PKG_VERSION")));
    let token = short_token(context.runner.token.expose());
    if !token.is_empty() {
        lines.push(format!("  on {} {token}, system ID: {}", context.runner.name, context.runner.system_id));
    }
    let changed: Vec<String> =
        flags.all().filter(|(flag, on)| flag.default != *on).map(|(flag, on)| format!("{}:{on}", flag.name)).collect();
    if !changed.is_empty() {
        lines.push(format!("  feature flags: {}", changed.join(", ")));
    }
    lines
}

/// Returns the executor section of a job without containers.
pub(super) fn executor(payload: &JobPayload, context: &JobContext, variables: &Variables, flags: &Flags) -> Prepare {
    let mut lines = match context.connection_lines.as_slice() {
        [] => vec![format!("Using Shell ({}) executor...", context.runner.shell)],
        lines => lines.to_vec(),
    };
    lines.extend(suspension::resumed_line(payload, &context.runner));
    lines.extend(note_about_unused_images(payload, &context.runner, variables));
    lines.extend(flag_notes(flags));
    Prepare { lines, ..Prepare::default() }
}

/// Returns the first lines of the executor section of a job in containers.
pub(super) fn before_containers(context: &JobContext, flags: &Flags) -> Vec<String> {
    context.connection_lines.iter().cloned().chain(flag_notes(flags)).collect()
}

pub(super) fn flag_notes(flags: &Flags) -> impl Iterator<Item = String> {
    flags.notes.iter().map(|note| format!("NOTE: {note}"))
}

/// Returns the environment section.
pub(super) fn environment(payload: &JobPayload, context: &JobContext) -> Prepare {
    let host = &context.host_name;
    let line = if context.runner.uses_containers() {
        format!("Running on {} via {host}...", docker::host_name(payload, context))
    } else {
        format!("Running on {host}...")
    };
    Prepare { echoed: vec![line], ..Prepare::default() }
}

/// Returns the lines about the execution policy of GitLab that added the job to the pipeline, if any.
pub(super) fn execution_policy(payload: &JobPayload) -> Vec<String> {
    let policy = &payload.policy_options;
    if !policy.execution_policy_job {
        return Vec::new();
    }
    let overrides = match (policy.policy_variables_override_allowed, &policy.policy_variables_override_exceptions) {
        (None, _) => return vec![format!("Job triggered by policy \"{}\".", policy.policy_name)],
        (Some(true), except) if except.is_empty() => "User-defined CI/CD variables are allowed.".to_owned(),
        (Some(true), except) => {
            format!("User-defined CI/CD variables are allowed (with exceptions: {}).", except.join(", "))
        }
        (Some(false), except) if except.is_empty() => "User-defined CI/CD variables are ignored.".to_owned(),
        (Some(false), except) => {
            format!("User-defined CI/CD variables are ignored (with exceptions: {}).", except.join(", "))
        }
    };
    vec![format!("Job triggered by policy \"{}\".", policy.policy_name), overrides]
}

/// Returns a note if the executor ignores the job's image or some of its services.
fn note_about_unused_images(payload: &JobPayload, runner: &RunnerSettings, variables: &Variables) -> Option<String> {
    let image = payload.image.as_ref().map(|image| variables.expand(&image.name)).filter(|name| !name.is_empty());
    let is_unused = |service: &&Image| services::program(runner, service, variables).is_none();
    let services = payload.services.iter().filter(is_unused).count();
    let unused = match (image, services) {
        (None, 0) => return None,
        (Some(image), 0) => format!("image `{image}` is"),
        (Some(image), _) => format!("image `{image}` and {services} service(s) are"),
        (None, _) => format!("{services} service(s) are"),
    };
    Some(format!("NOTE: the job's {unused} not used: this executor runs jobs on the host itself."))
}
