//! Processes of the executable: how they ended, and waiting for what they do.

use std::process::Output;
use std::time::{Duration, Instant};

/// For how long anything may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks. What is waited for is a file, an answer or an end of another process, which sends this one no event.
const PAUSE: Duration = Duration::from_millis(10);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Whether what is said on standard output counts as said.
    reports: bool,
}

impl Ended {
    /// A command that talks to people on standard error.
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        Self { code: output.status.code().unwrap(), stdout, stderr, reports: false }
    }

    /// One whose report on standard output is for people too.
    pub(crate) fn of_report(output: Output) -> Self {
        Self { reports: true, ..Self::of(output) }
    }

    /// Checks the exit code, and that these words were said.
    #[track_caller]
    pub(crate) fn check(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        for word in words {
            let said = self.stderr.contains(word) || self.reports && self.stdout.contains(word);
            assert!(said, "`{word}` is missing in {self:#?}");
        }
        self
    }
}

/// Looks until there is what is wanted, and gives it; what is told in its place is told when it does not come.
pub(crate) async fn until<T>(mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match look().await {
            Ok(found) => return found,
            Err(instead) => assert!(Instant::now() < deadline, "{instead}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
