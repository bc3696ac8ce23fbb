//! How long an agent has been silent, in time that this process was awake for.
//!
//! A manager that was stopped for a minute, or a machine that slept, has heard nothing in that time because it did not listen:
//! such a gap counts for nothing, and the agent is asked first.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time is counted in pieces of this.
const PIECE: Duration = Duration::from_millis(250);
/// A piece that took longer than this was no time of listening.
const PIECE_MAX: Duration = Duration::from_secs(1);

/// The silence of one agent, from now on.
#[derive(Debug)]
pub(super) struct Silence {
    left: Duration,
    counted: Instant,
}

impl Silence {
    /// A silence that is over when it has lasted for `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Self { left: limit, counted: Instant::now() }
    }

    /// Waits until it has lasted too long. Dropped and called again, it goes on.
    pub(super) async fn is_too_long(&mut self) {
        loop {
            let now = Instant::now();
            let piece = now.duration_since(self.counted);
            self.counted = now;
            if piece <= PIECE_MAX {
                self.left = self.left.saturating_sub(piece);
            }
            if self.left.is_zero() {
                return;
            }
            sleep(self.left.min(PIECE)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_listened_does_not_count() {
        let began = Instant::now();
        let mut silence = Silence::new(Duration::from_secs(7));
        let half = tokio::time::timeout(Duration::from_secs(3), silence.is_too_long()).await;
        assert!(half.is_err());
        // The process is stopped for an hour.
        tokio::time::advance(Duration::from_secs(3600)).await;
        silence.is_too_long().await;
        let awake = began.elapsed().checked_sub(Duration::from_secs(3600)).unwrap();
        assert!(awake >= Duration::from_secs(7) && awake <= Duration::from_secs(8), "{awake:?}");
    }
}
