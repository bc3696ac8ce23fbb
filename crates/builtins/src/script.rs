//! `builtin://script`: the author's commands in one shell, framed as GitLab does (job-execution 4.3, 4.4).
//!
//! The text goes to the shell's standard input, so no part of it is in an argument list (J6), and the shell does
//! nothing before it was recorded and put into its cgroup. Variables are the shell's environment.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use muster_agent_api::builtin::Script;
use muster_steps::process::{Command, find_program};
use muster_steps::stop::Stop;

use crate::context::Context;
use crate::failure::Failure;
use crate::trace::style;

/// Runs the script; its status is the phase's.
pub(crate) async fn run(context: &Context, script: &Script, stop: &Stop) -> Result<(), Failure> {
    let shell = find_shell(&script.shell)?;
    if script.after_script {
        context.say(&style::info("Running after script..."));
    }
    context.user_code_starts()?;
    let frame = Frame {
        bash: shell.bash,
        trace: context.variables.get("CI_DEBUG_TRACE").is_some_and(is_true),
        directory: &context.project_dir,
        exports: &context.variables.exports(&context.temp_dir),
        commands: &script.commands,
    };
    let args: Vec<OsString> = if script.login { vec!["-l".into()] } else { Vec::new() };
    let stdin = Some(frame.text().into_bytes());
    let (program, env) = (shell.path.clone(), context.environment());
    let command = Command { program, args, env, stdin, ..Command::default() };
    context.wait(command, stop).await
}

/// Booleans as GitLab reads them.
pub(crate) fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// A shell of this machine.
#[derive(Debug, Clone)]
struct Shell {
    path: PathBuf,
    bash: bool,
}

fn find_shell(wanted: &str) -> Result<&'static Shell, Failure> {
    static BASH: OnceLock<Option<Shell>> = OnceLock::new();
    static SH: OnceLock<Option<Shell>> = OnceLock::new();
    let sh = || SH.get_or_init(|| find_program("sh").map(|path| Shell { path, bash: false })).as_ref();
    let found = match wanted {
        "" | "bash" => {
            BASH.get_or_init(|| find_program("bash").map(|path| Shell { path, bash: true })).as_ref().or_else(sh)
        }
        "sh" => sh(),
        other => {
            return Err(Failure::Configuration(format!(
                "the shell `{other}` is not supported here: use `bash` or `sh`"
            )));
        }
    };
    found.ok_or_else(|| Failure::System("shell not found: neither bash nor sh is on this machine".to_owned()))
}

/// What a shell is given to read.
struct Frame<'a> {
    bash: bool,
    trace: bool,
    directory: &'a Path,
    exports: &'a [(String, String)],
    commands: &'a [String],
}

impl Frame<'_> {
    fn text(&self) -> String {
        let mut body = String::from("trap 'exit 1' TERM\n");
        let _ = writeln!(body, "cd {}", quote(&self.directory.to_string_lossy()));
        for (key, value) in self.exports {
            let _ = writeln!(body, "export {key}={}", quote(value));
        }
        if self.trace {
            body.push_str("set -o xtrace\n");
        }
        for command in self.commands {
            let command = command.trim();
            match command.split_once('\n') {
                _ if command.is_empty() => body.push_str("echo\n"),
                None => echo(&mut body, command),
                Some((first, _)) => echo(&mut body, &format!("{first} # collapsed multi-line command")),
            }
            body.push_str(command);
            body.push('\n');
        }
        // Not every sh knows pipefail; the trial runs in a process of its own, because failing it would end the shell.
        let pipefail = if self.bash { "set -o pipefail" } else { "(set -o pipefail) 2>/dev/null && set -o pipefail" };
        format!(
            "trap 'exit 1' TERM\n{pipefail}\nset -o errexit\nset +o noclobber\neval {} </dev/null\nexit 0\n",
            quote(&body)
        )
    }
}

fn echo(body: &mut String, text: &str) {
    // printf, because the echo of some shells takes backslashes for escapes.
    let line = format!("{}$ {text}{}", style::BOLD_GREEN, style::RESET);
    let _ = writeln!(body, "printf '%s\\n' {}", quote(&line));
}

/// Quotes for any POSIX shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests;
