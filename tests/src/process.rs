//! Processes and repositories for the tests of this package.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Looks until it is so; whether it came to be within [`LIMIT`].
///
/// For what processes of the world under test do to files and to each other: they send this one no event.
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

/// The executable under test.
pub fn muster() -> PathBuf {
    built("muster")
}

/// The plugin `local`.
pub fn plugin_local() -> PathBuf {
    built("fleeting-plugin-local")
}

/// An executable of the workspace: beside this test's own.
#[must_use]
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join(name);
    assert!(binary.is_file(), "no {}: build the workspace first, as scripts/test does", binary.display());
    binary
}

/// A process whose output is read line by line, and which is ended with the test.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    /// Starts `command` with nothing on its standard input.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        for reader in [Box::new(out) as Box<dyn std::io::Read + Send>, Box::new(err)] {
            let send = send.clone();
            // Ends with the process, when its pipe closes.
            std::thread::spawn(move || {
                for line in BufReader::new(reader).lines().map_while(Result::ok) {
                    let _ = send.send(line);
                }
            });
        }
        Self { child, lines, seen: Vec::new() }
    }

    /// The first line, from now on, for which `wanted` is true.
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

    /// Sends it a signal, by its name without the `SIG`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Everything until the process ends, and its exit status.
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

/// A repository with one commit that holds `files`.
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
