//! Runs the executable under its different names, with a temporary home directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::CommandResult;

/// A directory that is both home and working directory.
pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["muster", "fleeting", "gitlab-runner"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn command(&self, command_line: &[&str]) -> Command {
        let mut command = Command::new(self.path(command_line[0]));
        command
            .args(&command_line[1..])
            .env_clear()
            .env("HOME", self.directory.path())
            .current_dir(self.directory.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, command_line: &[&str]) -> CommandResult {
        CommandResult::of_report(self.command(command_line).output().unwrap())
    }

    pub(crate) fn run_with(&self, command_line: &[&str], input: &str) -> CommandResult {
        let mut command = self.command(command_line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        CommandResult::of_report(child.wait_with_output().unwrap())
    }
}

/// Returns a program that Cargo builds next to this one, if the whole workspace was built.
#[track_caller]
pub(crate) fn sibling(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_muster")).with_file_name(name);
    if path.is_file() {
        return Some(path);
    }
    muster_test_prerequisites::missing(format_args!("{} is not built; run `cargo build --workspace`", path.display()));
    None
}
