//! Notifies callers when a reservation is possible again after a refusal.

use tokio::sync::watch;

use crate::engine::{Engine, NoCapacity};
use crate::time::{Now, Time};

pub(super) struct CapacityNotifier {
    /// Whether a reservation was refused since the last notification.
    has_refused: bool,
    /// Time at which a reservation may become possible without an event. `None` means never.
    next_check_at: Option<Time>,
    /// Number of notifications. Also incremented when a reservation is revoked.
    notifications: watch::Sender<u64>,
}

impl CapacityNotifier {
    pub(super) fn new(notifications: watch::Sender<u64>) -> Self {
        Self { has_refused: false, next_check_at: None, notifications }
    }

    pub(super) fn record(&mut self, result: &Result<(), NoCapacity>) {
        self.has_refused |= result.is_err();
    }

    /// Must be called after each change of the engine.
    pub(super) fn notify_if_available(&mut self, engine: &mut Engine, now: Now) {
        if !self.has_refused {
            return;
        }
        let refusal = engine.refusal(now);
        self.next_check_at = refusal.as_ref().and_then(NoCapacity::retry_after).map(|pause| now.at + pause);
        if refusal.is_none() {
            self.has_refused = false;
            self.notifications.send_modify(|count| *count += 1);
        }
    }

    pub(super) fn next_check_at(&self) -> Option<Time> {
        self.next_check_at
    }
}
