//! The one source of time in this room: a port, so that tests move time instead of waiting for it.
//!
//! Instants are UTC with millisecond steps, since they are stored and must mean the same after a restart. The system's
//! clock is read from the wall once and then follows the monotonic clock, so it never goes backwards in one process.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use time::OffsetDateTime;
use tokio::sync::Notify;

/// A point in time, UTC.
pub type Timestamp = OffsetDateTime;

/// Tells the time and waits for it.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Now.
    fn now(&self) -> Timestamp;

    /// Completes once `now` is `until` or later. Safe to drop at any time.
    fn sleep_until(&self, until: Timestamp) -> BoxFuture<'static, ()>;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    wall: Timestamp,
    start: Instant,
}

impl SystemClock {
    /// Reads the wall clock; from here on time is monotonic.
    #[must_use]
    pub fn new() -> Self {
        Self { wall: OffsetDateTime::now_utc(), start: Instant::now() }
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

/// A clock that stands still until it is moved, for tests.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<ManualState>);

#[derive(Debug)]
struct ManualState {
    now: Mutex<Timestamp>,
    moved: Notify,
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(ManualState { now: Mutex::new(now), moved: Notify::new() }))
    }

    /// Moves it on, and wakes who waited for that.
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
                // Registered before the look at the clock, so that a move between the two is not missed.
                moved.as_mut().enable();
                if *state.now.lock() >= until {
                    return;
                }
                moved.await;
            }
        })
    }
}

/// Milliseconds since the Unix epoch, as instants are stored.
pub(crate) fn to_millis(at: Timestamp) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

/// An instant in the milliseconds of [`crate::schedule`].
pub(crate) fn engine_time(at: Timestamp) -> u64 {
    u64::try_from(to_millis(at)).unwrap_or(0)
}

/// The instant of stored milliseconds; what no calendar holds becomes the epoch.
pub(crate) fn from_millis(millis: i64) -> Timestamp {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_instants_come_back() {
        let at = from_millis(1_795_000_000_123);
        assert_eq!(to_millis(at), 1_795_000_000_123);
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_when_it_is_moved() {
        let clock = ManualClock::at(from_millis(0));
        let sleeper = tokio::spawn(clock.sleep_until(from_millis(5_000)));
        clock.advance(Duration::from_secs(5));
        tokio::time::timeout(Duration::from_secs(10), sleeper).await.expect("woken").expect("no panic");
    }
}
