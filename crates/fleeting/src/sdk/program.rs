//! Runs a plugin's helper programs with a timeout.
//! [`run`] logs the program's stderr, and kills the program if the wait is canceled. [`run_detached`] does neither.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use muster_remote::ProcessGroup;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

const MAX_STDOUT_BYTES: usize = 4 * 1024 * 1024;
/// Maximum length of a line of stderr in bytes. A longer line is logged in pieces.
const MAX_LINE_BYTES: usize = 8 * 1024;
/// Maximum number of lines of stderr that an error quotes.
const MAX_QUOTED_LINES: usize = 5;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Time after the program's exit to read the rest of its output.
/// A process that it left running may keep the pipes open.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of further attempts to start a file that is still open for writing.
const MAX_BUSY_RETRIES: u32 = 10;
/// Delay before each further attempt to start such a file.
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Result of a program that exited.
#[derive(Debug)]
pub struct Finished {
    /// Exit status of the program.
    pub status: ExitStatus,
    /// Content of stdout. Empty for [`run_detached`], which writes the output to a file.
    pub stdout: String,
    /// Last lines of stderr, or of the output file of [`run_detached`], joined with ` / `.
    pub stderr: String,
}

impl Finished {
    /// Returns the result if the program succeeded.
    ///
    /// # Errors
    /// [`ProgramError::Failed`] with the exit status and the last lines of stderr.
    pub fn success(self, name: &str) -> Result<Self, ProgramError> {
        if self.status.success() { Ok(self) } else { Err(self.failure(name)) }
    }

    /// Returns an error with the exit status and the last lines of stderr.
    #[must_use]
    pub fn failure(&self, name: &str) -> ProgramError {
        let stderr =
            if self.stderr.is_empty() { "it printed nothing to stderr".to_owned() } else { self.stderr.clone() };
        ProgramError::Failed { name: name.to_owned(), status: self.status, stderr }
    }
}

/// Reason why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program cannot be started.
    #[error("failed to start {name}; check that it exists and is executable")]
    Start {
        /// Name of the program.
        name: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The program exceeded its timeout and was killed with its process group.
    #[error("{name} did not exit within {} s and was killed{stderr}", timeout.as_secs_f64())]
    Timeout {
        /// Name of the program.
        name: String,
        /// Timeout of the program.
        timeout: Duration,
        /// Last lines of stderr, or of the output file of [`run_detached`], formatted to be appended.
        stderr: String,
    },
    /// The file for the program's output cannot be opened.
    #[error("failed to open {}", path.display())]
    Output {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The program printed too much to stdout.
    #[error("{name} printed more than {MAX_STDOUT_BYTES} bytes")]
    OutputTooLarge {
        /// Name of the program.
        name: String,
    },
    /// The program exited with an error.
    #[error("{name} failed ({status}): {stderr}")]
    Failed {
        /// Name of the program.
        name: String,
        /// Exit status of the program.
        status: ExitStatus,
        /// Last lines of stderr, or of the output file of [`run_detached`].
        stderr: String,
    },
    /// Waiting for the program failed.
    #[error("failed to wait for {name}")]
    Wait {
        /// Name of the program.
        name: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// Runs a program until it exits. The caller evaluates the exit status.
///
/// The program has its own process group. Processes that it leaves running continue, unless the program exceeds its timeout or the future
/// is dropped. In these cases the whole group is killed.
///
/// # Errors
/// [`ProgramError`], but not [`ProgramError::Failed`].
pub async fn run(mut command: Command, name: &str, input: &[u8], timeout: Duration) -> Result<Finished, ProgramError> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = start(ProcessGroup::lead(command.kill_on_drop(true)), name).await?;
    let mut group = ProcessGroup::of(&child);
    let (stdin, stdout, stderr_pipe) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut stdout_bytes, mut stderr) = (Some(Vec::new()), VecDeque::new());
    let outcome = {
        let feed = async {
            if let Some(mut stdin) = stdin {
                // An error does not matter, because the program may ignore its input.
                let _ = stdin.write_all(input).await;
            }
        };
        let pumps = async {
            tokio::join!(feed, read_stdout(stdout, &mut stdout_bytes), log_stderr(stderr_pipe, name, &mut stderr))
        };
        let work = async {
            tokio::pin!(pumps);
            tokio::select! {
                _ = &mut pumps => child.wait().await,
                status = child.wait() => {
                    let _ = tokio::time::timeout(OUTPUT_DRAIN_TIMEOUT, pumps).await;
                    status
                }
            }
        };
        tokio::time::timeout(timeout, work).await
    };
    let stderr = stderr.into_iter().collect::<Vec<_>>().join(" / ");
    match outcome {
        Err(_) => {
            group.terminate();
            let _ = tokio::time::timeout(GRACE, child.wait()).await;
            let stderr = if stderr.is_empty() { stderr } else { format!("; stderr: {stderr}") };
            Err(ProgramError::Timeout { name: name.to_owned(), timeout, stderr })
        }
        Ok(Err(source)) => Err(ProgramError::Wait { name: name.to_owned(), source }),
        Ok(Ok(status)) => {
            group.detach();
            let stdout = stdout_bytes.ok_or_else(|| ProgramError::OutputTooLarge { name: name.to_owned() })?;
            Ok(Finished { status, stdout: String::from_utf8_lossy(&stdout).into_owned(), stderr })
        }
    }
}

/// Runs a program that continues if the future is dropped or this process exits.
///
/// Both output streams are appended to the file `output`. A program that exceeds its timeout is killed with its process
/// group.
///
/// # Errors
/// [`ProgramError`], but not [`ProgramError::Failed`].
pub async fn run_detached(
    mut command: Command,
    name: &str,
    output: &Path,
    timeout: Duration,
) -> Result<Finished, ProgramError> {
    let file = File::options().create(true).append(true).open(output).and_then(|file| Ok((file.try_clone()?, file)));
    let (stdout, stderr) = file.map_err(|source| ProgramError::Output { path: output.to_owned(), source })?;
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut child = start(ProcessGroup::lead(&mut command), name).await?;
    let mut group = DetachedGroup(ProcessGroup::of(&child));
    let outcome = tokio::time::timeout(timeout, child.wait()).await;
    match outcome {
        Ok(Ok(status)) => Ok(Finished { status, stdout: String::new(), stderr: last_lines(output) }),
        Ok(Err(source)) => Err(ProgramError::Wait { name: name.to_owned(), source }),
        Err(_) => {
            group.0.terminate();
            let _ = tokio::time::timeout(GRACE, child.wait()).await;
            group.0.kill();
            let stderr = last_lines(output);
            let stderr = if stderr.is_empty() { stderr } else { format!("; stderr: {stderr}") };
            Err(ProgramError::Timeout { name: name.to_owned(), timeout, stderr })
        }
    }
}

struct DetachedGroup(ProcessGroup);

impl Drop for DetachedGroup {
    fn drop(&mut self) {
        self.0.detach();
    }
}

/// Returns the last lines of a file, formatted to be quoted in an error.
fn last_lines(path: &Path) -> String {
    let mut tail = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_LINE_BYTES as u64)))?;
        file.take(MAX_LINE_BYTES as u64).read_to_end(&mut tail)
    });
    if read.is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines.iter().rev().take(MAX_QUOTED_LINES).rev().copied().collect::<Vec<_>>().join(" / ")
}

async fn start(command: &mut Command, name: &str) -> Result<Child, ProgramError> {
    let mut tries = 0;
    loop {
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && tries < MAX_BUSY_RETRIES => {
                tries += 1;
                tokio::time::sleep(BUSY_RETRY_DELAY).await;
            }
            Err(source) => return Err(ProgramError::Start { name: name.to_owned(), source }),
        }
    }
}

/// Reads the pipe to its end. `output` becomes `None` if it exceeds [`MAX_STDOUT_BYTES`].
async fn read_stdout(pipe: Option<impl AsyncRead + Unpin>, output: &mut Option<Vec<u8>>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        if let Some(bytes) = output {
            bytes.extend_from_slice(buffer.get(..n).unwrap_or_default());
            if bytes.len() > MAX_STDOUT_BYTES {
                *output = None;
            }
        }
    }
}

async fn log_stderr(pipe: Option<impl AsyncRead + Unpin>, program: &str, stderr: &mut VecDeque<String>) {
    let Some(mut pipe) = pipe else { return };
    let mut line = Vec::new();
    let mut finish_line = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        line.clear();
        if text.is_empty() {
            return;
        }
        tracing::info!(program, "{text}");
        if stderr.len() == MAX_QUOTED_LINES {
            stderr.pop_front();
        }
        stderr.push_back(text);
    };
    let mut buffer = vec![0; MAX_LINE_BYTES];
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        for byte in buffer.get(..n).unwrap_or_default() {
            if *byte == b'\n' || line.len() == MAX_LINE_BYTES {
                finish_line(&mut line);
            }
            if *byte != b'\n' {
                line.push(*byte);
            }
        }
    }
    finish_line(&mut line);
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::process::{Pid, Signal};

    use super::*;

    async fn sh(script: &str, input: &str, timeout: Duration) -> Result<Finished, ProgramError> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, "sh", input.as_bytes(), timeout).await
    }

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn program_returns_output_and_exit_status() {
        let finished = sh("cat; echo one >&2; printf two >&2; exit 3", "in", TIMEOUT).await.unwrap();
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("in", "one / two"));
        let error = finished.success("sh").unwrap_err().to_string();
        assert_eq!(error, "sh failed (exit status: 3): one / two");
    }

    #[tokio::test]
    async fn timeout_kills_the_process_group() {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("sleep 600 & echo $! > {}/pid; echo waiting >&2; wait", directory.path().display());
        let error = sh(&script, "", Duration::from_millis(500)).await.unwrap_err().to_string();
        assert_eq!(error, "sh did not exit within 0.5 s and was killed; stderr: waiting");
        let pid: i32 = std::fs::read_to_string(directory.path().join("pid")).unwrap().trim().parse().unwrap();
        // Waits until the background process has exited. If it was not killed, it sleeps for ten minutes.
        let has_exited = || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !has_exited() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn background_processes_do_not_delay_the_result() {
        let finished = sh("echo done; sleep 600 & echo $! >&2", "", TIMEOUT).await.unwrap();
        assert_eq!(finished.stdout, "done\n");
        let pid = Pid::from_raw(finished.stderr.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).expect("the background process is still running");
    }

    #[tokio::test]
    async fn detached_program_continues_after_cancellation() {
        let directory = tempfile::tempdir().unwrap();
        let (exit_file, done, output) =
            (directory.path().join("exit"), directory.path().join("done"), directory.path().join("out"));
        let script = format!(
            "echo started; while ! [ -e {} ]; do sleep 0.01; done; echo one >&2; echo two; touch {}; exit 3",
            exit_file.display(),
            done.display()
        );
        let sh = || {
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            run_detached(command, "sh", &output, TIMEOUT)
        };
        let started = async {
            while !std::fs::read_to_string(&output).unwrap_or_default().contains("started") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            result = sh() => panic!("{result:?}"),
            () = started => {}
        }
        std::fs::write(&exit_file, "").unwrap();
        while !done.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let finished = sh().await.unwrap();
        assert!(finished.failure("sh").to_string().ends_with("one / two"), "{finished:?}");
    }

    #[tokio::test]
    async fn unlimited_output_and_a_missing_program_are_errors() {
        let error = sh("head -c 20000000 /dev/zero", "", TIMEOUT).await.unwrap_err();
        assert!(matches!(error, ProgramError::OutputTooLarge { .. }), "{error}");
        let error = run(Command::new("/nowhere/program"), "program", b"", TIMEOUT).await.unwrap_err();
        assert!(matches!(error, ProgramError::Start { .. }), "{error}");
    }
}
