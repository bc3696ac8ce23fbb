//! Requests additional instances and deletes surplus ones.

use super::idle_plan::Load;
use super::instance::{Instance, InstancePhase};
use super::pool::Index;
use super::{Engine, suspend};
use crate::decision::{DecisionKind, ScaleUpBlock};
use crate::event::Action;
use crate::formula::{self, Inputs};
use crate::time::{Now, Time, milliseconds};
use crate::types::{GroupId, RemovalReason};

const MAX_CANDIDATES: usize = 1000;

impl Engine {
    pub(super) fn scale(&mut self, now: Now) {
        for group in self.inventory.groups.ids() {
            self.inventory.expire_requests(now, &self.config, group);
        }
        if self.is_stopping {
            self.blocked_groups.clear();
            self.desired_change = 0;
            if self.plan.is_draining() {
                // A drained manager also deletes the instances that become idle when the last jobs end.
                self.scale_down(now);
            }
            self.delete_on_shutdown(now);
            return;
        }
        for group in self.inventory.groups.ids() {
            self.drain_group_instances(now, group);
        }
        let inputs = self.inputs(now);
        self.desired_change = formula::required(&inputs);
        match self.desired_change {
            missing @ 1.. => self.scale_up(now, missing.unsigned_abs(), inputs),
            _ => self.blocked_groups.clear(),
        }
        self.revoke_reservations(now);
        self.scale_down(now);
        self.delete_above_max_instances(now);
        self.delete_above_max_cost(now);
        while let Some(index) = suspend::find_evictable(&self.inventory, self.config.max_cost_per_hour) {
            self.delete(now, index, RemovalReason::NoSpareInstance);
        }
    }

    pub(super) fn inputs(&self, now: Now) -> Inputs {
        let (totals, target) = (self.inventory.pool.totals(), self.plan.target());
        let (capacity, usable) = (self.config.capacity.get(), self.config.slots_per_new_instance());
        let expected = self.inventory.groups.expected_usable();
        let waiting = self.queue.slots(usable);
        let forecast = self.plan.forecast_idle(now, totals.assigned + waiting, self.inventory.groups.boot_time());
        let keeps_reserved = target.preemptive && target.idle_count > 0 || !self.config.reservation_throttling;
        Inputs {
            instances: totals.supply + expected,
            acquired: totals.acquired,
            waiting,
            unusable: self.unusable_free_slots(),
            reserved: if keeps_reserved { self.reservations.unused(&self.queue) } else { 0 },
            unavailable: totals.unavailable + expected * u64::from(capacity - usable),
            idle_count: u64::from(target.idle_count).max(forecast.target),
            retained_idle: forecast.retained,
            capacity: u64::from(capacity),
            usable: u64::from(usable),
            scale_factor: target.scale_factor,
            scale_factor_limit: u64::from(target.scale_factor_limit),
        }
    }

    /// Free or held slots in which no queued request fits (I5).
    fn unusable_free_slots(&self) -> u64 {
        if self.queue.is_empty() {
            return 0;
        }
        self.inventory.pool.totals().free + self.hold.free_slots(&self.inventory.pool)
    }

    pub(super) fn record_load(&mut self, now: Now) {
        if !self.plan.has_forecast() {
            return;
        }
        let (pool, groups) = (&self.inventory.pool, &self.inventory.groups);
        let idle_time = self.plan.target().idle_time;
        let idle = groups.ids().flat_map(|group| pool.idle(group, now.at, idle_time, usize::MAX));
        let load = Load {
            in_use: pool.totals().assigned + self.queue.slots(self.config.slots_per_new_instance()),
            boot: groups.boot_time(),
            long_idle: idle.map(|(_, index)| pool.offered_slots(index)).sum(),
            inputs: self.inputs(now),
        };
        let changed = self.plan.record_load(now, load);
        self.inventory.outbox.mark_dirty(changed);
    }

    fn scale_up(&mut self, now: Now, missing: u64, inputs: Inputs) {
        let limits = self.scale_up_limits();
        let missing = self.inventory.request_instances(now, missing, inputs, limits);
        let mut blocked: Vec<(GroupId, ScaleUpBlock)> = Vec::new();
        if missing > 0 {
            let blocks = self.inventory.scale_up_blocks(now, limits).into_iter();
            blocked.extend(blocks.filter_map(|(group, block)| Some((group, block?))));
        }
        let kinds = |blocked: &[(GroupId, ScaleUpBlock)]| -> Vec<_> {
            blocked.iter().map(|(group, block)| (*group, std::mem::discriminant(block))).collect()
        };
        if kinds(&blocked) != kinds(&self.blocked_groups) && !blocked.is_empty() {
            let reasons = blocked.clone();
            self.inventory.record_decision(now, DecisionKind::ScaleUpBlocked { missing, reasons, inputs });
        }
        self.blocked_groups = blocked;
    }

    /// Revokes reservations for which no slot is free or expected anymore.
    ///
    /// With a preemptive policy, also those that keep instances beyond the policy's idle time or are too far ahead.
    fn revoke_reservations(&mut self, now: Now) {
        if self.reservations.unused(&self.queue) == 0 {
            return;
        }
        let blocks = self.inventory.scale_up_blocks(now, self.scale_up_limits());
        let future = self.inventory.future_slots(&blocks, u64::from(self.config.slots_per_new_instance()));
        let possible = self.inventory.pool.totals().free.max(future);
        let unbacked = self.reservations.len().saturating_sub(possible);
        let count = unbacked.max(self.reservations_beyond_idle_time(now)).max(self.reservations_too_far_ahead(now));
        for key in self.reservations.revoke(&self.queue, count) {
            self.inventory.push_action(Action::RevokeReservation { key });
        }
    }

    fn reservations_beyond_idle_time(&self, now: Now) -> u64 {
        let inputs = self.inputs(now);
        let retained_anyway = formula::idle_target(&inputs).max(inputs.unusable).max(inputs.retained_idle);
        if inputs.reserved <= retained_anyway {
            return 0;
        }
        let surplus = formula::surplus(&inputs);
        let retained_by_reservations = formula::surplus(&Inputs { reserved: 0, ..inputs }) - surplus;
        let (pool, idle_time) = (&self.inventory.pool, self.plan.target().idle_time);
        let idle = self.inventory.groups.ids().flat_map(|group| pool.idle(group, now.at, idle_time, MAX_CANDIDATES));
        // Instances that are surplus despite the reservations are deleted first.
        idle.map(|(_, index)| pool.offered_slots(index))
            .sum::<u64>()
            .saturating_sub(surplus)
            .min(retained_by_reservations)
    }

    fn reservations_too_far_ahead(&mut self, now: Now) -> u64 {
        if !self.reservations.stop_ahead_if_held(now, &self.queue) {
            return 0;
        }
        let max_ahead = self.max_ahead(now);
        self.reservations.count_to_revoke(&self.queue, self.inventory.pool.totals().free, max_ahead)
    }

    /// Deletes surplus instances that have been idle for the idle time of the policy.
    ///
    /// Starts with the last group in selection order, and within a group with the longest idle instance.
    fn scale_down(&mut self, now: Now) {
        let mut surplus = formula::surplus(&self.inputs(now));
        if surplus == 0 {
            return;
        }
        let idle_time = self.plan.target().idle_time;
        for group in self.inventory.groups.ids_in_selection_order().into_iter().rev() {
            for (since, index) in self.inventory.pool.idle(group, now.at, idle_time, MAX_CANDIDATES) {
                let slots = self.inventory.pool.offered_slots(index);
                if slots > surplus {
                    continue;
                }
                let idle_ms = milliseconds(now.at.since(since));
                self.delete(now, index, RemovalReason::Idle { idle_ms });
                surplus -= slots;
            }
        }
    }

    pub(super) fn idle_wake(&self, now: Now) -> Option<Time> {
        if self.is_stopping || formula::surplus(&Inputs { reserved: 0, ..self.inputs(now) }) == 0 {
            return None;
        }
        let idle_time = self.plan.target().idle_time;
        let groups = self.inventory.groups.ids();
        groups.filter_map(|group| self.inventory.pool.next_idle(group, now.at, idle_time)).min()
    }

    /// Deletes idle instances above the maximum, which the provider may have created late or unrequested.
    fn delete_above_max_instances(&mut self, now: Now) {
        for id in self.inventory.groups.ids() {
            let Some(max) = self.inventory.groups.get(id).and_then(super::group::GroupState::max_instances) else {
                continue;
            };
            let pool = &self.inventory.pool;
            let count = pool.count(id) - pool.deleting_count(id) as usize;
            for _ in max as usize..count {
                let idle: Option<(Time, Index)> = self.inventory.pool.longest_idle(id);
                let Some((_, index)) = idle else { break };
                self.delete(now, index, RemovalReason::AboveMaxInstances);
            }
        }
    }

    /// Deletes idle instances while the cost is above the maximum, for example after a price increase.
    ///
    /// Starts with the last group in selection order. Skips groups without a price.
    fn delete_above_max_cost(&mut self, now: Now) {
        let Some(max) = self.config.max_cost_per_hour else { return };
        for group in self.inventory.groups.ids_in_selection_order().into_iter().rev() {
            let has_price = self.inventory.groups.price(group) > 0.0;
            while has_price && self.inventory.cost_per_hour() - self.inventory.deleting_cost_per_hour() > max + 1e-9 {
                let Some((_, index)) = self.inventory.pool.longest_idle(group) else { break };
                self.delete(now, index, RemovalReason::AboveMaxCost);
            }
        }
    }

    pub(super) fn stop(&mut self, now: Now) {
        self.is_stopping = true;
        for key in self.suspensions.waiting_jobs() {
            self.cancel_resume(now, &key);
        }
        let retry = self.config.deletion_retry_interval.min(self.config.shutdown_deletion_interval);
        self.config.deletion_retry_interval = retry;
        let pool = &mut self.inventory.pool;
        let deleting = pool.iter().filter(|(_, instance)| instance.is_deleting());
        for index in deleting.map(|(index, _)| index).collect::<Vec<Index>>() {
            pool.change(index, |instance| {
                let call_in_flight =
                    matches!(&instance.phase, InstancePhase::Deleting(deleting) if deleting.call_in_flight);
                instance.due = instance.due.map(|due| if call_in_flight { due } else { due.min(now.at + retry) });
            });
        }
    }

    /// Deletes all instances without jobs if `delete_on_shutdown` is set, but cordoned ones only if `deletes_cordoned`
    /// is also set.
    pub(super) fn delete_on_shutdown(&mut self, now: Now) {
        if !self.config.delete_on_shutdown {
            return;
        }
        let is_kept = |phase: &InstancePhase| matches!(phase, InstancePhase::Cordoned { .. }) && !self.deletes_cordoned;
        let is_deletable =
            |instance: &Instance| instance.assigned_slots == 0 && !instance.is_deleting() && !is_kept(&instance.phase);
        let deletable = self.inventory.pool.iter().filter(|(_, instance)| is_deletable(instance));
        for index in deletable.map(|(index, _)| index).collect::<Vec<Index>>() {
            self.delete(now, index, RemovalReason::Shutdown);
        }
    }
}
