//! Wall-clock time behind a trait, so that tests can set it instead of waiting.

use std::fmt;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::sync::watch;

/// Maximum time of one sleep, because a sleep does not notice that the clock was set or the machine was suspended.
const CLOCK_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// A wall clock.
pub trait WallClock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> SystemTime;

    /// Completes once [`Self::now`] has reached `until`. Cancel-safe.
    fn sleep_until(&self, until: SystemTime) -> BoxFuture<'static, ()>;
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[expect(clippy::disallowed_methods, reason = "this module is the clock")]
impl WallClock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, until: SystemTime) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Ok(left) = until.duration_since(SystemTime::now()) {
                tokio::time::sleep(left.clamp(Duration::from_millis(1), CLOCK_POLL_INTERVAL)).await;
            }
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "this module is the clock")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the seconds since 1970 by the system's clock.
#[must_use]
pub fn unix_now() -> i64 {
    i64::try_from(since_1970().as_secs()).unwrap_or(i64::MAX)
}

pub(crate) fn unix_now_ms() -> u64 {
    muster_job::milliseconds(since_1970())
}

/// A clock for tests, which advances only when it is set.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: watch::Sender<SystemTime>,
    wake_up: watch::Sender<Option<SystemTime>>,
}

impl ManualClock {
    /// Returns a clock that shows `now`.
    #[must_use]
    pub fn at(now: SystemTime) -> Self {
        Self { now: watch::Sender::new(now), wake_up: watch::Sender::new(None) }
    }

    /// Sets the time.
    pub fn set(&self, now: SystemTime) {
        self.now.send_replace(now);
    }

    /// Waits until the latest call of [`WallClock::sleep_until`] has a future time, and returns that time.
    pub async fn next_wake_up(&self) -> SystemTime {
        let mut wake_up = self.wake_up.subscribe();
        loop {
            let until = *wake_up.borrow_and_update();
            if let Some(until) = until.filter(|until| *until > self.now()) {
                return until;
            }
            // The sender is in `self`, so it cannot be closed.
            let _ = wake_up.changed().await;
        }
    }
}

impl WallClock for ManualClock {
    fn now(&self) -> SystemTime {
        *self.now.borrow()
    }

    fn sleep_until(&self, until: SystemTime) -> BoxFuture<'static, ()> {
        self.wake_up.send_replace(Some(until));
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // A dropped clock never advances again.
            if now.wait_for(|now| *now >= until).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}
