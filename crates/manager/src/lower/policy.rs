//! Checks a job against the step policy before any step runs.
//!
//! The agent checks again when the values of expressions and the calls of steps are known.

use muster_agent_api::plan::{Call, Step};
use muster_job::{FailureReason, PolicyViolation, StepPolicy, StepReference};
use muster_runner_api::payload::JobPayload;
use serde_json::Value;

use super::LowerError;

/// Accepts an invalid list, because the agent reports it.
pub(super) fn check_run_list(payload: &JobPayload, policy: &StepPolicy) -> Result<(), LowerError> {
    let list = payload.run.as_deref().and_then(|run| serde_json::from_str::<Value>(run).ok());
    for entry in list.iter().filter_map(Value::as_array).flatten() {
        let Some(step) = reference(entry) else { continue };
        let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
        policy.check_call(&step).map_err(|violation| refused(name, &violation))?;
    }
    Ok(())
}

pub(super) fn check_builtins(steps: &[Step], policy: &StepPolicy) -> Result<(), LowerError> {
    for step in steps.iter().filter(|step| !step.policy.by_operator) {
        let (builtin, inner) = match &step.call {
            // A rule for a built-in step also applies to its replacement.
            Call::Builtin { name, .. } | Call::Replaced { name, .. } => (Some(name), [&[] as &[Step], &[]]),
            Call::Delegate { name, beside, steps, .. } => (Some(name), [beside.as_slice(), steps.as_slice()]),
            Call::Steps(steps) => (None, [steps.as_slice(), &[]]),
            Call::Run(_) | Call::StepFile(_) => (None, [&[] as &[Step], &[]]),
        };
        if let Some(name) = builtin {
            let reference = StepReference::Builtin { name: name.clone() };
            policy.check(&reference).map_err(|violation| refused(&step.name, &violation))?;
        }
        inner.into_iter().try_for_each(|steps| check_builtins(steps, policy))?;
    }
    Ok(())
}

fn refused(step: &str, violation: &PolicyViolation) -> LowerError {
    LowerError::of_reason(FailureReason::RunnerConfigurationError, format!("step {step:?}: {violation}"))
}

/// `None` means that the entry is invalid or has an expression. The agent checks both kinds of entries.
fn reference(entry: &Value) -> Option<StepReference> {
    if entry.get("script").is_some() {
        return Some(StepReference::Script);
    }
    let called = entry.get("step").or_else(|| entry.get("func"))?;
    let text = |table: &Value, key: &str| table.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let path = |table: &Value| [text(table, "dir"), text(table, "file")].join("/");
    let reference = if let Some(short) = called.as_str() {
        if short.contains("${{") {
            return None;
        }
        StepReference::parse(short)?
    } else if let Some(git) = called.get("git") {
        StepReference::git(&text(git, "url"), &path(git), &text(git, "rev"))
    } else {
        let oci = called.get("oci")?;
        let image = format!("{}/{}", text(oci, "registry"), text(oci, "repository"));
        StepReference::oci(&image, &text(oci, "tag"), &path(oci))
    };
    (!reference.to_string().contains("${{")).then_some(reference)
}
