//! The steps for the user's scripts or `run` list.

use muster_agent_api::builtin::Script;
use muster_agent_api::plan::{Call, Step, When};
use muster_job::milliseconds;
use muster_runner_api::payload::{JobPayload, Step as PayloadStep};

use super::super::flags::Flags;
use super::super::settings::JobSettings;
use super::super::variables::Variables;
use super::super::{JobContext, LowerError};

/// Returns the settings that all scripts have in common.
pub(super) fn base_script(payload: &JobPayload, context: &JobContext, settings: &JobSettings, flags: &Flags) -> Script {
    Script {
        shell: context.runner.shell.clone(),
        login: context.runner.login,
        debug: settings.debug_trace,
        sections: payload.features.trace_sections && flags.is_on("FF_SCRIPT_SECTIONS"),
        check_exit_codes: flags.is_on("FF_ENABLE_BASH_EXIT_CODE_CHECK"),
        as_file: flags.is_on("FF_DISABLE_POWERSHELL_STDIN"),
        ..Script::default()
    }
}

/// Returns no commands for a blank script.
pub(super) fn commands(text: Option<&String>) -> Vec<String> {
    text.filter(|text| !text.trim().is_empty()).into_iter().cloned().collect()
}

/// Returns the steps for the scripts or the `run` list, and then for `after_script`.
pub(super) fn scripts(
    payload: &JobPayload,
    context: &JobContext,
    variables: &Variables,
    settings: &JobSettings,
    flags: &Flags,
) -> Result<Vec<Step>, LowerError> {
    let base = base_script(payload, context, settings, flags);
    let (before, after) = (&context.runner.scripts.pre_build, &context.runner.scripts.post_build);
    let is_after = |step: &&PayloadStep| step.name == "after_script";
    let with_script: Vec<&PayloadStep> = payload.steps.iter().filter(|step| !step.script.is_empty()).collect();
    let script = |step: &PayloadStep, is_after_script: bool| {
        let expand = |line: &String| if step.name == "release" { variables.expand(line) } else { line.clone() };
        // The operator's commands surround each script, except `after_script`.
        let operator_commands = |text: &Option<String>| commands(text.as_ref().filter(|_| !is_after_script));
        Call::builtin(&Script {
            before: operator_commands(before),
            commands: step.script.iter().map(expand).collect(),
            after: operator_commands(after),
            after_script: is_after_script,
            ..base.clone()
        })
    };
    let user_step = |name: &str, call: Call| {
        let name = format!("step_{}", name.to_lowercase());
        let title = format!("Executing \"{name}\" stage of the job script");
        let mut step = Step::new(&name, &title, call);
        step.policy.timeout_ms = milliseconds(settings.script_timeout);
        step
    };
    let mut steps = Vec::new();
    match &payload.run {
        Some(run) => {
            if !with_script.is_empty() {
                return Err(LowerError::unsupported("the `run` and `script` keywords cannot be used together"));
            }
            if payload.variables.iter().any(|variable| variable.key == "STEPS") {
                return Err(LowerError::unsupported(
                    "the `run` keyword requires the exclusive use of the variable STEPS",
                ));
            }
            let list = serde_json::from_str(run)
                .map_err(|error| LowerError::configuration(format!("`run` is not a list of steps: {error}")))?;
            steps.push(user_step("run", Call::Run(list)));
        }
        None => {
            steps.extend(
                with_script
                    .iter()
                    .filter(|step| !is_after(step))
                    .map(|step| user_step(&step.name, script(step, false))),
            );
        }
    }
    for step in with_script.iter().filter(|step| is_after(step)) {
        let mut after = Step::new("after_script", "Running after_script", script(step, true));
        after.policy.when = When::Always;
        after.policy.timeout_ms = milliseconds(settings.after_script_timeout);
        after.policy.allow_failure = settings.after_script_ignore_errors;
        steps.push(after);
    }
    Ok(steps)
}
