//! Backoff for repeated attempts that make no progress.

use std::time::Duration;

/// First and longest wait between two attempts that make no progress.
pub(super) const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Slows down repeated attempts that make no progress.
///
/// A coordinator that requests the same part of a trace again and again must not be served at full speed.
pub(super) struct NoProgressBackoff {
    /// Largest acknowledged length so far, in bytes.
    reached: u64,
    wait: Duration,
}

impl NoProgressBackoff {
    /// Returns a backoff that counts progress beyond the acknowledged length `reached`.
    pub(super) fn new(reached: u64) -> Self {
        Self { reached, wait: RETRY_BACKOFF.0 }
    }

    /// Returns how long to wait.
    /// Zero after progress; otherwise each wait is twice as long as the last one, up to 5 seconds.
    pub(super) fn pause(&mut self, acknowledged: u64) -> Duration {
        if acknowledged > self.reached {
            *self = Self::new(acknowledged);
            return Duration::ZERO;
        }
        let longer = (self.wait * 2).min(RETRY_BACKOFF.1);
        std::mem::replace(&mut self.wait, longer)
    }
}
