//! Time values for the engine, which never reads a clock.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time after which an unanswered job request counts as held: the coordinator answers it when it has a job.
pub const HELD_AFTER: Duration = Duration::from_secs(1);

/// A monotonic instant, in milliseconds since an origin that the caller chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// Returns the instant `ms` milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Returns the number of milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the duration since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Converts a duration to milliseconds. Returns `u64::MAX` if the duration is too long.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl std::ops::Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(milliseconds(duration)))
    }
}

/// The monotonic time and the wall-clock time at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time, for durations and timeouts.
    pub at: Time,
    /// Wall-clock time in seconds since 1970. It can jump.
    pub unix: i64,
}

impl Now {
    /// Returns the moment `at`, for a wall clock that showed `origin` at [`Time::ZERO`] and has never jumped since.
    #[must_use]
    pub fn steady(at: Time, origin: i64) -> Self {
        Self { at, unix: origin.saturating_add(i64::try_from(at.as_millis() / 1000).unwrap_or(i64::MAX)) }
    }
}
