//! The executable under its different names, with its own home directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process::Ended;

/// A directory that is both home and working directory.
pub(crate) struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["muster", "fleeting", "gitlab-runner"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_muster"), folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates the command with a program name and arguments, and without the developer's settings.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path(words[0]));
        command.args(&words[1..]).env_clear().env("HOME", self.folder.path()).current_dir(self.folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).stdin(Stdio::null());
        command
    }

    /// Runs a command to completion.
    pub(crate) fn run(&self, words: &[&str]) -> Ended {
        Ended::of_report(self.command(words).output().unwrap())
    }

    /// Runs a command to completion with this standard input.
    pub(crate) fn run_with(&self, words: &[&str], input: &str) -> Ended {
        let mut command = self.command(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Ended::of_report(child.wait_with_output().unwrap())
    }
}

/// Returns an executable that Cargo builds next to this one. `None`, with a message, if only this crate was built.
#[track_caller]
pub(crate) fn sibling(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_BIN_EXE_muster")).with_file_name(name);
    if path.is_file() {
        return Some(path);
    }
    muster_test_needs::missing(format_args!("{} is not built; cargo build --workspace does", path.display()));
    None
}
