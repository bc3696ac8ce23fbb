//! Limits log lines about refused connections, so that a client in a loop does not fill the disk.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const MAX_LINES: u64 = 20;

const INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct RefusedConnections(Mutex<Refused>);

#[derive(Debug, Default)]
struct Refused {
    since: Option<Instant>,
    lines: u64,
    /// Number of refused connections since the last log line.
    omitted: u64,
}

impl RefusedConnections {
    /// Counts a refused connection. Returns the number of unlogged connections since the last line. `None` means that
    /// this connection must not be logged.
    pub(crate) fn count_refusal(&self) -> Option<u64> {
        let mut refused = self.0.lock();
        let now = Instant::now();
        if refused.since.is_none_or(|since| now.duration_since(since) >= INTERVAL) {
            (refused.since, refused.lines) = (Some(now), 0);
        }
        if refused.lines == MAX_LINES {
            refused.omitted += 1;
            return None;
        }
        refused.lines += 1;
        Some(std::mem::take(&mut refused.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn number_of_lines_per_minute_is_limited() {
        let refused = RefusedConnections::default();
        for _ in 0..MAX_LINES {
            assert_eq!(refused.count_refusal(), Some(0));
        }
        assert_eq!([refused.count_refusal(), refused.count_refusal()], [None, None]);
        tokio::time::advance(INTERVAL).await;
        assert_eq!([refused.count_refusal(), refused.count_refusal()], [Some(2), Some(0)]);
    }
}
