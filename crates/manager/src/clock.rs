//! The time of the wall, for what has a date: a port, so that tests move it instead of waiting.

use std::fmt;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use tokio::sync::watch;

/// The longest wait between two looks at the system's clock: it may be set, and does not stand still while a machine sleeps.
const LOOK_PERIOD: Duration = Duration::from_secs(60);

/// Tells the date and waits for it.
pub trait WallClock: fmt::Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> SystemTime;

    /// Completes once `now` is `until` or later. Safe to drop at any time.
    fn sleep_until(&self, until: SystemTime) -> BoxFuture<'static, ()>;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl WallClock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, until: SystemTime) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            while let Ok(left) = until.duration_since(SystemTime::now()) {
                tokio::time::sleep(left.clamp(Duration::from_millis(1), LOOK_PERIOD)).await;
            }
        })
    }
}

/// Seconds since 1970 by the machine's clock.
#[must_use]
pub fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A clock that stands still until it is moved, for tests.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: watch::Sender<SystemTime>,
    awaited: watch::Sender<Option<SystemTime>>,
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn at(now: SystemTime) -> Self {
        Self { now: watch::Sender::new(now), awaited: watch::Sender::new(None) }
    }

    /// Sets it.
    pub fn set(&self, now: SystemTime) {
        self.now.send_replace(now);
    }

    /// Waits until somebody waits for a time that is not over, and tells which.
    pub async fn awaited(&self) -> SystemTime {
        let mut awaited = self.awaited.subscribe();
        loop {
            let until = *awaited.borrow_and_update();
            if let Some(until) = until.filter(|until| *until > self.now()) {
                return until;
            }
            // The sender is our own: it is never gone.
            let _ = awaited.changed().await;
        }
    }
}

impl WallClock for ManualClock {
    fn now(&self) -> SystemTime {
        *self.now.borrow()
    }

    fn sleep_until(&self, until: SystemTime) -> BoxFuture<'static, ()> {
        self.awaited.send_replace(Some(until));
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // A clock that is gone moves no more.
            if now.wait_for(|now| *now >= until).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}
