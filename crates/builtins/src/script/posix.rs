//! Script frame for bash and other POSIX shells.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

use muster_agent_api::builtin::Script;
use muster_steps::failure::Failure;
use muster_steps::process::Command;
use muster_steps::style;

use super::{ScriptBlock, ScriptFrame, commands, echo_line, no_shell, program};
use crate::context::Context;
use crate::variables::ResolvedVariable;

/// Read-only variables of bash.
const READ_ONLY: [&str; 6] = ["BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"];
/// Command that sets `pipefail` if the shell supports it. The subshell is needed because a failure would end the shell.
pub(crate) const PIPEFAIL: &str = "(set -o pipefail) 2>/dev/null && set -o pipefail";
/// Check after each command, for `FF_ENABLE_BASH_EXIT_CODE_CHECK`.
const EXIT_CODE_CHECK: &str =
    "_runner_exit_code=$?; if [ $_runner_exit_code -ne 0 ]; then exit $_runner_exit_code; fi\n";

/// Returns the command that starts the shell.
pub(super) fn command(context: &Context, frame: &ScriptFrame<'_>) -> Result<Command, Failure> {
    let wanted = frame.script.shell.as_str();
    let shell = find_shell(wanted).ok_or_else(|| no_shell(context, names(wanted)))?;
    // A profile can overwrite variables of the environment, and a traced shell prints the variables that it sets. In both cases the
    // script sets all variables. Otherwise it sets only the variables that the environment cannot hold.
    let of_job = if frame.script.login || frame.script.debug {
        context.variables.all(&context.temp_dir)
    } else {
        context.variables.exports(&context.temp_dir)
    };
    let exports = frame.exports(of_job);
    let args: Vec<OsString> = if frame.script.login { vec!["-l".into()] } else { Vec::new() };
    Ok(frame.shell_process(context, shell.path.clone(), args, Some(text(frame, shell.is_bash, &exports))))
}

/// Returns the names of the shells that can run a script for the shell `wanted`, the preferred one first.
fn names(wanted: &str) -> &'static [&'static str] {
    if wanted == "sh" { &["sh"] } else { &["bash", "sh"] }
}

/// Shell on this machine, or in this container.
#[derive(Debug, Clone)]
struct Shell {
    path: PathBuf,
    is_bash: bool,
}

fn find_shell(wanted: &str) -> Option<&'static Shell> {
    static BASH: OnceLock<Option<Shell>> = OnceLock::new();
    static SH: OnceLock<Option<Shell>> = OnceLock::new();
    let sh = || SH.get_or_init(|| program("sh").map(|path| Shell { path, is_bash: false })).as_ref();
    let bash = || BASH.get_or_init(|| program("bash").map(|path| Shell { path, is_bash: true })).as_ref();
    names(wanted).iter().find_map(|name| if *name == "bash" { bash() } else { sh() })
}

/// Adds the commands of blocks, each after a command that prints it.
pub(crate) fn push_commands(body: &mut String, script: &Script, blocks: &[ScriptBlock<'_>]) {
    for (section, command) in commands(blocks) {
        match command {
            "" => body.push_str("echo\n"),
            command if script.sections && command.contains('\n') => print_in_section(body, &section, command),
            command => print(body, &echo_line(command)),
        }
        body.push_str(command);
        body.push('\n');
        if script.check_exit_codes {
            body.push_str(EXIT_CODE_CHECK);
        }
    }
}

pub(super) fn text(frame: &ScriptFrame<'_>, is_bash: bool, exports: &[ResolvedVariable<'_>]) -> String {
    let script = frame.script;
    let mut body = String::from("trap 'exit 1' TERM\n");
    // The shell parses the text for `eval` twice, so variables are set before `eval` to save time. A traced shell must set them in the
    // text, so that it prints them.
    let mut before = String::new();
    if script.debug {
        body.push_str("set -o xtrace\n");
        export(&mut body, exports, true);
    } else {
        export(&mut before, exports, false);
    }
    body.push_str("cd ");
    push_quoted(&mut body, &frame.directory.to_string_lossy());
    body.push('\n');
    push_commands(&mut body, script, frame.blocks);
    let pipefail = if is_bash { "set -o pipefail" } else { PIPEFAIL };
    let mut text = String::with_capacity(before.len() + 2 * body.len() + 256);
    if let Some(path) = frame.started {
        text.push_str("command echo >> ");
        push_quoted(&mut text, &path.to_string_lossy());
        text.push('\n');
    }
    let _ = write!(text, "trap 'exit 1' TERM\n{pipefail}\nset -o errexit\nset +o noclobber\n{before}eval ");
    push_quoted(&mut text, &body);
    text.push_str(" </dev/null\nexit 0\n");
    text
}

/// Adds `export` commands for the variables.
///
/// A single command for all variables saves a tenth of the run time of the smallest script. A traced shell gets one command for
/// each variable, because that is easier to read.
fn export(to: &mut String, exports: &[ResolvedVariable<'_>], is_traced: bool) {
    let mut exports = exports.iter().filter(|(key, _)| can_be_set(key)).peekable();
    while let Some((key, value)) = exports.next() {
        to.push_str("export ");
        assign(to, key, value);
        while let Some((key, value)) = exports.next_if(|_| !is_traced) {
            to.push(' ');
            assign(to, key, value);
        }
        to.push('\n');
    }
}

fn assign(to: &mut String, key: &str, value: &str) {
    to.push_str(key);
    to.push('=');
    push_quoted(to, value);
}

/// Returns whether a shell can set a variable with this name.
pub(crate) fn can_be_set(key: &str) -> bool {
    !key.starts_with(|first: char| first.is_ascii_digit())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !READ_ONLY.contains(&key)
}

/// Adds a command that prints a line.
pub(crate) fn print(body: &mut String, line: &str) {
    // The `echo` of some shells interprets backslashes, so use `printf`.
    let _ = writeln!(body, "printf '%s\\n' {}", quote(line));
}

/// Prints a command of several lines in a section, which is closed before the command runs (docs/spec/job-execution.md, section 1.8).
fn print_in_section(body: &mut String, section: &str, command: &str) {
    let shown = format!("{}$ {command}{}", style::BOLD_GREEN, style::RESET);
    let _ = writeln!(
        body,
        "printf 'section_start:%s:section_{section}[hide_duration=true,collapsed=true]\\r\\033[0K%s\\n' \"$(date +%s)\" {}",
        quote(&shown)
    );
    let _ = writeln!(body, "printf 'section_end:%s:section_{section}\\r\\033[0K\\n' \"$(date +%s)\"");
}

/// Quotes a text for any POSIX shell.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    push_quoted(&mut quoted, text);
    quoted
}

pub(crate) fn push_quoted(to: &mut String, text: &str) {
    to.push('\'');
    for (index, part) in text.split('\'').enumerate() {
        if index > 0 {
            to.push_str(r"'\''");
        }
        to.push_str(part);
    }
    to.push('\'');
}
