//! Who gets which slots.
//!
//! Who waits longest of those that fit somewhere is next, so a request for many slots is overtaken by smaller ones while no
//! instance has room for it. One that was overtaken for [`OVERTAKEN_FOR`] is kept an instance: it gets no other job until
//! there is room. So everyone is served, and at most one instance at a time is held back for that.

use std::time::Duration;

use super::queue::QueuedRequest;
use super::{Engine, LeaseLocation};
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::time::{Now, Time};
use crate::types::TaskKey;

/// A request for many slots is overtaken by others for so long.
const STARVATION_TIMEOUT: Duration = Duration::from_secs(60);
/// Sticky contexts of an instance that are known, as many as an agent keeps by itself.
const MAX_CONTEXTS: usize = 32;

impl Engine {
    /// Free slots go to those who wait (I5).
    pub(super) fn assign_slots(&mut self, now: Now) {
        if self.stopping {
            return;
        }
        self.update_hold(now);
        while let Some((waiter, index)) = self.next() {
            self.assign(now, &waiter, index);
        }
        self.hold_for_starved(now);
    }

    fn next(&self) -> Option<(QueuedRequest, usize)> {
        if self.queue.is_empty() {
            return None;
        }
        let waiter = self.queue.oldest_fitting(self.pool.max_fit())?;
        let index = self.pool.best(waiter.slots, waiter.context, waiter.avoid)?;
        Some((waiter.clone(), index))
    }

    fn assign(&mut self, now: Now, waiter: &QueuedRequest, index: usize) {
        let key = &waiter.key;
        self.queue.remove(key);
        let held = self.pool.change(index, |instance| {
            let crowd = instance.occupancy_ms_at(now.at);
            instance.job_count += 1;
            (instance.hold(waiter.slots, key, now.at), crowd, instance.jobs)
        });
        let Some((slot, crowd, jobs)) = held else { return };
        let sticky = waiter.context.map(|context| self.pool.has_context(index, context));
        if let Some(context) = waiter.context {
            self.pool.add_context(index, context, MAX_CONTEXTS);
        }
        let place = LeaseLocation {
            index,
            slot,
            slots: waiter.slots,
            since: now.at,
            occupancy_ms: crowd,
            job_kind: waiter.job_kind,
        };
        self.reservations.remove(key);
        self.leases.insert(key.clone(), place);
        self.mark_dirty(index);
        let Some(lease) = self.lease_at(key, place) else { return };
        let (group, id, slot) = (lease.group, lease.instance.clone(), lease.slot);
        let waited = now.at.since(waiter.since);
        self.decide(
            now,
            DecisionKind::Leased { key: key.clone(), group, id, slot, slots: waiter.slots, jobs, sticky, waited },
        );
        self.actions.push(Action::Grant(lease));
    }

    /// The instance that is kept for a request gives it its slots, or is not kept any more.
    fn update_hold(&mut self, now: Now) {
        let Some((key, index)) = self.held_for_request.clone() else { return };
        let (capacity, uses_max) = self.limits();
        let waiter = self.queue.get(&key).cloned();
        let instance = self.pool.get(index).filter(|instance| instance.held_for_request);
        match (waiter, instance) {
            (Some(waiter), Some(instance)) if instance.can_fit(waiter.slots, capacity, uses_max) => {
                if capacity.saturating_sub(instance.held) >= waiter.slots {
                    self.release_hold(index);
                    self.assign(now, &waiter, index);
                }
            }
            _ => self.release_hold(index),
        }
    }

    fn release_hold(&mut self, index: usize) {
        self.held_for_request = None;
        self.pool.change(index, |instance| instance.held_for_request = false);
    }

    fn hold_for_starved(&mut self, now: Now) {
        if self.held_for_request.is_some() {
            return;
        }
        let Some(waiter) = self.largest_starved() else { return };
        if now.at < waiter.since + STARVATION_TIMEOUT {
            return;
        }
        let (key, slots) = (waiter.key.clone(), waiter.slots);
        let Some(index) = self.pool.soonest(slots) else { return };
        let Some((group, id)) = self.pool.get(index).map(|instance| (instance.group, instance.id.clone())) else {
            return;
        };
        self.pool.change(index, |instance| instance.held_for_request = true);
        self.held_for_request = Some((key.clone(), index));
        self.decide(now, DecisionKind::Held { key, group, id, slots });
    }

    /// Who waits longest of those that want several slots.
    fn largest_starved(&self) -> Option<&QueuedRequest> {
        self.queue.oldest_fitting(u32::MAX).filter(|waiter| waiter.slots > 1)
    }

    /// When an instance will be kept for who is overtaken.
    pub(super) fn starvation_wake(&self, now: Now) -> Option<Time> {
        let waiter = self.largest_starved().filter(|_| self.held_for_request.is_none())?;
        Some(waiter.since + STARVATION_TIMEOUT).filter(|at| *at > now.at)
    }

    /// Slots that are free, or kept, and of no use to anyone who waits.
    pub(super) fn unusable_free_slots(&self) -> u64 {
        if self.queue.is_empty() {
            return 0;
        }
        let kept = self.held_for_request.as_ref().and_then(|(_, index)| self.pool.get(*index));
        let (capacity, _) = self.limits();
        self.pool.sums().free + kept.map_or(0, |instance| u64::from(capacity.saturating_sub(instance.held)))
    }

    /// Slots of an instance, and jobs in its life.
    pub(super) fn limits(&self) -> (u32, Option<u32>) {
        (self.config.capacity.get(), self.config.max_uses.map(std::num::NonZeroU32::get))
    }

    /// How many slots a request takes: never more than a new instance gives.
    pub(super) fn slots_for(&self, request: &crate::types::SlotRequest) -> u32 {
        let density = &self.config.density;
        let measured = request.job_kind.filter(|_| density.learn_from_usage);
        let need = measured.map_or(request.resources, |work| request.resources.or(self.usages.need(work, density)));
        density.slots_for(need, self.config.slots_per_new_instance())
    }

    /// What the job of a lease used.
    pub(super) fn record_usage(&mut self, now: Now, key: TaskKey, used: crate::resources::JobUsage) {
        let Some(place) = self.leases.get(&key).copied() else { return };
        let Some(instance) = self.pool.get(place.index) else { return };
        let (crowd, time) =
            (instance.occupancy_ms_at(now.at).saturating_sub(place.occupancy_ms), now.at.since(place.since));
        let neighbours = if time.is_zero() {
            f64::from(instance.jobs.saturating_sub(1))
        } else {
            (Duration::from_millis(crowd).as_secs_f64() / time.as_secs_f64() - 1.0).max(0.0)
        };
        let recorded = place.job_kind.map(|work| {
            let recorded = self.usages.record(work, &used, neighbours, now.unix);
            let changed = [Some(work), recorded.forgotten].into_iter().flatten();
            self.dirty.extend(changed.map(crate::ledger::RowKey::JobKind));
            recorded
        });
        let slow_down = recorded.and_then(|recorded| recorded.slowdown);
        self.decide(now, DecisionKind::JobUsage { key, usage: used, neighbors: neighbours, slowdown: slow_down });
    }
}
