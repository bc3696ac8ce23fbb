//! Helpers for tests that start processes and create repositories.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Maximum time that a test waits for one condition.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

/// Polls until the condition holds. Returns false after [`WAIT_TIMEOUT`].
pub async fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Returns the path of the executable under test.
pub fn muster() -> PathBuf {
    workspace_executable("muster")
}

/// Returns the path of the plugin `local`.
pub fn plugin_local() -> PathBuf {
    workspace_executable("fleeting-plugin-local")
}

/// Returns the path of an executable in the target directory from which this test runs.
#[must_use]
pub fn workspace_executable(name: &str) -> PathBuf {
    let test_executable = std::env::current_exe().unwrap();
    let path = test_executable.parent().unwrap().parent().unwrap().join(name);
    assert!(path.is_file(), "{} does not exist; build the workspace first, or run scripts/test", path.display());
    path
}

/// Child process whose output is read line by line. Dropping this value kills the process.
pub struct RunningProcess {
    child: Child,
    lines: Receiver<String>,
    output: Vec<String>,
}

impl RunningProcess {
    /// Starts `command` with empty standard input.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        for reader in [Box::new(out) as Box<dyn std::io::Read + Send>, Box::new(err)] {
            let send = send.clone();
            // The thread ends when the process closes the pipe.
            std::thread::spawn(move || {
                for line in BufReader::new(reader).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        Self { child, lines, output: Vec::new() }
    }

    /// Returns the next line for which `matches` returns true. A failure shows `description`.
    pub fn wait_for_line(&mut self, description: &str, matches: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.output.push(line.clone());
            if matches(&line) {
                return line;
            }
        }
        panic!("no line with {description} was printed in time; the output was:\n{}", self.output.join("\n"));
    }

    /// Sends a signal to the process. `name` has no `SIG` prefix.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until the process has exited. Returns its whole output, and its exit status or `None` after a signal.
    pub fn finish(mut self) -> (Vec<String>, Option<i32>) {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.output.push(line);
        }
        assert!(
            Instant::now() < deadline,
            "the process did not exit in time; the output was:\n{}",
            self.output.join("\n")
        );
        let status = self.child.wait().unwrap();
        (std::mem::take(&mut self.output), status.code())
    }
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a repository with one commit that contains `files`.
pub fn create_repository(directory: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(directory).unwrap();
    for (name, content) in files {
        std::fs::write(directory.join(name), content).unwrap();
    }
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-q", "-m", "first"]] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(arguments).current_dir(directory);
        assert!(git.status().unwrap().success(), "git {arguments:?}");
    }
}
