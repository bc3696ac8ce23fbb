use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::SnapshotError;

/// A repository that is accessed through the `git` program.
#[derive(Debug, Clone)]
pub struct Git {
    /// Directory in which git runs.
    pub(crate) directory: PathBuf,
    /// `None` means that git searches for the repository from [`Git::directory`] upwards.
    pub(crate) git_dir: Option<PathBuf>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

impl Git {
    /// Returns the repository that contains `directory`.
    #[must_use]
    pub fn discover(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), git_dir: None, environment: Vec::new() }
    }

    /// Returns the bare repository `store`.
    #[must_use]
    pub fn bare(store: &Path) -> Self {
        Self { directory: store.to_owned(), git_dir: Some(store.to_owned()), environment: Vec::new() }
    }

    pub(crate) fn with_variable(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Returns the command without starting it.
    ///
    /// The command does not prompt, prints English messages, and ignores most `GIT_*` variables, which a hook or an
    /// alias may have set.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new("git");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("GIT_") && !is_preserved(&name) {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.directory).stdin(Stdio::null());
        command.env("LC_ALL", "C").env("GIT_OPTIONAL_LOCKS", "0").env("GIT_TERMINAL_PROMPT", "0");
        if let Some(git_dir) = &self.git_dir {
            command.env("GIT_DIR", git_dir);
        }
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command.args(["-c", "core.fsmonitor=false", "-c", "core.splitIndex=false", "-c", "core.safecrlf=false"]);
        command.args(["-c", "core.hooksPath=/dev/null", "-c", "advice.addEmbeddedRepo=false"]);
        command.args(arguments);
        command
    }

    /// Returns a command that may connect to servers, with the user's settings for SSH, password prompts and proxies.
    ///
    /// `login` is a URL prefix and its `user:password`, which do not appear in the arguments of a process.
    pub fn network_command<S: AsRef<OsStr>>(&self, arguments: &[S], login: Option<(&str, &str)>) -> Command {
        let mut command = self.command(arguments);
        command.env_remove("GIT_TERMINAL_PROMPT");
        for (name, value) in std::env::vars_os().filter(|(name, _)| is_connection_setting(name)) {
            command.env(name, value);
        }
        // Abort if the server sends nothing for 30 s.
        command.env("GIT_HTTP_LOW_SPEED_LIMIT", "1").env("GIT_HTTP_LOW_SPEED_TIME", "30");
        if let Some((url_prefix, login)) = login {
            let count = std::env::var("GIT_CONFIG_COUNT").ok().and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
            let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, login);
            command.env("GIT_CONFIG_COUNT", (count + 1).to_string());
            command.env(format!("GIT_CONFIG_KEY_{count}"), format!("http.{url_prefix}.extraHeader"));
            command.env(format!("GIT_CONFIG_VALUE_{count}"), format!("Authorization: Basic {encoded}"));
        }
        command
    }

    /// Runs git, and returns its output regardless of its exit status.
    ///
    /// # Errors
    /// [`SnapshotError`] if git cannot be started.
    pub fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Output, SnapshotError> {
        self.command(arguments).output().map_err(|error| self.not_started(error))
    }

    /// Runs git, and returns its standard output.
    ///
    /// # Errors
    /// [`SnapshotError`] if git cannot be started, or fails.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Vec<u8>, SnapshotError> {
        let output = self.output(arguments)?;
        if output.status.success() { Ok(output.stdout) } else { Err(self.failure(arguments, &output)) }
    }

    /// Runs git with `input` as its standard input, and returns its standard output.
    ///
    /// # Errors
    /// [`SnapshotError`] if git cannot be started, fails, or does not read the whole input.
    pub(crate) fn run_with_input<S: AsRef<OsStr>>(
        &self,
        arguments: &[S],
        input: &[u8],
    ) -> Result<Vec<u8>, SnapshotError> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| self.not_started(error))?;
        let stdin = child.stdin.take();
        // On another thread, because git may write before it has read the whole input.
        let (written, output) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| stdin.map_or(Ok(()), |mut pipe| pipe.write_all(input)));
            let output = child.wait_with_output();
            (writer.join(), output)
        });
        let output = output.map_err(SnapshotError::NoGit)?;
        match written {
            Ok(Ok(())) if output.status.success() => Ok(output.stdout),
            _ => Err(self.failure(arguments, &output)),
        }
    }

    /// Returns the error of a failed command.
    #[must_use]
    pub fn failure<S: AsRef<OsStr>>(&self, arguments: &[S], output: &Output) -> SnapshotError {
        let details = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        if details.contains("dubious ownership") {
            return SnapshotError::Untrusted { path: self.directory.clone() };
        }
        let command: Vec<_> = arguments.iter().take(2).map(|word| word.as_ref().to_string_lossy()).collect();
        SnapshotError::Git { command: command.join(" "), path: self.directory.clone(), details }
    }

    fn not_started(&self, error: std::io::Error) -> SnapshotError {
        match std::fs::metadata(&self.directory) {
            Err(source) => SnapshotError::NoDirectory { path: self.directory.clone(), source },
            Ok(meta) if !meta.is_dir() => SnapshotError::NoDirectory {
                path: self.directory.clone(),
                source: std::io::ErrorKind::NotADirectory.into(),
            },
            Ok(_) => SnapshotError::NoGit(error),
        }
    }
}

/// Returns whether git commands keep a `GIT_*` variable. Kept variables do not change which repository git uses.
fn is_preserved(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("GIT_CONFIG_") && name != "GIT_CONFIG_PARAMETERS"
        || name.starts_with("GIT_TRACE")
        || matches!(&*name, "GIT_EXEC_PATH" | "GIT_TEMPLATE_DIR" | "GIT_CEILING_DIRECTORIES" | "GIT_SSL_CAINFO")
}

/// Returns whether a variable configures connections to servers, or the user's identity there.
fn is_connection_setting(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("GIT_SSH")
        || matches!(&*name, "GIT_ASKPASS" | "GIT_TERMINAL_PROMPT" | "GIT_PROXY_COMMAND")
        || name.starts_with("GIT_HTTP_")
}

#[cfg(unix)]
pub(crate) fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    use std::os::unix::ffi::OsStrExt as _;
    PathBuf::from(OsStr::from_bytes(bytes))
}

#[cfg(not(unix))]
pub(crate) fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(bytes).into_owned())
}

/// Splits output in which each item ends with a NUL.
pub fn nul_separated(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    output.split(|byte| *byte == 0).filter(|part| !part.is_empty())
}

/// Returns the output as text, without the final line break.
#[must_use]
pub fn line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).trim_end_matches(['\n', '\r']).to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn input_and_output_may_be_larger_than_the_buffers_of_their_pipes() {
        let home = tempfile::tempdir().unwrap();
        let repository = home.path().join("store.git");
        let created = std::process::Command::new("git").args(["init", "-q", "--bare"]).arg(&repository).status();
        assert!(created.unwrap().success());
        let git = Git::bare(&repository);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let input = "missing\n".repeat(50_000);
            let output = git.run_with_input(&["cat-file", "--batch-check"], input.as_bytes()).unwrap();
            sender.send(output.len()).unwrap();
        });
        let length = receiver.recv_timeout(Duration::from_secs(60)).expect("git and its caller wait for each other");
        assert_eq!(length, "missing missing\n".len() * 50_000);
    }
}
