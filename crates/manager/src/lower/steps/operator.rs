//! Steps that the operator of the runner adds to each job (`[runners.steps]`).

use muster_agent_api::builtin::Script;
use muster_agent_api::plan::{Call, Step, When};
use muster_config::settings::{OperatorAction, OperatorStep};
use muster_job::milliseconds;
use serde_json::json;

use super::JobParts;
use super::scripts;

/// Returns the steps before the job. They run before the checkout, because the job controls the content of the sources.
pub(super) fn before(parts: &JobParts<'_>) -> impl Iterator<Item = Step> {
    parts.context.runner.steps.before.iter().map(|step| self::step(parts, step, "before"))
}

/// Returns the steps after the job. They run even if the job failed or was canceled.
pub(super) fn after(parts: &JobParts<'_>) -> impl Iterator<Item = Step> {
    parts.context.runner.steps.after.iter().map(|step| {
        let mut step = self::step(parts, step, "after");
        step.policy.when = When::Finally;
        step
    })
}

fn step(parts: &JobParts<'_>, step: &OperatorStep, position: &str) -> Step {
    let OperatorStep { name, action, env, timeout, required } = step;
    let call = match action {
        OperatorAction::Script(commands) => Call::builtin(&Script {
            commands: commands.clone(),
            env: env.clone(),
            by_operator: true,
            ..scripts::base_script(parts.payload, parts.context, parts.settings, parts.flags)
        }),
        OperatorAction::Step { reference, inputs } => {
            Call::Run(json!([{ "name": name, "step": reference, "inputs": inputs, "env": env }]))
        }
    };
    let title = format!("Running the runner's step \"{name}\" {position} the job");
    let mut step = Step::new(&format!("operator_{position}_{name}"), &title, call);
    step.policy.by_operator = true;
    step.policy.timeout_ms = milliseconds(*timeout);
    step.policy.allow_failure = !required;
    step
}
