//! The executable under the name `step-runner`. A number at the start of a test's name is the number of its case in `docs/spec/steps.md`.

mod commands;
mod differential;
mod helper;
mod interop;
mod serve;
mod tls;

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::CommandResult;

/// Step that prints its inputs and an environment variable, and returns its input `text` as output.
const ECHO: &str = r#"spec:
  inputs:
    text: {type: string, default: default}
    number: {type: number, default: 1}
  outputs:
    text: {type: string}
---
exec:
  command: [sh, -c, 'echo "$1 $2 $WHO"; printf "{\"name\":\"text\",\"value\":\"%s\"}\n" "$1" >"$3"', echo, '${{ inputs.text }}', '${{ inputs.number }}', '${{ output_file }}']
"#;

/// Directory of a job with the step `./echo`, a directory for temporary files, and links to the executable.
struct Project {
    dir: TempDir,
}

impl Project {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["bin", "tmp", "work"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["step-runner", "gitlab-runner-helper"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), dir.path().join("bin").join(name)).unwrap();
        }
        let project = Self { dir };
        project.write("echo/step.yml", ECHO);
        project
    }

    fn tmp(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.work().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.work().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.program(&self.dir.path().join("bin/step-runner"), arguments)
    }

    fn program(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir(self.work()).stdin(std::process::Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("TMPDIR", self.tmp());
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandResult {
        CommandResult::of(self.command(arguments).output().unwrap())
    }
}

/// Returns standard output without the version at its start.
fn output(result: &CommandResult) -> &str {
    let version = format!("\nStep Runner version: muster {}\n\n", env!("CARGO_PKG_VERSION"));
    result.stdout.strip_prefix(&version).unwrap_or_else(|| panic!("the version is missing: {result:?}"))
}
