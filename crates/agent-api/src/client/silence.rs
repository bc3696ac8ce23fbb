//! Measures how long an agent has been silent, counting only the time in which this process was awake.
//!
//! A manager that was stopped for a minute, or whose machine was suspended, heard nothing because it did not listen. Such a gap does not
//! count, and the agent is queried first.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Length of the intervals in which time is counted.
const PIECE: Duration = Duration::from_millis(250);
/// Maximum measured length of an interval. A longer one means that this process was not awake.
const PIECE_MAX: Duration = Duration::from_secs(1);

/// Initial and maximum pause between two attempts to reach an agent.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Approximate minimum number of attempts, however short the permitted silence is.
const TRIES: u32 = 12;
/// Timeout of the first attempt. It doubles with each further one.
const TRY: Duration = Duration::from_secs(2);

/// Silence of one agent, measured from the creation of this value.
#[derive(Debug)]
pub struct Silence {
    left: Duration,
    counted: Instant,
    pause: Duration,
    longest: Duration,
    try_limit: Duration,
}

impl Silence {
    /// Returns a silence that is too long after `limit`.
    pub fn new(limit: Duration) -> Self {
        let longest = PAUSE.1.min(limit / TRIES);
        Self { left: limit, counted: Instant::now(), pause: PAUSE.0.min(longest), longest, try_limit: TRY }
    }

    /// Waits until the silence is too long. Cancel-safe: the next call continues to count.
    pub async fn is_too_long(&mut self) {
        self.goes_on(true).await;
    }

    /// Counts the silence. Returns when it is too long if it `may_end`, and never otherwise.
    pub async fn goes_on(&mut self, may_end: bool) {
        loop {
            let now = Instant::now();
            let piece = now.duration_since(self.counted);
            self.counted = now;
            if piece <= PIECE_MAX {
                self.left = self.left.saturating_sub(piece);
            }
            if self.left.is_zero() && may_end {
                return;
            }
            sleep(if self.left.is_zero() { PIECE } else { self.left.min(PIECE) }).await;
        }
    }

    /// Returns the timeout for the next attempt.
    pub fn try_limit(&mut self) -> Duration {
        let longer = self.try_limit * 2;
        std::mem::replace(&mut self.try_limit, longer)
    }

    /// Returns the pause before the next attempt. Each pause is twice as long as the one before.
    pub fn pause(&mut self) -> Duration {
        let longer = (self.pause * 2).min(self.longest);
        std::mem::replace(&mut self.pause, longer)
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
    #[tokio::test(start_paused = true)]
    async fn within_a_short_silence_the_agent_is_tried_often() {
        for limit in [7, 60].map(Duration::from_secs) {
            let mut silence = Silence::new(limit);
            let (mut tries, mut waited) = (0, Duration::ZERO);
            while waited < limit {
                waited += silence.pause();
                tries += 1;
            }
            assert!((12..=24).contains(&tries), "{tries} tries in {limit:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silence_that_may_not_end_yet_is_too_long_as_soon_as_it_may() {
        let mut silence = Silence::new(Duration::from_secs(7));
        let counted = tokio::time::timeout(Duration::from_secs(60), silence.goes_on(false)).await;
        assert!(counted.is_err());
        let now = Instant::now();
        silence.is_too_long().await;
        assert_eq!(Instant::now(), now);
    }
}
