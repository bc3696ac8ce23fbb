//! Reservations, waiting requests, leases.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::instance::State;
use super::queue::Waiter;
use super::scale::CANDIDATES_MAX;
use super::{Engine, Place};
use crate::decision::{Hold, What};
use crate::event::Action;
use crate::formula::{self, Inputs};
use crate::sleep::NotResumed;
use crate::time::Now;
use crate::words::{GroupId, Key, Lease, Loss, Removal, Request};

/// Why no job should be requested now.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoCapacity {
    /// Nothing is free, and nothing more can be made.
    #[error("no capacity: no immediately available or potential capacity ({facts}){}", reasons(.why))]
    InSight {
        /// Slots by what they are.
        facts: String,
        /// Why no more can be made, for each group.
        why: Vec<(String, Hold)>,
    },
    /// Nothing is free, and the policy is preemptive.
    #[error("no capacity: no immediately available capacity ({facts}){}", reasons(.why))]
    Immediately {
        /// Slots by what they are.
        facts: String,
        /// Why no more are made, for each group that makes none.
        why: Vec<(String, Hold)>,
    },
    /// What is given away cannot be stored.
    #[error("no capacity: {why}")]
    Unwritten {
        /// Why not.
        why: String,
    },
}

impl NoCapacity {
    /// After how long time alone may change it; none: only an event will.
    #[must_use]
    pub fn again_after(&self) -> Option<Duration> {
        let (Self::InSight { why, .. } | Self::Immediately { why, .. }) = self else { return None };
        let pause = |hold: &Hold| if let Hold::BackOff { pause, .. } = hold { Some(*pause) } else { None };
        why.iter().filter_map(|(_, hold)| pause(hold)).min()
    }
}

fn reasons(why: &[(String, Hold)]) -> String {
    why.iter().map(|(group, hold)| format!("; group {group}: {hold}")).collect()
}

/// Why a slot cannot be waited for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// There was no [`Engine::reserve`] before.
    #[error("reservation not found: {key}")]
    NotReserved {
        /// Whose.
        key: Key,
    },
    /// The key waits, or has a slot.
    #[error("{key} waits for a slot, or has one, already")]
    Twice {
        /// Whose.
        key: Key,
    },
    /// The environment that it asks for is not to be had.
    #[error(transparent)]
    NotResumed(#[from] NotResumed),
    /// The scaler ends.
    #[error("no slot for {key}: the scaler ends")]
    Stopping {
        /// Whose.
        key: Key,
    },
}

impl Engine {
    /// Promises a slot, before a job is requested (fleeting.md 7.6). A key that is reserved already is a success.
    ///
    /// # Errors
    /// [`NoCapacity`]: no job should be requested, and why.
    pub fn reserve(&mut self, now: Now, key: Key) -> Result<(), NoCapacity> {
        if self.reservations.contains(&key) {
            return Ok(());
        }
        if let Some(refusal) = self.refusal(now) {
            return Err(refusal);
        }
        self.request_begins(now);
        self.reservations.insert(key);
        Ok(())
    }

    /// Why one more slot cannot be promised now; none: it can.
    pub fn refusal(&mut self, now: Now) -> Option<NoCapacity> {
        self.look_up_policy(now);
        let reserved = self.reservations.len() as u64;
        let available = self.pool.sums().free.saturating_sub(reserved);
        if available > 0 {
            return None;
        }
        let held = self.holds(now);
        let is_in_sight = !self.stopping && self.slots_to_come(&held) > reserved;
        let is_preemptive = self.wanted.idle_count > 0 && self.wanted.preemptive;
        if is_in_sight && (!is_preemptive || self.may_reserve_ahead(now)) {
            self.refused = None;
            return None;
        }
        self.refused = Some(now.at);
        let why = self.named(held.into_iter().filter_map(|(group, hold)| Some((group, hold?))).collect());
        let facts = self.facts();
        Some(if is_in_sight { NoCapacity::Immediately { facts, why } } else { NoCapacity::InSight { facts, why } })
    }

    /// Promises a slot for a job that is here already, as after a restart: it will wait, however long.
    pub fn admit(&mut self, key: Key) {
        self.reservations.insert(key);
    }

    /// A promise that was made before its job was known goes on under the job's own name, also one that was withdrawn
    /// meanwhile: the job is here.
    pub fn rename(&mut self, from: &Key, to: Key) {
        self.reservations.remove(from);
        self.reservations.insert(to);
    }

    /// Takes back promises that nothing stands behind any more: those beyond what is in sight, and by a preemptive policy
    /// those for which instances would be kept idle for longer than it says, and those too far ahead of free slots.
    pub(super) fn withdraw(&mut self, now: Now) {
        let reserved = self.reservations.len() as u64;
        let promises = reserved.saturating_sub(self.queue.len() as u64);
        if promises == 0 {
            return;
        }
        let held = self.holds(now);
        let in_sight = self.pool.sums().free.max(self.slots_to_come(&held));
        let over = reserved.saturating_sub(in_sight).max(self.kept_too_long(now)).max(self.too_far_ahead(now));
        if over == 0 {
            return;
        }
        let mut keys: Vec<Key> =
            self.reservations.iter().filter(|key| self.queue.get(key).is_none()).cloned().collect();
        keys.sort_unstable();
        for key in keys.into_iter().take(usize::try_from(over).unwrap_or(usize::MAX)) {
            self.reservations.remove(&key);
            self.actions.push(Action::Withdraw { key });
        }
    }

    /// Promises that are all that keeps instances which have been idle for the policy's time.
    fn kept_too_long(&self, now: Now) -> u64 {
        let inputs = self.inputs(now);
        let wanted = formula::idle(&inputs).max(inputs.stray).max(inputs.kept);
        if inputs.reserved <= wanted {
            return 0;
        }
        let surplus = formula::surplus(&inputs);
        let kept = formula::surplus(&Inputs { reserved: 0, ..inputs }) - surplus;
        let idle_time = self.wanted.idle_time;
        let groups = (0..self.groups.len()).map(GroupId);
        let idle = groups.flat_map(|group| self.pool.idle(group, now.at, idle_time, CANDIDATES_MAX));
        // Those that are too many in spite of the promises go first.
        idle.map(|(_, index)| self.pool.gives(index)).sum::<u64>().saturating_sub(surplus).min(kept)
    }

    /// Waits for a slot; [`Action::Grant`] gives it, perhaps at once.
    ///
    /// # Errors
    /// [`AcquireError`].
    pub fn acquire(&mut self, now: Now, key: Key, request: &Request) -> Result<(), AcquireError> {
        if self.stopping {
            return Err(AcquireError::Stopping { key });
        }
        if !self.reservations.contains(&key) {
            return Err(AcquireError::NotReserved { key });
        }
        let Request { work, context, avoid, .. } = *request;
        let waiter = Waiter { key: key.clone(), since: now.at, slots: self.slots_for(request), work, context, avoid };
        if self.leases.contains_key(&key) || !self.queue.push(waiter) {
            return Err(AcquireError::Twice { key });
        }
        self.settle(now);
        Ok(())
    }

    /// After a restart: the lease that the key has from before.
    pub fn claim(&mut self, key: &Key) -> Option<Lease> {
        let place = *self.leases.get(key)?;
        self.unclaimed.remove(key);
        self.lease_at(key, place)
    }

    /// Slots that are there or can be: those of instances, of those on their way, and of those that can be asked for.
    fn slots_to_come(&self, holds: &[(GroupId, Option<Hold>)]) -> u64 {
        let sums = self.pool.sums();
        let usable = u64::from(self.config.usable());
        let slots =
            (sums.supply * u64::from(self.config.capacity.get())).saturating_sub(sums.unavailable + sums.acquired);
        holds.iter().fold(slots, |slots, (group, hold)| {
            let expected = self.group(*group).map_or(0, |group| u64::from(group.counted_on()));
            let more = match hold {
                // A place will be free when one that goes is gone.
                Some(Hold::AtMax { leaving, stuck, .. }) => u64::from(leaving.saturating_sub(stuck.count)),
                Some(Hold::Throttled | Hold::Short) | None => self.room(*group),
                // One attempt shows whether it works again.
                Some(Hold::Probing { .. }) => 1,
                Some(_) => 0,
            };
            slots.saturating_add((expected + more).saturating_mul(usable))
        })
    }

    fn facts(&self) -> String {
        let sums = self.pool.sums();
        let coming = self.expected();
        let unready = (sums.supply * u64::from(self.config.capacity.get()))
            .saturating_sub(sums.acquired + sums.unavailable + sums.free);
        format!(
            "idle:{},acquired:{},unavailable:{},unready:{unready},reserved:{},coming:{coming}",
            sums.free,
            sums.held,
            sums.unavailable,
            self.reservations.len()
        )
    }

    pub(super) fn named(&self, holds: Vec<(GroupId, Hold)>) -> Vec<(String, Hold)> {
        let name = |id| self.group(id).map_or_else(String::new, |group: &super::Group| group.config.name.clone());
        holds.into_iter().map(|(group, hold)| (name(group), hold)).collect()
    }

    pub(super) fn lease_at(&self, key: &Key, place: Place) -> Option<Lease> {
        let instance = self.pool.get(place.index)?;
        let slot = u32::try_from(place.slot).ok()?;
        let (group, id) = (instance.group, instance.id.clone());
        Some(Lease { key: key.clone(), group, instance: id, slot, slots: place.slots, use_number: instance.used })
    }

    /// Frees a slot. An instance that is used up goes at once (S12).
    pub(super) fn release(&mut self, now: Now, key: &Key) {
        let Some(index) = self.drop_lease(now, key) else { return };
        self.decide(now, What::Released { key: key.clone() });
        self.after_release(now, index);
    }

    /// Takes the slot from the books.
    pub(super) fn drop_lease(&mut self, now: Now, key: &Key) -> Option<usize> {
        let place = self.leases.remove(key)?;
        self.unclaimed.remove(key);
        self.pool.change(place.index, |instance| {
            instance.free(key, now.at);
            instance.resumed = None;
            if instance.held == 0 {
                (instance.idle_since, instance.idle_unix) = (now.at, now.unix);
            }
        });
        self.touch(place.index);
        Some(place.index)
    }

    /// What comes of an instance when a lease of it has ended.
    pub(super) fn after_release(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.held > 0 {
            return;
        }
        let used = instance.used;
        match instance.state.clone() {
            State::Draining(why) => self.delete(now, index, why),
            // Who keeps it wants to look at it, also where it is used up.
            State::Deleting(_) | State::Aside { .. } | State::Asleep(_) => {}
            _ if self.config.uses_max.is_some_and(|max| used >= max.get()) => {
                self.delete(now, index, Removal::UsedUp { uses: used });
            }
            _ => {}
        }
    }

    /// The instance is no more: its leases end, and it leaves the books.
    pub(super) fn gone(&mut self, now: Now, index: usize, cause: Loss) {
        self.lose_jobs(now, index, &cause);
        self.fail_waker(now, index, &cause.to_string());
        let Some(instance) = self.pool.remove(index) else { return };
        let deletion = match &instance.state {
            State::Deleting(deleting) if deleting.attempts > 0 => Some(now.at.since(deleting.since)),
            _ => None,
        };
        let (group, id) = (instance.group, instance.id);
        if let Some(of) = self.groups.get_mut(group.0) {
            of.remember_gone(id.clone(), now);
            if let Some(took) = deletion {
                of.deletion.learn(took);
            }
        }
        self.touch_id(group, &id);
        let life = now.at.since(instance.seen);
        self.decide(now, What::Gone { group, id: id.clone(), life, deletion });
        self.actions.push(Action::Forget { group, id });
    }

    /// Ends all leases of an instance that is going or gone by itself.
    pub(super) fn lose_jobs(&mut self, now: Now, index: usize, cause: &Loss) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.held == 0 {
            return;
        }
        let (group, id): (GroupId, InstanceId) = (instance.group, instance.id.clone());
        let jobs: Vec<Key> = instance.keys().map(|(_, key)| key.clone()).collect();
        for key in &jobs {
            self.drop_lease(now, key);
            self.actions.push(Action::Lost { key: key.clone(), cause: cause.clone() });
        }
        self.decide(now, What::Lost { group, id, cause: cause.clone(), jobs });
    }
}
