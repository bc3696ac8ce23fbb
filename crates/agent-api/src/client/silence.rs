//! Measures how long an agent has been silent, counting only the time in which this process was awake.
//!
//! A manager that was stopped for a minute, or whose machine was suspended, heard nothing because it did not listen. Such a gap does not
//! count, and the agent is queried first.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Length of the intervals in which time is counted.
const TICK: Duration = Duration::from_millis(250);
/// Maximum measured length of an interval. A longer one means that this process was not awake.
const MAX_TICK: Duration = Duration::from_secs(1);

/// Initial and maximum pause between two attempts to reach an agent.
const PAUSE_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Approximate minimum number of attempts, however short the permitted silence is.
const MIN_ATTEMPTS: u32 = 12;
/// Timeout of the first attempt. It doubles with each further one.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// Silence of one agent, measured from the creation of this value.
#[derive(Debug)]
pub struct Silence {
    left: Duration,
    counted: Instant,
    pause: Duration,
    longest: Duration,
    timeout: Duration,
}

impl Silence {
    /// Returns a silence that is too long after `limit`.
    pub fn new(limit: Duration) -> Self {
        let longest = PAUSE_RANGE.1.min(limit / MIN_ATTEMPTS);
        Self {
            left: limit,
            counted: Instant::now(),
            pause: PAUSE_RANGE.0.min(longest),
            longest,
            timeout: FIRST_TIMEOUT,
        }
    }

    /// Waits until the silence is too long. Cancel-safe: the next call continues to count.
    pub async fn exceeded(&mut self) {
        self.count(true).await;
    }

    /// Counts the silence. Returns when it is too long if it `may_end`, and never otherwise.
    pub async fn count(&mut self, may_end: bool) {
        loop {
            let now = Instant::now();
            let elapsed = now.duration_since(self.counted);
            self.counted = now;
            if elapsed <= MAX_TICK {
                self.left = self.left.saturating_sub(elapsed);
            }
            if self.left.is_zero() && may_end {
                return;
            }
            sleep(if self.left.is_zero() { TICK } else { self.left.min(TICK) }).await;
        }
    }

    /// Returns the timeout for the next attempt.
    pub fn next_timeout(&mut self) -> Duration {
        let longer = self.timeout * 2;
        std::mem::replace(&mut self.timeout, longer)
    }

    /// Returns the pause before the next attempt. Each pause is twice as long as the one before.
    pub fn next_pause(&mut self) -> Duration {
        let longer = (self.pause * 2).min(self.longest);
        std::mem::replace(&mut self.pause, longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_while_stopped_is_not_counted() {
        let began = Instant::now();
        let mut silence = Silence::new(Duration::from_secs(7));
        let half = tokio::time::timeout(Duration::from_secs(3), silence.exceeded()).await;
        assert!(half.is_err());
        // The process is stopped for an hour.
        tokio::time::advance(Duration::from_secs(3600)).await;
        silence.exceeded().await;
        let awake = began.elapsed().checked_sub(Duration::from_secs(3600)).unwrap();
        assert!(awake >= Duration::from_secs(7) && awake <= Duration::from_secs(8), "{awake:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn short_silence_has_many_attempts() {
        for limit in [7, 60].map(Duration::from_secs) {
            let mut silence = Silence::new(limit);
            let (mut attempts, mut waited) = (0, Duration::ZERO);
            while waited < limit {
                waited += silence.next_pause();
                attempts += 1;
            }
            assert!((12..=24).contains(&attempts), "{attempts} attempts in {limit:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_exceeded_as_soon_as_it_may_end() {
        let mut silence = Silence::new(Duration::from_secs(7));
        let counted = tokio::time::timeout(Duration::from_secs(60), silence.count(false)).await;
        assert!(counted.is_err());
        let now = Instant::now();
        silence.exceeded().await;
        assert_eq!(Instant::now(), now);
    }
}
