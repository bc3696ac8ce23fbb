//! Backoff for repeated attempts that make no progress.

use std::time::Duration;

/// First and longest wait.
pub(super) const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Slows down attempts without progress, such as for a coordinator that repeatedly requests the same part of a trace.
pub(super) struct NoProgressBackoff {
    /// Largest acknowledged length in bytes.
    reached: u64,
    wait: Duration,
}

impl NoProgressBackoff {
    /// An acknowledged length above `reached` is progress.
    pub(super) fn new(reached: u64) -> Self {
        Self { reached, wait: RETRY_BACKOFF.0 }
    }

    /// Returns zero after progress, otherwise twice the last wait, up to 5 seconds.
    pub(super) fn pause(&mut self, acknowledged: u64) -> Duration {
        if acknowledged > self.reached {
            *self = Self::new(acknowledged);
            return Duration::ZERO;
        }
        let longer = (self.wait * 2).min(RETRY_BACKOFF.1);
        std::mem::replace(&mut self.wait, longer)
    }
}
