//! Who gets which slots.
//!
//! Who waits longest of those that fit somewhere is next, so a request for many slots is overtaken by smaller ones while no
//! instance has room for it. One that was overtaken for [`OVERTAKEN_FOR`] is kept an instance: it gets no other job until
//! there is room. So everyone is served, and at most one instance at a time is held back for that.

use std::time::Duration;

use super::queue::Waiter;
use super::{Engine, Place};
use crate::decision::What;
use crate::event::Action;
use crate::time::{Now, Time};
use crate::words::Key;

/// A request for many slots is overtaken by others for so long.
const OVERTAKEN_FOR: Duration = Duration::from_secs(60);
/// Sticky contexts of an instance that are known, as many as an agent keeps by itself.
const CONTEXTS_MAX: usize = 32;

impl Engine {
    /// Free slots go to those who wait (I5).
    pub(super) fn place(&mut self, now: Now) {
        if self.stopping {
            return;
        }
        self.look_after_kept(now);
        while let Some((waiter, index)) = self.next() {
            self.give(now, &waiter, index);
        }
        self.keep_for_overtaken(now);
    }

    fn next(&self) -> Option<(Waiter, usize)> {
        if self.queue.is_empty() {
            return None;
        }
        let waiter = self.queue.first(self.pool.widest())?;
        let index = self.pool.best(waiter.slots, waiter.context, waiter.avoid)?;
        Some((waiter.clone(), index))
    }

    fn give(&mut self, now: Now, waiter: &Waiter, index: usize) {
        let key = &waiter.key;
        self.queue.remove(key);
        let held = self.pool.change(index, |instance| {
            let crowd = instance.crowd_at(now.at);
            instance.used += 1;
            (instance.hold(waiter.slots, key, now.at), crowd, instance.jobs)
        });
        let Some((slot, crowd, jobs)) = held else { return };
        let sticky = waiter.context.map(|context| self.pool.has(index, context));
        if let Some(context) = waiter.context {
            self.pool.has_context(index, context, CONTEXTS_MAX);
        }
        let place = Place { index, slot, slots: waiter.slots, since: now.at, crowd, work: waiter.work };
        self.reservations.remove(key);
        self.leases.insert(key.clone(), place);
        self.touch(index);
        let Some(lease) = self.lease_at(key, place) else { return };
        let (group, id, slot) = (lease.group, lease.instance.clone(), lease.slot);
        let waited = now.at.since(waiter.since);
        self.decide(now, What::Leased { key: key.clone(), group, id, slot, slots: waiter.slots, jobs, sticky, waited });
        self.actions.push(Action::Grant(lease));
    }

    /// The instance that is kept for a request gives it its slots, or is not kept any more.
    fn look_after_kept(&mut self, now: Now) {
        let Some((key, index)) = self.kept.clone() else { return };
        let (capacity, uses_max) = self.limits();
        let waiter = self.queue.get(&key).cloned();
        let instance = self.pool.get(index).filter(|instance| instance.kept);
        match (waiter, instance) {
            (Some(waiter), Some(instance)) if instance.can_fit(waiter.slots, capacity, uses_max) => {
                if capacity.saturating_sub(instance.held) >= waiter.slots {
                    self.keep_no_more(index);
                    self.give(now, &waiter, index);
                }
            }
            _ => self.keep_no_more(index),
        }
    }

    fn keep_no_more(&mut self, index: usize) {
        self.kept = None;
        self.pool.change(index, |instance| instance.kept = false);
    }

    fn keep_for_overtaken(&mut self, now: Now) {
        if self.kept.is_some() {
            return;
        }
        let Some(waiter) = self.overtaken() else { return };
        if now.at < waiter.since + OVERTAKEN_FOR {
            return;
        }
        let (key, slots) = (waiter.key.clone(), waiter.slots);
        let Some(index) = self.pool.soonest(slots) else { return };
        let Some((group, id)) = self.pool.get(index).map(|instance| (instance.group, instance.id.clone())) else {
            return;
        };
        self.pool.change(index, |instance| instance.kept = true);
        self.kept = Some((key.clone(), index));
        self.decide(now, What::Kept { key, group, id, slots });
    }

    /// Who waits longest of those that want several slots.
    fn overtaken(&self) -> Option<&Waiter> {
        self.queue.first(u32::MAX).filter(|waiter| waiter.slots > 1)
    }

    /// When an instance will be kept for who is overtaken.
    pub(super) fn overtaken_wake(&self, now: Now) -> Option<Time> {
        let waiter = self.overtaken().filter(|_| self.kept.is_none())?;
        Some(waiter.since + OVERTAKEN_FOR).filter(|at| *at > now.at)
    }

    /// Slots that are free, or kept, and of no use to anyone who waits.
    pub(super) fn stray(&self) -> u64 {
        if self.queue.is_empty() {
            return 0;
        }
        let kept = self.kept.as_ref().and_then(|(_, index)| self.pool.get(*index));
        let (capacity, _) = self.limits();
        self.pool.sums().free + kept.map_or(0, |instance| u64::from(capacity.saturating_sub(instance.held)))
    }

    /// Slots of an instance, and jobs in its life.
    pub(super) fn limits(&self) -> (u32, Option<u32>) {
        (self.config.capacity.get(), self.config.uses_max.map(std::num::NonZeroU32::get))
    }

    /// How many slots a request takes: never more than a new instance gives.
    pub(super) fn slots_for(&self, request: &crate::words::Request) -> u32 {
        let density = &self.config.density;
        let measured = request.work.filter(|_| density.measured);
        let need = measured.map_or(request.need, |work| request.need.or(self.usages.need(work, density)));
        density.slots(need, self.config.usable())
    }

    /// What the job of a lease used.
    pub(super) fn used(&mut self, now: Now, key: Key, used: crate::need::Used) {
        let Some(place) = self.leases.get(&key).copied() else { return };
        let Some(instance) = self.pool.get(place.index) else { return };
        let (crowd, time) = (instance.crowd_at(now.at).saturating_sub(place.crowd), now.at.since(place.since));
        let neighbours = if time.is_zero() {
            f64::from(instance.jobs.saturating_sub(1))
        } else {
            (Duration::from_millis(crowd).as_secs_f64() / time.as_secs_f64() - 1.0).max(0.0)
        };
        let recorded = place.work.map(|work| {
            let recorded = self.usages.record(work, &used, neighbours, now.unix);
            let changed = [Some(work), recorded.forgotten].into_iter().flatten();
            self.dirty.extend(changed.map(crate::books::RowKey::Work));
            recorded
        });
        let slow_down = recorded.and_then(|recorded| recorded.slow_down);
        self.decide(now, What::Used { key, used, neighbours, slow_down });
    }
}
