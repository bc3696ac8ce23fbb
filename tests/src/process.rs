//! Helpers for tests that start processes and create repositories.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Maximum time for anything that a test waits for.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Polls until the condition holds. Returns whether it did within [`LIMIT`].
///
/// Use it for effects of other processes on files and processes, which cause no event in the test.
pub async fn until(mut reached: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Returns the path of the executable under test.
pub fn muster() -> PathBuf {
    built("muster")
}

/// Returns the path of the plugin `local`.
pub fn plugin_local() -> PathBuf {
    built("fleeting-plugin-local")
}

/// Returns the path of an executable of the workspace, which is in the directory of this test's executable.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join(name);
    assert!(binary.is_file(), "no {}: build the workspace first, as scripts/test does", binary.display());
    binary
}

/// Process whose output is read line by line. It is terminated at the end of the test.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
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
        Self { child, lines, seen: Vec::new() }
    }

    /// Waits for the next line for which `wanted` returns true.
    pub fn line(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + LIMIT;
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push(line.clone());
            if wanted(&line) {
                return line;
            }
        }
        panic!("waited in vain for {what}; the output was:\n{}", self.seen.join("\n"));
    }

    /// Sends the process a signal. `name` is without `SIG`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the process has ended. Returns the rest of its output and its exit status.
    pub fn finish(mut self) -> (Vec<String>, Option<i32>) {
        let deadline = Instant::now() + LIMIT;
        while let Ok(line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.seen.push(line);
        }
        assert!(Instant::now() < deadline, "it did not end; the output was:\n{}", self.seen.join("\n"));
        let status = self.child.wait().unwrap();
        (std::mem::take(&mut self.seen), status.code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a repository with one commit that contains `files`.
pub fn repository(place: &Path, files: &[(&str, &str)]) {
    std::fs::create_dir_all(place).unwrap();
    for (name, content) in files {
        std::fs::write(place.join(name), content).unwrap();
    }
    for arguments in [&["init", "-q", "-b", "main"][..], &["add", "-A"], &["commit", "-q", "-m", "first"]] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(arguments).current_dir(place);
        assert!(git.status().unwrap().success(), "git {arguments:?}");
    }
}
