//! Steps of the operator in place of built-in steps (`[[runners.steps.replace]]`).

use std::collections::BTreeSet;

use muster_agent_api::builtin::{ArtifactsUploadList, Inputs};
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::StepsSettings;

pub(super) fn is_replaced(settings: &StepsSettings, builtin: &str) -> bool {
    settings.replace.iter().any(|replacement| replacement.builtin == builtin)
}

/// Returns the built-in steps that the `run:` list must not call, because that would bypass the operator.
pub(in crate::lower) fn reserved(settings: &StepsSettings) -> Vec<String> {
    let guarded = (!settings.before_upload.is_empty()).then_some(ArtifactsUploadList::BUILTIN);
    let replaced = settings.replace.iter().map(|replacement| replacement.builtin.as_str());
    let names: BTreeSet<&str> = replaced.chain(guarded).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// Replaces built-in steps with the operator's steps. A replaced step keeps its name, policy and place.
pub(super) fn apply(steps: &mut [Step], settings: &StepsSettings) {
    // Steps of the operator use the original built-in steps.
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
