//! Processes of the executable: their results, and waiting for their effects.

use std::process::Output;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Interval for checking a condition. Tests poll, because writes and exits of other processes cause no events here.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Whether [`Self::check`] also searches standard output.
    checks_stdout: bool,
}

impl CommandResult {
    /// Creates the result of a command that prints its messages to standard error.
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Self { code: output.status.code().unwrap(), stdout, stderr, checks_stdout: false }
    }

    /// Creates the result of a command whose report on standard output is checked, too.
    pub(crate) fn of_report(output: Output) -> Self {
        Self { checks_stdout: true, ..Self::of(output) }
    }

    #[track_caller]
    pub(crate) fn check(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for text in texts {
            let is_found = self.stderr.contains(text) || self.checks_stdout && self.stdout.contains(text);
            assert!(is_found, "`{text}` is missing in {self:#?}");
        }
        self
    }
}

/// Polls until the condition returns a value. Fails the test with the condition's last error after [`TIMEOUT`].
pub(crate) async fn until<T>(mut condition: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    loop {
        ticks.tick().await;
        match condition().await {
            Ok(value) => return value,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}
