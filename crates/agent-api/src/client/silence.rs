//! Measures how long an agent has been silent, without the time in which this process or its machine was stopped.

use std::time::Duration;

use tokio::time::{Instant, sleep};

const TICK: Duration = Duration::from_millis(250);
/// Maximum length of a counted interval. In a longer interval, this process was stopped.
const MAX_TICK: Duration = Duration::from_secs(1);

/// Initial and maximum pause between two attempts.
const PAUSE_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// Approximate minimum number of attempts, even for a short limit.
const MIN_ATTEMPTS: u32 = 12;
/// Timeout of the first attempt. Each further attempt doubles the timeout.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// Silence of one agent since the creation of this value.
#[derive(Debug)]
pub struct Silence {
    remaining: Duration,
    counted_until: Instant,
    pause: Duration,
    max_pause: Duration,
    timeout: Duration,
}

impl Silence {
    /// Starts to measure a silence of at most `limit`.
    pub fn new(limit: Duration) -> Self {
        let max_pause = PAUSE_RANGE.1.min(limit / MIN_ATTEMPTS);
        Self {
            remaining: limit,
            counted_until: Instant::now(),
            pause: PAUSE_RANGE.0.min(max_pause),
            max_pause,
            timeout: FIRST_TIMEOUT,
        }
    }

    /// Waits until the silence exceeds its limit. Cancel-safe: the next call continues.
    pub async fn exceeded(&mut self) {
        self.count(true).await;
    }

    /// Counts the silence. Returns only if `return_when_exceeded` is set, after the limit.
    pub async fn count(&mut self, return_when_exceeded: bool) {
        loop {
            let now = Instant::now();
            let elapsed = now.duration_since(self.counted_until);
            self.counted_until = now;
            if elapsed <= MAX_TICK {
                self.remaining = self.remaining.saturating_sub(elapsed);
            }
            if self.remaining.is_zero() && return_when_exceeded {
                return;
            }
            sleep(if self.remaining.is_zero() { TICK } else { self.remaining.min(TICK) }).await;
        }
    }

    /// Returns the timeout for the next attempt.
    pub fn next_timeout(&mut self) -> Duration {
        let longer = self.timeout * 2;
        std::mem::replace(&mut self.timeout, longer)
    }

    /// Returns the pause before the next attempt, doubled each time up to a maximum.
    pub fn next_pause(&mut self) -> Duration {
        let longer = (self.pause * 2).min(self.max_pause);
        std::mem::replace(&mut self.pause, longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_is_not_counted_while_the_process_is_stopped() {
        let start = Instant::now();
        let mut silence = Silence::new(Duration::from_secs(7));
        let result = tokio::time::timeout(Duration::from_secs(3), silence.exceeded()).await;
        assert!(result.is_err());
        // The process stops for an hour.
        tokio::time::advance(Duration::from_secs(3600)).await;
        silence.exceeded().await;
        let awake = start.elapsed().checked_sub(Duration::from_secs(3600)).unwrap();
        assert!(awake >= Duration::from_secs(7) && awake <= Duration::from_secs(8), "{awake:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_attempts_is_similar_for_short_and_long_limits() {
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
    async fn exceeded_returns_immediately_when_the_limit_has_passed_before_the_call() {
        let mut silence = Silence::new(Duration::from_secs(7));
        let result = tokio::time::timeout(Duration::from_secs(60), silence.count(false)).await;
        assert!(result.is_err());
        let now = Instant::now();
        silence.exceeded().await;
        assert_eq!(Instant::now(), now);
    }
}
