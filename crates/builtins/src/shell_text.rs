//! Text for a POSIX shell: quoted words, and commands that are printed before they run.

use std::fmt::Write;

use muster_agent_api::builtin::Script;
use muster_steps::style;

/// Part of a script: the prefix of its section names, such as `script_step` for `script_step_0`, and its commands.
pub(crate) type ScriptBlock<'a> = (&'a str, &'a [String]);

/// Read-only variables of bash.
pub(crate) const READ_ONLY: [&str; 6] = ["BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"];
/// Command that sets `pipefail` if possible. Without the subshell, a failure would end the shell.
pub(crate) const PIPEFAIL: &str = "(set -o pipefail) 2>/dev/null && set -o pipefail";
/// Check after each command (`FF_ENABLE_BASH_EXIT_CODE_CHECK`).
const EXIT_CODE_CHECK: &str =
    "_runner_exit_code=$?; if [ $_runner_exit_code -ne 0 ]; then exit $_runner_exit_code; fi\n";

/// Adds commands. Each is printed before it runs.
pub(crate) fn push_commands(body: &mut String, script: &Script, blocks: &[ScriptBlock<'_>]) {
    push_commands_in(&EchoColor::OF_JOB, body, script, blocks);
}

/// Adds commands. Each is printed in this color before it runs.
pub(crate) fn push_commands_in(color: &EchoColor, body: &mut String, script: &Script, blocks: &[ScriptBlock<'_>]) {
    for (section, command) in commands(blocks) {
        match command {
            "" => body.push_str("echo\n"),
            command if script.sections && command.contains('\n') => {
                print_in_section(body, &section, &color.paint(&format!("$ {command}")));
            }
            command => push_print(body, &color.paint(&echo_text(command))),
        }
        body.push_str(command);
        body.push('\n');
        if script.check_exit_codes {
            body.push_str(EXIT_CODE_CHECK);
        }
    }
}

/// Returns the trimmed commands with the names of their sections.
pub(crate) fn commands<'a>(blocks: &'a [ScriptBlock<'a>]) -> impl Iterator<Item = (String, &'a str)> {
    blocks.iter().flat_map(|(block, commands)| {
        commands.iter().enumerate().map(move |(index, command)| (format!("{block}_{index}"), command.trim()))
    })
}

pub(crate) fn echo_text(command: &str) -> String {
    match command.split_once('\n') {
        None => format!("$ {command}"),
        Some((first, _)) => format!("$ {first} # collapsed multi-line command"),
    }
}

/// Escape sequences around a printed command.
pub(crate) struct EchoColor {
    pub(crate) start: &'static str,
    pub(crate) end: &'static str,
}

impl EchoColor {
    pub(crate) const OF_JOB: Self = Self { start: style::BOLD_GREEN, end: style::RESET };

    pub(crate) fn paint(&self, text: &str) -> String {
        format!("{}{text}{}", self.start, self.end)
    }
}

pub(crate) fn can_be_set(key: &str) -> bool {
    !key.is_empty()
        && !key.starts_with(|first: char| first.is_ascii_digit())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !READ_ONLY.contains(&key)
}

/// Adds a command that prints a line.
pub(crate) fn push_print(body: &mut String, line: &str) {
    // `echo` interprets backslashes in some shells.
    let _ = writeln!(body, "printf '%s\\n' {}", quote(line));
}

/// Adds commands that print a command of several lines in a section. The section is closed before the command runs
/// (docs/spec/job-execution.md, section 1.8).
fn print_in_section(body: &mut String, section: &str, shown: &str) {
    let _ = writeln!(
        body,
        "printf 'section_start:%s:section_{section}[hide_duration=true,collapsed=true]\\r\\033[0K%s\\n' \"$(date +%s)\" {}",
        quote(shown)
    );
    let _ = writeln!(body, "printf 'section_end:%s:section_{section}\\r\\033[0K\\n' \"$(date +%s)\"");
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writable_variables_with_valid_names_can_be_set() {
        assert!(["A", "_", "a_1"].into_iter().all(can_be_set));
        for key in ["", "1A", "A-B", "UID", "Ä"] {
            assert!(!can_be_set(key), "{key}");
        }
    }
}
