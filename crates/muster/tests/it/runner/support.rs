//! The executable under the name of GitLab's runner, with a home of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::Ended;

/// A folder with a link `gitlab-runner` to the executable. Dropped, it is gone.
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

    /// `gitlab-runner` with these arguments, and none of the tester's settings.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        // A shell's background job ignores SIGINT and SIGQUIT, and so does all that it starts: here they count.
        let mut command = Command::new("/usr/bin/env");
        command.arg("--default-signal=INT,QUIT,HUP").arg(self.path("gitlab-runner"));
        command.args(arguments).env_clear().env("HOME", self.folder.path()).current_dir(self.folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(std::process::Stdio::null());
        command
    }

    /// Runs it to its end.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }
}
