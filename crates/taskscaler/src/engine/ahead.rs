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
use crate::decision::ScaleUpBlock;
use crate::time::{HELD_AFTER, Now, Time};

/// The last answers to job requests.
#[derive(Debug, Default)]
pub(super) struct RequestHistory {
    /// Jobs that came at once, since the last request that brought none.
    immediate_jobs: u64,
    /// Time of the last answer, or of the first reservation that waits for one.
    last: Time,
    /// Slots were reserved ahead, and may have to be revoked.
    is_ahead: bool,
}

impl Engine {
    /// The coordinator answered a job request.
    pub(super) fn request_answered(&mut self, now: Now, at_once: bool) {
        let jobs = if at_once { self.answers.immediate_jobs.saturating_add(1) } else { 0 };
        (self.answers.immediate_jobs, self.answers.last) = (jobs, now.at);
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
    pub(super) fn reservations_too_far_ahead(&mut self, now: Now) -> u64 {
        if !self.answers.is_ahead {
            return 0;
        }
        if self.is_held(now) {
            self.answers.immediate_jobs = 0;
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
        if !self.idle_target.ahead || self.answers.immediate_jobs == 0 || self.is_held(now) {
            return 0;
        }
        let waiting = self.queue.slots(self.config.slots_per_new_instance());
        self.slots_soon(now).saturating_sub(waiting).min(self.answers.immediate_jobs)
    }

    /// Slots of instances that boot, and of those that every limit lets be created at this moment.
    fn slots_soon(&mut self, now: Now) -> u64 {
        let (mut booting, mut possible) = (0, 0);
        for (id, hold) in self.scale_up_blocks(now) {
            let more = match hold {
                // The next call, a moment later, asks for all that is missing then.
                None | Some(ScaleUpBlock::Throttled) => u64::from(self.request_size(now, id, UNBOUNDED)),
                Some(_) => 0,
            };
            let Some(group) = self.group(id).filter(|group| group.readiness.failures == 0) else { continue };
            if let Some(
                ScaleUpBlock::Stopping
                | ScaleUpBlock::Drained { .. }
                | ScaleUpBlock::PluginDown { .. }
                | ScaleUpBlock::NotListedYet { .. },
            ) = hold
            {
                continue;
            }
            booting += u64::from(self.pool.starting(id)) + u64::from(group.expected_usable());
            // A provider that failed, or granted too few, may do so again. What the first group costs is not left for the next.
            let is_paid = self.config.max_cost_per_hour.is_none() || possible == 0;
            if group.creation.failures == 0 && group.partial_pause.is_zero() && is_paid {
                possible += more;
            }
        }
        (booting + possible).saturating_mul(u64::from(self.config.slots_per_new_instance()))
    }
}
