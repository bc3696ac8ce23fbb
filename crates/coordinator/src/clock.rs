//! The source of all times that are stored or scheduled. Tests can move the clock instead of waiting.
//!
//! The system time is read once and then advanced by the monotonic clock, so that time does not go backwards within a
//! process.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::Notify;

/// A point in time, in UTC.
pub type Timestamp = OffsetDateTime;

/// A source of the current time.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Completes once the current time is `until` or later. Cancel-safe.
    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()>;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    wall: Timestamp,
    start: Instant,
}

impl SystemClock {
    /// Reads the system time once. From here on, time is monotonic.
    #[must_use]
    pub fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "this module is the clock")]
        let wall = OffsetDateTime::now_utc();
        Self { wall, start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.wall + self.start.elapsed()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        let wait = Duration::try_from(until - self.now()).unwrap_or(Duration::ZERO);
        Box::pin(tokio::time::sleep(wait))
    }
}

/// A clock for tests. Its time only changes when a test moves it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<ManualState>);

#[derive(Debug)]
struct ManualState {
    now: Mutex<Timestamp>,
    moved: Notify,
}

impl ManualClock {
    /// Creates a clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(ManualState { now: Mutex::new(now), moved: Notify::new() }))
    }

    /// Moves the clock forward, and wakes the sleepers.
    pub fn advance(&self, by: Duration) {
        *self.0.now.lock() += by;
        self.0.moved.notify_waiters();
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.now.lock()
    }

    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()> {
        let state = Arc::clone(&self.0);
        Box::pin(async move {
            loop {
                let moved = state.moved.notified();
                tokio::pin!(moved);
                // Register before reading the clock, so that a move in between is not missed.
                moved.as_mut().enable();
                if *state.now.lock() >= until {
                    return;
                }
                moved.await;
            }
        })
    }
}

/// Returns the milliseconds since the Unix epoch, the format in which times are stored.
pub(crate) fn to_millis(at: Timestamp) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// Returns a time as milliseconds for [`crate::schedule`].
pub(crate) fn engine_time(at: Timestamp) -> u64 {
    u64::try_from(to_millis(at)).unwrap_or(0)
}

/// Returns the time of stored milliseconds. Values outside the calendar become the Unix epoch.
pub(crate) fn from_millis(millis: i64) -> Timestamp {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_times_round_trip() {
        let at = from_millis(1_795_000_000_123);
        assert_eq!(to_millis(at), 1_795_000_000_123);
    }

    #[tokio::test]
    async fn manual_clock_wakes_sleepers_when_moved() {
        let clock = ManualClock::at(from_millis(0));
        let sleeper = tokio::spawn(clock.sleep_until(from_millis(5_000)));
        clock.advance(Duration::from_secs(5));
        tokio::time::timeout(Duration::from_secs(10), sleeper).await.expect("woken").expect("panicked");
    }
}
