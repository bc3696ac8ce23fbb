//! The executable under the name `gitlab-runner`, with its own home directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Ended;

/// A temporary directory with a link `gitlab-runner` to the executable.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), folder.path().join("gitlab-runner")).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates the command `gitlab-runner` with these arguments, and without the developer's settings.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        // A shell's background job ignores SIGINT and SIGQUIT, and its children inherit that, so reset them.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=INT,QUIT,HUP").arg(self.path("gitlab-runner"));
        command.args(arguments).env_clear().env("HOME", self.folder.path()).current_dir(self.folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(std::process::Stdio::null());
        command
    }

    /// Runs a command to completion.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }
}
