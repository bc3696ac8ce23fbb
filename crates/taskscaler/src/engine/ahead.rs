//! Reservations ahead of free slots, while each job request is answered with a job at once.
//!
//! A preemptive policy reserves free slots and no others: with two idle slots and a full queue, two jobs start with each boot.
//! While the queue is full, slots of instances that boot or can be created now are reserved too. As many of these may be open
//! as jobs came at once in a row, so they double from one round of requests to the next, like the window of TCP's slow start.
//! The first answer without a job ends it, and so does a second without any answer: what is reserved ahead is revoked.
//!
//! A reservation creates nothing. An instance is created for a job that has come, so none is created that no job uses.

use super::Engine;
use super::scale::UNBOUNDED;
use crate::decision::Hold;
use crate::time::{HELD_AFTER, Now, Time};

/// The last answers to job requests.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Jobs that came at once, since the last request that brought none.
    jobs_at_once: u64,
    /// Time of the last answer, or of the first reservation that waits for one.
    last: Time,
    /// Slots were reserved ahead, and may have to be revoked.
    is_ahead: bool,
}

impl Engine {
    /// The coordinator answered a job request.
    pub(super) fn request_answered(&mut self, now: Now, at_once: bool) {
        let jobs = if at_once { self.answers.jobs_at_once.saturating_add(1) } else { 0 };
        (self.answers.jobs_at_once, self.answers.last) = (jobs, now.at);
    }

    /// A reservation is about to be made, for a request that has no answer yet.
    pub(super) fn request_begins(&mut self, now: Now) {
        if self.open() == 0 {
            self.answers.last = now.at;
        }
    }

    /// Whether one more slot may be reserved that is not free.
    pub(super) fn may_reserve_ahead(&mut self, now: Now) -> bool {
        let may = self.ahead() < self.ahead_max(now);
        self.answers.is_ahead |= may;
        may
    }

    /// Reservations to be revoked because they are ahead of free slots.
    pub(super) fn too_far_ahead(&mut self, now: Now) -> u64 {
        if !self.answers.is_ahead {
            return 0;
        }
        if self.is_held(now) {
            self.answers.jobs_at_once = 0;
        }
        let most = self.ahead_max(now);
        self.answers.is_ahead = most > 0;
        self.ahead().saturating_sub(most)
    }

    /// Whether slots are reserved ahead of free ones because jobs come at once.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.answers.is_ahead && self.ahead() > 0
    }

    /// When requests that have no answer show that no job waits at the coordinator.
    pub(super) fn held_wake(&self, now: Now) -> Option<Time> {
        let waits = self.answers.is_ahead && self.open() > 0;
        waits.then_some(self.answers.last + HELD_AFTER).filter(|at| *at > now.at)
    }

    /// Whether requests have been without an answer for so long that no job waits at the coordinator.
    fn is_held(&self, now: Now) -> bool {
        self.open() > 0 && now.at.since(self.answers.last) >= HELD_AFTER
    }

    /// Reservations that no job has come for.
    fn open(&self) -> u64 {
        (self.reservations.len() as u64).saturating_sub(self.queue.len() as u64)
    }

    /// Of those, the ones that no free slot stands behind.
    fn ahead(&self) -> u64 {
        self.open().saturating_sub(self.pool.sums().free)
    }

    /// The most of them that there may be now.
    fn ahead_max(&mut self, now: Now) -> u64 {
        if !self.wanted.ahead || self.answers.jobs_at_once == 0 || self.is_held(now) {
            return 0;
        }
        let waiting = self.queue.slots(self.config.usable());
        self.slots_soon(now).saturating_sub(waiting).min(self.answers.jobs_at_once)
    }

    /// Slots of instances that boot, and of those that every limit lets be created at this moment.
    fn slots_soon(&mut self, now: Now) -> u64 {
        let (mut booting, mut possible) = (0, 0);
        for (id, hold) in self.holds(now) {
            let more = match hold {
                // The next call, a moment later, asks for all that is missing then.
                None | Some(Hold::Throttled) => u64::from(self.how_many(now, id, UNBOUNDED)),
                Some(_) => 0,
            };
            let Some(group) = self.group(id).filter(|group| group.readiness.failures == 0) else { continue };
            if let Some(Hold::Stopping | Hold::Drained { .. } | Hold::Down { .. } | Hold::Unknown { .. }) = hold {
                continue;
            }
            booting += u64::from(self.pool.coming(id)) + u64::from(group.counted_on());
            // A provider that failed, or granted too few, may do so again. What the first group costs is not left for the next.
            let is_paid = self.config.spend_max_per_hour.is_none() || possible == 0;
            if group.creation.failures == 0 && group.short_pause.is_zero() && is_paid {
                possible += more;
            }
        }
        (booting + possible).saturating_mul(u64::from(self.config.usable()))
    }
}
