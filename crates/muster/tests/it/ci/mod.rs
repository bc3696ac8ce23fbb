//! `muster ci` as users run it: the real executable on small repositories.

mod blocked;
mod containers;
mod disk;
mod explain;
mod external;
mod failures;
mod gitlab_ci_local;
mod includes;
mod inspect;
mod output;
mod own_step_keys;
mod podman;
mod results;
mod run;
mod server;
pub(crate) mod tutorial;
mod user_expectations;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// A repository, and the home directory of its user.
pub(crate) struct Project {
    directory: Arc<tempfile::TempDir>,
    name: String,
}

impl Project {
    /// Creates a repository on `main` with one commit that has this configuration.
    pub(crate) fn new(configuration: &str) -> Self {
        let project = Self::empty();
        project.write(".gitlab-ci.yml", configuration);
        project.commit("First commit");
        project
    }

    /// Creates a repository without commits.
    pub(crate) fn empty() -> Self {
        Self { directory: Arc::new(tempfile::tempdir().unwrap()), name: "app".to_owned() }.initialized()
    }

    /// Creates another repository of the same user, without commits.
    pub(crate) fn other_repository(&self, name: &str) -> Self {
        Self { directory: Arc::clone(&self.directory), name: name.to_owned() }.initialized()
    }

    fn initialized(self) -> Self {
        std::fs::create_dir(self.path()).unwrap();
        self.git(&["init", "-q", "-b", "main"]);
        self
    }

    pub(crate) fn configure(&self, text: &str) {
        let directory = self.home().join("config/muster");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("ci.toml"), text).unwrap();
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn commit(&self, message: &str) {
        self.git(&["add", "-A"]);
        self.git(&["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "-m", message]);
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git").current_dir(self.path()).args(arguments).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.muster(&[&["ci"], arguments].concat())
    }

    pub(crate) fn muster(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("muster"));
        command.current_dir(self.path()).args(arguments).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.home()).env("USER", "ada").env("GIT_CONFIG_NOSYSTEM", "1");
        command.env("XDG_STATE_HOME", self.home().join("state")).env("XDG_CONFIG_HOME", self.home().join("config"));
        command
    }

    pub(crate) fn ci(&self, arguments: &[&str]) -> CommandOutput {
        CommandOutput::from(self.command(arguments).output().unwrap())
    }

    /// Returns every file of the repository with its content.
    pub(crate) fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        collect(&self.path(), &mut found);
        found
    }
}

fn collect(directory: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), found);
        } else {
            found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
        }
    }
}

#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn code(self, expected: i32) -> Self {
        assert_eq!(self.code, Some(expected), "{self:#?}");
        self
    }

    /// Checks that standard output contains this text.
    #[track_caller]
    pub(crate) fn prints(&self, text: &str) -> &Self {
        assert!(self.out.contains(text), "no {text:?} in {self:#?}");
        self
    }

    /// Checks that standard output does not contain this text.
    #[track_caller]
    pub(crate) fn lacks(&self, text: &str) -> &Self {
        assert!(!self.out.contains(text), "{text:?} in {self:#?}");
        self
    }

    /// Checks that standard error contains this text.
    #[track_caller]
    pub(crate) fn warns(&self, text: &str) -> &Self {
        assert!(self.err.contains(text), "no {text:?} in {self:#?}");
        self
    }

    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the started jobs in order, from `--output json`.
    pub(crate) fn started(&self) -> Vec<String> {
        let started = self.events().into_iter().filter(|event| event["event"] == "job" && event["status"] == "running");
        started.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
    }
}
