//! Log lines about refused connections. A peer that connects in a loop must not fill the disk with the agent's log.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of lines in [`INTERVAL`].
const MAX_LINES: u64 = 20;

const INTERVAL: Duration = Duration::from_secs(60);

/// Counts refused connections, to limit the number of lines about them.
#[derive(Debug, Default)]
pub(crate) struct RefusedConnections(Mutex<Refused>);

#[derive(Debug, Default)]
struct Refused {
    /// Start of the current interval. `None` means that no connection was refused yet.
    since: Option<Instant>,
    /// Number of lines in the current interval.
    lines: u64,
    /// Number of connections without a line since the last line.
    omitted: u64,
}

impl RefusedConnections {
    /// Counts a refused connection. `None` means that the caller must not log the connection.
    ///
    /// `Some` contains the number of connections that were not logged since the last line.
    pub(crate) fn count(&self) -> Option<u64> {
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
            assert_eq!(refused.count(), Some(0));
        }
        assert_eq!([refused.count(), refused.count()], [None, None]);
        tokio::time::advance(INTERVAL).await;
        assert_eq!([refused.count(), refused.count()], [Some(2), Some(0)]);
    }
}
