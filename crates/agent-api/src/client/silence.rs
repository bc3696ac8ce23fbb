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

/// The first pause between two tries to reach an agent, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// However short a silence may last, the agent is tried about this often in it.
const TRIES: u32 = 12;
/// The first try to reach an agent may take so long, each further one twice as long.
const TRY: Duration = Duration::from_secs(2);

/// The silence of one agent, from now on.
#[derive(Debug)]
pub struct Silence {
    left: Duration,
    counted: Instant,
    pause: Duration,
    longest: Duration,
    try_limit: Duration,
}

impl Silence {
    /// Returns a silence that is too long once it has lasted for `limit`.
    pub fn new(limit: Duration) -> Self {
        let longest = PAUSE.1.min(limit / TRIES);
        Self { left: limit, counted: Instant::now(), pause: PAUSE.0.min(longest), longest, try_limit: TRY }
    }

    /// Waits until it has lasted too long. Dropped and called again, it goes on.
    pub async fn is_too_long(&mut self) {
        self.goes_on(true).await;
    }

    /// Counts on; where it `may_end` until it has lasted too long, else for ever.
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

    /// How long the next try may take.
    pub fn try_limit(&mut self) -> Duration {
        let longer = self.try_limit * 2;
        std::mem::replace(&mut self.try_limit, longer)
    }

    /// How long to wait before the next try; each such wait is twice the one before.
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
