//! The user's scripts, or steps.

use muster_agent_api::builtin::{Builtin, Phase, PhaseWhen, Script};
use muster_runner_api::payload::{JobPayload, Step};

use super::super::flags::Flags;
use super::super::settings::Settings;
use super::super::variables::Variables;
use super::super::{LowerError, Placement};
use super::{milliseconds, phase};

/// The shell that all scripts of the job run in, with no command yet.
pub(super) fn shell(payload: &JobPayload, placement: &Placement, settings: &Settings, flags: &Flags) -> Script {
    Script {
        shell: placement.runner.shell.clone(),
        login: placement.runner.login,
        debug: settings.debug_trace,
        sections: payload.features.trace_sections && flags.is_on("FF_SCRIPT_SECTIONS"),
        check_exit_codes: flags.is_on("FF_ENABLE_BASH_EXIT_CODE_CHECK"),
        as_file: flags.is_on("FF_DISABLE_POWERSHELL_STDIN"),
        ..Script::default()
    }
}

/// Shell text of the operator's as a list of commands: it is one command, and none where it is empty.
pub(super) fn commands(text: Option<&String>) -> Vec<String> {
    text.filter(|text| !text.trim().is_empty()).into_iter().cloned().collect()
}

/// The user's scripts or steps, then `after_script`.
pub(super) fn scripts(
    payload: &JobPayload,
    placement: &Placement,
    variables: &Variables,
    settings: &Settings,
    flags: &Flags,
) -> Result<Vec<Phase>, LowerError> {
    let shell = shell(payload, placement, settings, flags);
    let (before, after) = (&placement.runner.scripts.pre_build, &placement.runner.scripts.post_build);
    let is_after = |step: &&Step| step.name == "after_script";
    let used: Vec<&Step> = payload.steps.iter().filter(|step| !step.script.is_empty()).collect();
    let script = |step: &Step, after_script: bool| {
        let expand = |line: &String| if step.name == "release" { variables.expand(line) } else { line.clone() };
        // The operator's text stands around each script, but not around after_script (job-execution 1.6).
        let around = |text: &Option<String>| commands(text.as_ref().filter(|_| !after_script));
        Builtin::Script(Script {
            before: around(before),
            commands: step.script.iter().map(expand).collect(),
            after: around(after),
            after_script,
            ..shell.clone()
        })
    };
    let user_phase = |name: &str, run: Builtin| {
        let name = format!("step_{}", name.to_lowercase());
        let title = format!("Executing \"{name}\" stage of the job script");
        Phase { timeout_ms: milliseconds(settings.script_timeout), ..phase(&name, &title, run) }
    };
    let mut phases = Vec::new();
    match &payload.run {
        Some(run) => {
            if !used.is_empty() {
                return Err(LowerError::unsupported("the `run` and `script` keywords cannot be used together"));
            }
            if payload.variables.iter().any(|variable| variable.key == "STEPS") {
                return Err(LowerError::unsupported(
                    "the `run` keyword requires the exclusive use of the variable STEPS",
                ));
            }
            let steps = serde_json::from_str(run)
                .map_err(|error| LowerError::configuration(format!("`run` is not a list of steps: {error}")))?;
            phases.push(user_phase("run", Builtin::Steps { steps }));
        }
        None => {
            phases.extend(
                used.iter().filter(|step| !is_after(step)).map(|step| user_phase(&step.name, script(step, false))),
            );
        }
    }
    for step in used.iter().filter(|step| is_after(step)) {
        phases.push(Phase {
            when: PhaseWhen::Always,
            timeout_ms: milliseconds(settings.after_script_timeout),
            allow_failure: settings.after_script_ignore_errors,
            ..phase("after_script", "Running after_script", script(step, true))
        });
    }
    Ok(phases)
}
