//! `muster step`, with real steps.

mod debug;
mod repeat;
mod run;
mod test;
mod tutorial;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::CommandResult;

/// Step that prints its inputs except `token`, and returns its input `name` as the output `text`.
const GREET: &str = r#"spec:
  inputs:
    name: {type: string, default: world}
    times: {type: number, default: 1}
    token: {type: string, default: "", sensitive: true}
  outputs:
    text: {type: string}
---
env:
  GREETING: Hello
exec:
  command: [sh, -c, 'echo "$GREETING $1 $2 $WHO"; printf "{\"name\":\"text\",\"value\":\"%s\"}\n" "$1" >"$3"', greet, '${{ inputs.name }}', '${{ inputs.times }}', '${{ output_file }}']
"#;

/// Step that calls a local step and a remote step, and writes the URL from the remote step to the file `note.txt`.
const RELEASE: &str = r#"spec:
  inputs:
    version: {type: string}
  outputs:
    url: {type: string}
---
run:
  - name: greet
    step: ../greet
    inputs: {name: "${{ inputs.version }}"}
  - name: publish
    step: gitlab.com/components/publish@v1
    inputs: {file: "${{ steps.greet.outputs.text }}.tar"}
  - name: note
    script: echo "published ${{ steps.publish.outputs.url }}" >note.txt; echo done
outputs:
  url: ${{ steps.publish.outputs.url }}
"#;

/// Temporary directory with the working directory (`work`) and a directory for temporary files (`tmp`).
struct Project {
    dir: TempDir,
}

impl Project {
    fn empty() -> Self {
        let project = Self { dir: tempfile::tempdir().unwrap() };
        for dir in [project.tmp(), project.path("")] {
            std::fs::create_dir(dir).unwrap();
        }
        project
    }

    fn new() -> Self {
        let project = Self::empty();
        project.write("greet/step.yml", GREET);
        project.write("release/step.yml", RELEASE);
        project
    }

    fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join("work").join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_muster"));
        command.arg("step").args(arguments).stdin(Stdio::null());
        command
    }

    /// Returns a command that runs a line in a shell. Standard error is redirected to standard output.
    fn shell(&self, line: &str) -> Command {
        let mut command = self.program("sh");
        command.args(["-c", &format!("exec 2>&1\n{line}")]);
        command
    }

    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.path(""));
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TMPDIR", self.tmp());
        command.env("HOME", self.tmp());
        command
    }

    fn step(&self, arguments: &[&str]) -> CommandResult {
        CommandResult::of_report(self.command(arguments).output().unwrap())
    }

    fn step_with_input(&self, arguments: &[&str], lines: &[&str]) -> CommandResult {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        CommandResult::of_report(child.wait_with_output().unwrap())
    }
}
