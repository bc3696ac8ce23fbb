//! Script frame for PowerShell (docs/spec/job-execution.md, section 4.7).
//!
//! `pwsh` is PowerShell 7 or later. `powershell` is Windows PowerShell.

use std::ffi::OsString;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use muster_steps::failure::Failure;
use muster_steps::process::Command;

use super::{ScriptFrame, no_shell, program};
use crate::context::Context;
use crate::private_file;
use crate::shell_text::{EchoColor, echo_text};
use crate::variables::ResolvedVariable;

const BASE_FLAGS: [&str; 9] = [
    "-NoProfile",
    "-NoLogo",
    "-InputFormat",
    "text",
    "-OutputFormat",
    "text",
    "-NonInteractive",
    "-ExecutionPolicy",
    "Bypass",
];
const FILE_FLAGS: [&str; 5] = ["-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-File"];
/// Commands that configure UTF-8 and start the shell that reads the script.
const BOOTSTRAP: &str = "$OutputEncoding = [console]::InputEncoding = [console]::OutputEncoding = \
                         New-Object System.Text.UTF8Encoding\r\n\
                         pwsh -NoProfile -NonInteractive -Command -\r\n\
                         exit $LASTEXITCODE\r\n";
/// Check after each command. If the command failed, the check ends the script with the command's exit status.
const CHECK: &str = "if(!$?) { Exit &{if($LASTEXITCODE) {$LASTEXITCODE} else {1}} }";
/// Makes Windows PowerShell read a file as UTF-8.
const BYTE_ORDER_MARK: &str = "\u{feff}";
/// Name of the script file, in the temporary directory.
const FILE: &str = "script.ps1";

pub(super) fn command(context: &Context, frame: &ScriptFrame<'_>) -> Result<Command, Failure> {
    let name = &frame.script.shell;
    let file = uses_file(frame).then(|| context.temp_dir.join(FILE));
    let program = program(name).ok_or_else(|| no_shell(context, &[name]))?;
    let variables = frame.exports(context.variables.all(&context.temp_dir));
    let text = text(frame, &variables);
    let args = arguments(frame, file.as_deref());
    Ok(match file {
        None => frame.shell_process(context, program, args, Some(text)),
        Some(file) => {
            private_file::write(&file, text.as_bytes())
                .map_err(Failure::io(format!("failed to write `{}`", file.display())))?;
            frame.shell_process(context, program, args, None)
        }
    })
}

fn uses_file(frame: &ScriptFrame<'_>) -> bool {
    frame.script.as_file && frame.script.shell == "powershell"
}

/// Returns the arguments of the shell, which contain no part of the script.
pub(super) fn arguments(frame: &ScriptFrame<'_>, file: Option<&Path>) -> Vec<OsString> {
    let os_strings = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    match file {
        Some(file) => [os_strings(&FILE_FLAGS), vec![file.into()]].concat(),
        None if frame.script.shell == "pwsh" => {
            let utf16: Vec<u8> = BOOTSTRAP.encode_utf16().flat_map(u16::to_le_bytes).collect();
            [os_strings(&BASE_FLAGS), vec!["-EncodedCommand".into(), STANDARD.encode(utf16).into()]].concat()
        }
        None => [os_strings(&BASE_FLAGS), os_strings(&["-Command", "-"])].concat(),
    }
}

/// Returns the script. Lines end as on Unix for `pwsh`, or as on Windows for `powershell`.
pub(super) fn text(frame: &ScriptFrame<'_>, variables: &[ResolvedVariable<'_>]) -> String {
    let pwsh = frame.script.shell == "pwsh";
    let mut lines: Vec<String> = Vec::new();
    if frame.script.debug {
        lines.push("Set-PSDebug -Trace 2".to_owned());
    }
    if pwsh {
        lines.push("$ErrorActionPreference = \"Stop\"".to_owned());
    }
    for (key, value) in variables {
        lines.push(format!("${{{key}}}={}", quote(value)));
        lines.push(format!("${{env:{key}}}=${{{key}}}"));
    }
    lines.push(format!("cd {}", quote(&frame.directory.to_string_lossy())));
    lines.extend([CHECK.to_owned(), String::new()]);
    for (_, command) in frame.commands() {
        lines.push(match command {
            "" => "echo \"\"".to_owned(),
            // PowerShell has no sections, so the whole command is printed (docs/spec/job-execution.md, section 4.7).
            command if frame.script.sections => {
                format!("echo {}", quote(&EchoColor::OF_JOB.paint(&format!("$ {command}"))))
            }
            command => format!("echo {}", quote(&EchoColor::OF_JOB.paint(&echo_text(command)))),
        });
        lines.push(command.replace("\r\n", "\n"));
        lines.extend([CHECK.to_owned(), String::new()]);
    }
    let body = lines.join("\n");
    let text = match (pwsh, uses_file(frame)) {
        (true, _) => format!("#!/usr/bin/env pwsh\n& {{\n\n{body}\n}}\n\n"),
        (false, false) => format!("& {{\n\n{body}\n}}\n\n"),
        (false, true) => format!("{BYTE_ORDER_MARK}{body}\n"),
    };
    if pwsh { text } else { text.replace('\n', "\r\n") }
}

/// Returns a string in double quotes, without expansion.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("`a"),
            '\u{8}' => quoted.push_str("`b"),
            '\u{c}' => quoted.push_str("`f"),
            '\r' => quoted.push_str("`r"),
            '\n' => quoted.push_str("`n"),
            '\t' => quoted.push_str("`t"),
            '\u{b}' => quoted.push_str("`v"),
            '`' | '#' | '\'' | '"' | '$' | '“' | '”' | '„' => quoted.extend(['`', c]),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
