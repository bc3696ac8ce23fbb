//! Time as the engine has it: handed in, never looked up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time after which a job request without an answer is held by the coordinator: no job waits there.
pub const HELD_AFTER: Duration = Duration::from_secs(1);

/// A monotonic instant: milliseconds since an origin that the caller chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// So many milliseconds after the origin.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the origin.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// From `earlier` to here; zero where it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For durations and deadlines.
    pub at: Time,
    /// For policies and people: seconds since 1970. It may jump.
    pub unix: i64,
}

impl Now {
    /// A moment whose wall clock showed `origin` at the origin of the monotonic one, and never jumped.
    #[must_use]
    pub fn steady(at: Time, origin: i64) -> Self {
        Self { at, unix: origin.saturating_add(i64::try_from(at.as_millis() / 1000).unwrap_or(i64::MAX)) }
    }
}
