//! `builtin://script_legacy`: the step for scripts with `FF_SCRIPT_TO_STEP_MIGRATION` (docs/spec/steps.md, section
//! 8.6).
//!
//! The shell reads variables from `GITLAB_ENV`. The agent does not, because the job chooses this path.

use muster_agent_api::builtin::Script;
use muster_steps::bundled::BundledCall;
use muster_steps::definition::{Kind, Outputs, Parameter, Spec};
use muster_steps::expression::to_text;
use muster_steps::failure::PortError;
use serde_json::Value;

use crate::shell_text::{EchoColor, PIPEFAIL, READ_ONLY, push_commands_in, push_quoted};

pub(crate) const NAME: &str = "script_legacy";

/// Color of commands in gitlab-runner's step.
const COLOR: EchoColor = EchoColor { start: "\x1b[1;32m", end: "\x1b[0m" };
/// Variable with the job's directory for temporary files.
const TEMP_DIR: &str = "RUNNER_TEMP_PROJECT_DIR";
/// File in that directory with variables for later scripts.
const ENV_FILE: &str = "gitlab_runner_env";

pub(crate) fn spec() -> Spec {
    let script = Parameter { kind: Kind::Array, default: None, is_sensitive: false };
    let flag = |name: &str| {
        (name.to_owned(), Parameter { kind: Kind::Boolean, default: Some(Value::Bool(false)), is_sensitive: false })
    };
    // Texts are always quoted for any POSIX shell, so `posix_escape` has no effect.
    let flags = ["debug_trace", "check_for_errors", "posix_escape", "trace_sections"].map(flag);
    let inputs = std::iter::once(("script".to_owned(), script)).chain(flags).collect();
    Spec { inputs, outputs: Outputs::default() }
}

/// Returns the commands of the shell.
pub(crate) fn commands(call: &BundledCall<'_>) -> Result<String, PortError> {
    let is_on = |name: &str| call.inputs.get(name).and_then(Value::as_bool).unwrap_or_default();
    let lines = call.inputs.get("script").and_then(Value::as_array).into_iter().flatten();
    let script = Script {
        commands: lines.map(to_text).collect(),
        debug: is_on("debug_trace"),
        sections: is_on("trace_sections"),
        check_exit_codes: is_on("check_for_errors"),
        ..Script::default()
    };
    if script.commands.is_empty() {
        return Err(PortError::Failed(format!(
            "script input is empty; give the step {NAME} a list of commands as the input `script`"
        )));
    }
    let mut text = format!("trap 'exit 1' TERM\n{PIPEFAIL} || :\nset -o errexit\nset +o noclobber\n");
    if let Some(directory) = (call.lookup)(TEMP_DIR).filter(|directory| !directory.is_empty()) {
        push_env_file(&mut text, &directory);
    }
    if script.debug {
        text.push_str("set -o xtrace\n");
    }
    push_commands_in(&COLOR, &mut text, &script, &[("script_step", &script.commands)]);
    text.push_str("exit 0\n");
    Ok(text)
}

/// Adds commands that export `GITLAB_ENV`, and then export each `NAME=VALUE` line of the file at this path.
fn push_env_file(text: &mut String, directory: &str) {
    text.push_str("export GITLAB_ENV=");
    push_quoted(text, &format!("{directory}/{ENV_FILE}"));
    text.push_str(
        "\nif [ -f \"$GITLAB_ENV\" ]; then\nwhile IFS= read -r _runner_line || [ -n \"$_runner_line\" ]; do\n",
    );
    // Exporting an invalid name or a read-only variable would end the shell. The first pattern is a line without `=`.
    text.push_str("case \"${_runner_line%%=*}\" in\n\"$_runner_line\" | '' | [0-9]* | *[!A-Za-z0-9_]*");
    READ_ONLY.iter().for_each(|name| text.extend([" | ", name]));
    text.push_str(") ;;\n*) export \"$_runner_line\" ;;\nesac\ndone < \"$GITLAB_ENV\"\nfi\n");
}
