//! Steps that the operator of the runner adds to each job (`[runners.steps]`).

use muster_agent_api::builtin::{ArtifactsList, ArtifactsUpload, Script};
use muster_agent_api::plan::{Call, Step, UploadRole, When};
use muster_config::settings::{OperatorAction, OperatorStep};
use muster_job::milliseconds;
use serde_json::json;

use super::JobParts;
use super::scripts;

/// The steps run before the checkout, because the job controls the sources.
pub(super) fn before(parts: &JobParts<'_>) -> impl Iterator<Item = Step> {
    parts.context.runner.steps.before.iter().map(|step| self::step(parts, step, "before"))
}

/// The steps run even if the job failed or was canceled.
pub(super) fn after(parts: &JobParts<'_>) -> impl Iterator<Item = Step> {
    parts.context.runner.steps.after.iter().map(|step| {
        let mut step = self::step(parts, step, "after");
        step.policy.when = When::Finally;
        step
    })
}

/// Returns a step that lists the files of the artifacts, and then the operator's steps.
///
/// Returns no step if there are no artifacts, or if the operator has configured no steps before the upload.
pub(super) fn before_upload(parts: &JobParts<'_>, when: When, artifacts: &[ArtifactsUpload]) -> Vec<Step> {
    let configured = &parts.context.runner.steps.before_upload;
    if configured.is_empty() || artifacts.is_empty() {
        return Vec::new();
    }
    // The step lacks `by_operator`: the job can make it fail with the name of a file, and this must not count as a
    // failure of the operator's steps.
    let mut list =
        Step::new("operator_list_artifacts", "", Call::builtin(&ArtifactsList { artifacts: artifacts.to_vec() }));
    list.policy.allow_failure = configured.iter().all(|step| !step.required);
    let steps = configured.iter().map(|step| self::step(parts, step, "before_upload"));
    let mut steps: Vec<Step> = std::iter::once(list).chain(steps).collect();
    for step in &mut steps {
        step.policy.when = when;
        step.policy.upload_role = UploadRole::Check;
    }
    steps
}

fn step(parts: &JobParts<'_>, step: &OperatorStep, position: &str) -> Step {
    let OperatorStep { name, action, env, timeout, required, exports } = step;
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
    let place = match position {
        "before_upload" => "before the upload of the artifacts".to_owned(),
        position => format!("{position} the job"),
    };
    let title = format!("Running the runner's step \"{name}\" {place}");
    let mut step = Step::new(&format!("operator_{position}_{name}"), &title, call);
    step.policy.by_operator = true;
    step.policy.timeout_ms = milliseconds(*timeout);
    step.policy.allow_failure = !required;
    step.policy.exports.clone_from(exports);
    step
}
