//! Inputs for steps of the operator that replace the scripts of a job (docs/reference/replaceable-steps.md).

use muster_agent_api::builtin::Script;
use muster_steps::builtin::Offer;
use serde_json::json;

use crate::offer::map;

pub(super) fn script(step: &Script) -> Offer {
    let inputs = map([
        ("shell", json!(if step.shell.is_empty() { "bash" } else { &step.shell })),
        ("login", json!(step.login)),
        ("before", json!(step.before)),
        ("commands", json!(step.commands)),
        ("after", json!(step.after)),
        ("after_script", json!(step.after_script)),
        ("debug", json!(step.debug)),
        ("check_exit_codes", json!(step.check_exit_codes)),
    ]);
    Offer { inputs, sensitive: Vec::new() }
}
