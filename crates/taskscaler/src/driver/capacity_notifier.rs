//! Notifies callers whose reservation was refused once a reservation is possible again, so that they need not poll.

use tokio::sync::watch;

use crate::engine::{Engine, NoCapacity};
use crate::time::{Now, Time};

/// Tracks whether a reservation was refused, and notifies all callers when one is possible again.
pub(super) struct CapacityNotifier {
    /// Whether a reservation was refused since the last notification.
    has_refused: bool,
    /// Time at which a reservation may become possible without an event. `None` means that only an event can change it.
    check_at: Option<Time>,
    /// Number of notifications so far, which callers watch. Also incremented when a reservation is revoked.
    notifications: watch::Sender<u64>,
}

impl CapacityNotifier {
    pub(super) fn new(notifications: watch::Sender<u64>) -> Self {
        Self { has_refused: false, check_at: None, notifications }
    }

    /// Records the result of a reservation.
    pub(super) fn record(&mut self, result: &Result<(), NoCapacity>) {
        self.has_refused |= result.is_err();
    }

    /// Notifies callers if a reservation was refused and one is possible now. Must be called after each change of the engine.
    pub(super) fn notify_if_available(&mut self, engine: &mut Engine, now: Now) {
        if !self.has_refused {
            return;
        }
        let refusal = engine.refusal(now);
        self.check_at = refusal.as_ref().and_then(NoCapacity::retry_after).map(|pause| now.at + pause);
        if refusal.is_none() {
            self.has_refused = false;
            self.notifications.send_modify(|count| *count += 1);
        }
    }

    /// Returns the time at which to check again without an event.
    pub(super) fn check_at(&self) -> Option<Time> {
        self.check_at
    }
}
