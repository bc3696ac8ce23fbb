//! Steps of the operator in place of built-in steps (`[[runners.steps.replace]]`).

use std::collections::BTreeSet;

use muster_agent_api::builtin::{ArtifactsUploadList, Inputs};
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::StepsSettings;

/// Returns whether a step of the operator replaces the built-in step.
pub(super) fn is_replaced(settings: &StepsSettings, builtin: &str) -> bool {
    settings.replace.iter().any(|replacement| replacement.builtin == builtin)
}

/// Returns the built-in steps that the job's `run:` list must not call.
/// Such a call would bypass a step of the operator.
pub(in crate::lower) fn reserved(settings: &StepsSettings) -> Vec<String> {
    let guarded = (!settings.before_upload.is_empty()).then_some(ArtifactsUploadList::BUILTIN);
    let replaced = settings.replace.iter().map(|replacement| replacement.builtin.as_str());
    let names: BTreeSet<&str> = replaced.chain(guarded).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Replaces built-in steps of a job. A replaced step keeps its name, its policy and its place.
pub(super) fn apply(steps: &mut [Step], settings: &StepsSettings) {
    // Other steps of the operator use built-in steps, too. They are not replaced.
    for step in steps.iter_mut().filter(|step| !step.policy.by_operator) {
        match &mut step.call {
            Call::Steps(inner) => apply(inner, settings),
            Call::Builtin { name, inputs } => {
                let replacement = settings.replace.iter().find(|replacement| replacement.builtin == *name);
                let Some(replacement) = replacement else { continue };
                step.call = Call::Replaced {
                    name: std::mem::take(name),
                    inputs: inputs.take(),
                    step: replacement.reference.clone(),
                    with: replacement.inputs.clone(),
                };
            }
            Call::Delegate { .. } | Call::Replaced { .. } | Call::Run(_) | Call::StepFile(_) => {}
        }
    }
}
