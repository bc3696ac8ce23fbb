//! Script frame for bash and other POSIX shells.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::OnceLock;

use muster_steps::failure::Failure;
use muster_steps::process::Command;

use super::{ScriptFrame, no_shell, program};
use crate::context::Context;
use crate::shell_text::{PIPEFAIL, can_be_set, push_commands, push_quoted};
use crate::variables::ResolvedVariable;

pub(super) fn command(context: &Context, frame: &ScriptFrame<'_>) -> Result<Command, Failure> {
    let wanted = frame.script.shell.as_str();
    let shell = find_shell(wanted).ok_or_else(|| no_shell(context, names(wanted)))?;
    // The environment may not suffice: a profile can overwrite it, and a traced shell must print the variables that it
    // sets.
    let of_job = if frame.script.login || frame.script.debug {
        context.variables.all(&context.temp_dir)
    } else {
        context.variables.exports(&context.temp_dir)
    };
    let exports = frame.exports(of_job);
    let args: Vec<OsString> = if frame.script.login { vec!["-l".into()] } else { Vec::new() };
    Ok(frame.shell_process(context, shell.path.clone(), args, Some(text(frame, shell.is_bash, &exports))))
}

/// Returns the shells for a script, preferred ones first.
fn names(wanted: &str) -> &'static [&'static str] {
    if wanted == "sh" { &["sh"] } else { &["bash", "sh"] }
}

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

pub(super) fn text(frame: &ScriptFrame<'_>, is_bash: bool, exports: &[ResolvedVariable<'_>]) -> String {
    let script = frame.script;
    let mut body = String::from("trap 'exit 1' TERM\n");
    // The shell parses the text of `eval` twice. To save time, variables are set before `eval`. A traced shell sets
    // them in the text of `eval`, so that it prints them.
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
        // This line shows that the profile did not end the shell.
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
/// One command for all variables saves a tenth of the run time of the smallest script. A traced shell gets one command
/// for each variable, because its trace is then readable.
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
