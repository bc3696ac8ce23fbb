//! Frame of a script: shell options, variables and the body.

use std::fmt::Write;

use muster_agent_api::step_runner::Variable;
use muster_steps::engine::Job as _;
use muster_steps::style;

use super::{Target, path, warning};
use crate::context::Context;
use crate::driver_state::DriverState;
use crate::shell_text::{PIPEFAIL, can_be_set, push_print, push_quoted, quote};

/// Commands that export variables from `GITLAB_ENV`. Invalid lines are ignored.
const READ_GITLAB_ENV: &str = r#"if [ -f "$GITLAB_ENV" ]; then
while IFS= read -r _runner_line || [ -n "$_runner_line" ]; do
case $_runner_line in
[A-Za-z_]*=*) (export "$_runner_line") 2>/dev/null && export "$_runner_line" || true ;;
esac
done <"$GITLAB_ENV"
fi
"#;

/// Handling of file variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobFiles {
    /// Writes the files, and sets the variables to the paths of the files.
    Write,
    /// Only sets the variables to the paths of the files.
    PathsOnly,
}

#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) text: String,
    /// Whether the shell prints each command.
    pub(super) is_traced: bool,
}

impl Body {
    /// Adds a command with these words.
    pub(super) fn run<S: AsRef<str>>(&mut self, words: &[S]) {
        self.text.push_str(&command(words));
        self.text.push('\n');
    }

    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(super) fn notice(&mut self, text: &str) {
        push_print(&mut self.text, style::info(text).trim_end_matches('\n'));
    }

    pub(super) fn warning(&mut self, text: &str) {
        push_print(&mut self.text, &warning(text));
    }

    /// Adds a command that writes a file that only the current user can read.
    pub(super) fn write_file(&mut self, file: &str, content: &str) {
        let (file, content) = (quote(file), quote(content));
        let _ = writeln!(self.text, "rm -f {file}; (umask 077; printf %s {content} >{file})");
    }
}

pub(super) fn command<S: AsRef<str>>(words: &[S]) -> String {
    let mut line = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            line.push(' ');
        }
        push_word(&mut line, word.as_ref());
    }
    line
}

fn push_word(line: &mut String, word: &str) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:@%,".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        line.push_str(word);
    } else {
        push_quoted(line, word);
    }
}

pub(super) fn text(
    session: &DriverState,
    context: &Context,
    target: &Target<'_>,
    body: Body,
    files: JobFiles,
) -> String {
    let shebang = if session.shell == "sh" { "sh" } else { "bash" };
    let mut inner = variables(session, context, target, files);
    if body.is_traced {
        inner.insert_str(0, "set -o xtrace\n");
    }
    inner.insert_str(0, "trap 'exit 1' TERM\n");
    inner.push_str(&body.text);
    let mut text =
        format!("#!/usr/bin/env {shebang}\n\ntrap 'exit 1' TERM\n{PIPEFAIL}\nset -o errexit\nset +o noclobber\neval ");
    push_quoted(&mut text, &inner);
    text.push_str(" </dev/null\nexit 0\n");
    text
}

/// Returns commands that create the temporary directory and export the job's variables.
fn variables(session: &DriverState, context: &Context, target: &Target<'_>, files: JobFiles) -> String {
    let mut body = Body::default();
    let temp = target.temp_dir.to_string_lossy();
    body.run(&["mkdir", "-p", &temp]);
    body.run(&["chmod", "700", &temp]);
    let status = context.values().get("CI_JOB_STATUS").and_then(|status| status.as_str().map(str::to_owned));
    let status = status.map(|value| Variable { key: "CI_JOB_STATUS".to_owned(), value, ..Variable::default() });
    let all = context.variables.current();
    for variable in
        all.iter().chain(&status).filter(|variable| can_be_set(&variable.key) && !variable.value.contains('\0'))
    {
        let value = match &session.binding {
            Some(binding) => binding.expand(&variable.value),
            None => variable.value.clone(),
        };
        let value = match variable.file {
            true => {
                let file = path(target.temp_dir, &variable.key);
                if files == JobFiles::Write {
                    body.write_file(&file, &value);
                }
                file
            }
            false => value,
        };
        let _ = writeln!(body.text, "export {}={}", variable.key, quote(&value));
    }
    let _ = writeln!(body.text, "export GITLAB_ENV={}", quote(&path(target.temp_dir, "gitlab_runner_env")));
    body.text.push_str(READ_GITLAB_ENV);
    body.text
}
