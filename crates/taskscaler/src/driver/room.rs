//! Tells those who were refused a promise when one is possible again: none of them has to ask and ask.

use tokio::sync::watch;

use crate::engine::{Engine, NoCapacity};
use crate::time::{Now, Time};

/// See the module.
pub(super) struct Room {
    /// Somebody was refused, and has not been told anything since.
    waits: bool,
    /// When time alone may change that.
    again: Option<Time>,
    /// Counts how often a promise was possible again.
    told: watch::Sender<u64>,
}

impl Room {
    pub(super) fn new(told: watch::Sender<u64>) -> Self {
        Self { waits: false, again: None, told }
    }

    /// Somebody asked for a promise.
    pub(super) fn note(&mut self, answer: &Result<(), NoCapacity>) {
        self.waits |= answer.is_err();
    }

    /// After everything that happened.
    pub(super) fn look(&mut self, engine: &mut Engine, now: Now) {
        if !self.waits {
            return;
        }
        let refusal = engine.refusal(now);
        self.again = refusal.as_ref().and_then(NoCapacity::again_after).map(|pause| now.at + pause);
        if refusal.is_none() {
            self.waits = false;
            self.told.send_modify(|times| *times += 1);
        }
    }

    /// When to look without an event.
    pub(super) fn again(&self) -> Option<Time> {
        self.again
    }
}
