//! The executable under the name `gitlab-runner`, with its own home directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::CommandResult;

pub(crate) struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), directory.path().join("gitlab-runner")).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a command that runs `gitlab-runner`. Its environment has only `HOME` and `PATH`.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        // If the tests run in the background of a shell, SIGINT and SIGQUIT are ignored in all children. Reset these signals.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=INT,QUIT,HUP").arg(self.path("gitlab-runner"));
        command.args(arguments).env_clear().env("HOME", self.directory.path()).current_dir(self.directory.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(std::process::Stdio::null());
        command
    }

    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> CommandResult {
        CommandResult::of(self.command(arguments).output().unwrap())
    }
}
