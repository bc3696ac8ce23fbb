//! Tells those who were refused a promise when one is possible again: none of them has to ask and ask.

use tokio::sync::watch;

use crate::engine::{Engine, NoCapacity};
use crate::time::{Now, Time};

/// See the module.
pub(super) struct CapacityNotifier {
    /// Somebody was refused, and has not been told anything since.
    has_refused: bool,
    /// When time alone may change that.
    again: Option<Time>,
    /// Counts how often a promise was possible again.
    notifications: watch::Sender<u64>,
}

impl CapacityNotifier {
    pub(super) fn new(told: watch::Sender<u64>) -> Self {
        Self { has_refused: false, again: None, notifications: told }
    }

    /// Somebody asked for a promise.
    pub(super) fn record(&mut self, answer: &Result<(), NoCapacity>) {
        self.has_refused |= answer.is_err();
    }

    /// After everything that happened.
    pub(super) fn notify_if_available(&mut self, engine: &mut Engine, now: Now) {
        if !self.has_refused {
            return;
        }
        let refusal = engine.refusal(now);
        self.again = refusal.as_ref().and_then(NoCapacity::retry_after).map(|pause| now.at + pause);
        if refusal.is_none() {
            self.has_refused = false;
            self.notifications.send_modify(|times| *times += 1);
        }
    }

    /// When to look without an event.
    pub(super) fn again(&self) -> Option<Time> {
        self.again
    }
}
