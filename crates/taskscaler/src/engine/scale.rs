//! How many instances there should be, and from which group.

use std::time::Duration;

use super::group::{Plugin, RequestState, ScaleUpRequest};
use super::{Engine, pool};
use crate::decision::{DecisionKind, ScaleUpBlock, StuckDeletions};
use crate::event::Action;
use crate::formula::{self, Inputs};
use crate::time::{Now, Time};
use crate::types::{GroupId, RemovalReason};

/// Instances in a row that could not be made ready, before the group is asked for one at a time.
const MAX_READINESS_FAILURES: u32 = 3;
/// Room of a group without a limit.
pub(super) const UNBOUNDED: u64 = 1_000_000_000;
/// A removal is thought to work for so long, or for three times as long as removals of its group take.
const STUCK_AFTER: Duration = Duration::from_secs(300);
/// Idle instances of a group that are looked at in one step.
pub(super) const MAX_CANDIDATES: usize = 1000;
/// After a grant that was short the provider is asked again after this; while it goes on to give, after less and less.
const PARTIAL_PAUSE: Duration = Duration::from_millis(250);
/// The least of these pauses: ten calls a second.
const MIN_PARTIAL_PAUSE: Duration = Duration::from_millis(100);
/// A limit on the size of requests that grew beyond this is none any more.
const MAX_REQUEST_SIZE: u32 = 1024;

impl Engine {
    /// Creates what is missing, removes what is too much.
    pub(super) fn scale(&mut self, now: Now) {
        for group in (0..self.groups.len()).map(GroupId) {
            self.expire_scale_ups(now, group);
        }
        if self.stopping {
            self.blocked_groups.clear();
            self.desired_change = 0;
            if self.draining {
                // The last jobs give their slots back only now.
                self.scale_down(now, formula::surplus(&self.inputs(now)));
            }
            self.delete_on_shutdown(now);
            return;
        }
        for group in (0..self.groups.len()).map(GroupId) {
            self.drain_group_instances(now, group);
        }
        let inputs = self.inputs(now);
        self.desired_change = formula::required(&inputs);
        match self.desired_change {
            0 => self.blocked_groups.clear(),
            missing @ 1.. => self.create(now, missing.unsigned_abs(), inputs),
            _ => self.blocked_groups.clear(),
        }
        self.revoke_reservations(now);
        self.scale_down(now, formula::surplus(&self.inputs(now)));
        self.delete_above_max_instances(now);
        self.delete_above_max_cost(now);
        self.evict_suspended(now);
    }

    /// What the formula is asked with.
    pub(super) fn inputs(&self, now: Now) -> Inputs {
        let sums = self.pool.sums();
        let (capacity, usable) =
            (u64::from(self.config.capacity.get()), u64::from(self.config.slots_per_new_instance()));
        let expected = self.expected();
        let (requests, waiting) = (self.queue.len() as u64, self.queue.slots(self.config.slots_per_new_instance()));
        let (in_use, boot) = (sums.held + waiting, self.boot_time());
        let forecast = self.forecast.as_ref().filter(|_| !self.draining);
        let (forecast, kept) = forecast.map_or((0, 0), |forecast| {
            (forecast.idle_target(now.unix, in_use, boot), forecast.retained_idle(now.unix, in_use, boot))
        });
        let keeps =
            self.idle_target.preemptive && self.idle_target.idle_count > 0 || !self.config.reservation_throttling;
        let reserved = (self.reservations.len() as u64).saturating_sub(requests);
        Inputs {
            instances: sums.supply + expected,
            acquired: sums.acquired,
            waiting,
            unusable: self.unusable_free_slots(),
            reserved: if keeps { reserved } else { 0 },
            unavailable: sums.unavailable + expected * (capacity - usable),
            idle_count: u64::from(self.idle_target.idle_count).max(forecast),
            retained_idle: kept,
            capacity,
            usable,
            scale_factor: self.idle_target.scale_factor,
            scale_factor_limit: u64::from(self.idle_target.scale_factor_limit),
        }
    }

    /// Instances on their way that jobs can have.
    pub(super) fn expected(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.expected_usable())).sum()
    }

    /// How long a new instance takes, as far as is known.
    pub(super) fn boot_time(&self) -> Duration {
        self.groups.iter().filter_map(|group| group.boot.fast).max().unwrap_or(Duration::from_secs(60))
    }

    fn create(&mut self, now: Now, mut missing: u64, inputs: Inputs) {
        let (all, mut passed) = (missing, Vec::new());
        for (id, hold) in self.scale_up_blocks(now) {
            match hold {
                // A moment later it can; the next group costs more.
                Some(ScaleUpBlock::Throttled) => break,
                Some(ScaleUpBlock::NotListedYet { error: None }) => break,
                Some(hold) => {
                    passed.push((id, hold));
                    continue;
                }
                None => {}
            }
            let n = self.request_size(now, id, missing);
            if n > 0 {
                let call = self.record_scale_up(now, id, n);
                self.decide(
                    now,
                    DecisionKind::ScaleUp { group: id, count: n, missing: all, inputs, passed: passed.clone() },
                );
                self.actions.push(Action::Increase { group: id, call, n });
                missing -= u64::from(n);
            }
            if missing == 0 {
                break;
            }
        }
        let held: Vec<(GroupId, ScaleUpBlock)> = if missing == 0 {
            Vec::new()
        } else {
            self.scale_up_blocks(now).into_iter().filter_map(|(group, hold)| Some((group, hold?))).collect()
        };
        let kinds = |held: &[(GroupId, ScaleUpBlock)]| -> Vec<_> {
            held.iter().map(|(group, hold)| (*group, std::mem::discriminant(hold))).collect()
        };
        if kinds(&held) != kinds(&self.blocked_groups) && !held.is_empty() {
            self.decide(now, DecisionKind::ScaleUpBlocked { missing, reasons: held.clone(), inputs });
        }
        self.blocked_groups = held;
    }

    /// Instances that the group can be asked for at this moment.
    pub(super) fn request_size(&mut self, now: Now, id: GroupId, missing: u64) -> u32 {
        let room = self.instance_headroom(id);
        let spend = self.cost_headroom(id);
        let Some(group) = self.groups.get_mut(id.0) else { return 0 };
        let tokens = group.creation_bucket.as_mut().map_or(u32::MAX, |bucket| bucket.available(now.at));
        let probe = if group.readiness.failures >= MAX_READINESS_FAILURES { 1 } else { u32::MAX };
        let bounds = [tokens, probe, group.max_request_size.unwrap_or(u32::MAX)];
        let n = bounds.into_iter().map(u64::from).chain([missing, room, spend]).min().unwrap_or(0);
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Takes a request into the books; its number.
    fn record_scale_up(&mut self, now: Now, id: GroupId, n: u32) -> u64 {
        let call = self.number();
        let Some(group) = self.groups.get_mut(id.0) else { return call };
        if let Some(bucket) = &mut group.creation_bucket {
            bucket.take(n);
        }
        group.calls.take(1);
        let ask = ScaleUpRequest {
            call,
            requested_at: now.at,
            requested_unix: now.unix,
            known: now,
            requested: n,
            outstanding: n,
            state: RequestState::Sent,
        };
        group.scale_ups.push_back(ask);
        self.mark_scale_up_dirty(id, call);
        call
    }

    /// Whether each group gives instances now, in the order in which they are asked.
    pub(super) fn scale_up_blocks(&mut self, now: Now) -> Vec<(GroupId, Option<ScaleUpBlock>)> {
        self.order.clone().into_iter().map(|group| (group, self.scale_up_block(now, group))).collect()
    }

    fn scale_up_block(&mut self, now: Now, id: GroupId) -> Option<ScaleUpBlock> {
        let (room, spend, coming, leaving) =
            (self.instance_headroom(id), self.cost_headroom(id), self.pool.starting(id), self.pool.deleting(id));
        let (stopping, spend_max) = (self.stopping, self.config.max_cost_per_hour);
        let stuck = if room == 0 { self.stuck_deletions(now, id) } else { StuckDeletions::default() };
        let group = self.groups.get_mut(id.0)?;
        if stopping {
            return Some(ScaleUpBlock::Stopping);
        }
        if let Some(by) = &group.drained {
            return Some(ScaleUpBlock::Drained { by: by.clone() });
        }
        if let Plugin::Down { cause } = &group.plugin {
            return Some(ScaleUpBlock::PluginDown { cause: cause.clone() });
        }
        if !group.listed {
            return Some(ScaleUpBlock::NotListedYet {
                error: group.list_schedule.failure().map(|(_, error)| error.to_owned()),
            });
        }
        if room == 0 {
            return Some(ScaleUpBlock::AtMax { max: group.max_instances().unwrap_or(0), deleting: leaving, stuck });
        }
        if group.out_of_stock {
            return Some(ScaleUpBlock::OutOfStock);
        }
        let unready = group.readiness.failures >= MAX_READINESS_FAILURES;
        for (backoff, counts) in [(&group.creation, true), (&group.readiness, unready)] {
            if counts && backoff.is_active(now.at) {
                let (error, failures) = (backoff.error.clone(), backoff.failures);
                return Some(ScaleUpBlock::BackOff { error, failures, pause: backoff.until.since(now.at) });
            }
        }
        if group.creation.failures > 0 && group.scale_ups.iter().any(|ask| ask.state == RequestState::Sent) {
            return Some(ScaleUpBlock::Probing { error: group.creation.error.clone() });
        }
        if unready && group.expected() + coming > 0 {
            return Some(ScaleUpBlock::Probing { error: group.readiness.error.clone() });
        }
        if now.at < group.partial_until {
            return Some(ScaleUpBlock::PartialGrant);
        }
        if spend_max.is_some() && !group.is_priced {
            return Some(ScaleUpBlock::PriceUnknown);
        }
        if spend == 0 {
            return Some(ScaleUpBlock::CostLimit { max_per_hour: spend_max.unwrap_or(0.0) });
        }
        let throttled = group.creation_bucket.as_mut().is_some_and(|bucket| bucket.available(now.at) == 0);
        (throttled || group.calls.available(now.at) == 0).then_some(ScaleUpBlock::Throttled)
    }

    /// Instances whose removal has taken so long that their places are not in sight.
    fn stuck_deletions(&self, now: Now, id: GroupId) -> StuckDeletions {
        let Some(group) = self.group(id) else { return StuckDeletions::default() };
        let limit = STUCK_AFTER.max(group.deletion.fast.unwrap_or_default() * 3);
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let Some(since) = now.at.as_millis().checked_sub(limit) else { return StuckDeletions::default() };
        let stuck = self.pool.removing_since(id, Time::from_millis(since));
        let first = stuck.first().and_then(|index| Some(self.pool.get(*index)?.id.clone()));
        StuckDeletions { count: u32::try_from(stuck.len()).unwrap_or(u32::MAX), first }
    }

    /// Instances that the group may have beside those that it has, and those that may yet appear.
    pub(super) fn instance_headroom(&self, id: GroupId) -> u64 {
        let Some(group) = self.group(id) else { return 0 };
        let Some(max) = group.max_instances() else { return UNBOUNDED };
        let there = self.pool.count(id) + group.unmanaged.len() + group.may_appear() as usize;
        u64::from(max).saturating_sub(there as u64)
    }

    /// Instances of the group that the bound on spending allows beside those that there are or may be.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not below 0")]
    fn cost_headroom(&self, id: GroupId) -> u64 {
        let (Some(max), Some(group)) = (self.config.max_cost_per_hour, self.group(id)) else { return UNBOUNDED };
        if group.config.price_per_hour <= 0.0 {
            return UNBOUNDED;
        }
        ((max - self.cost_per_hour()).max(0.0) / group.config.price_per_hour + 1e-9) as u64
    }

    /// What the instances cost per hour, with foreign ones and those that may yet appear.
    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    pub(super) fn cost_per_hour(&self) -> f64 {
        let costs = self.groups.iter().enumerate().map(|(index, group)| {
            let there = self.pool.count(GroupId(index)) + group.unmanaged.len() + group.may_appear() as usize;
            there as f64 * group.config.price_per_hour
        });
        costs.sum()
    }

    /// Removes instances that give up to `surplus` slots and were idle for long enough: the dearest groups first, then the
    /// longest idle.
    fn scale_down(&mut self, now: Now, mut surplus: u64) {
        if surplus == 0 {
            return;
        }
        let idle_time = self.idle_target.idle_time;
        for group in self.order.clone().into_iter().rev() {
            for (since, index) in self.pool.idle(group, now.at, idle_time, MAX_CANDIDATES) {
                let gives = self.pool.offered_slots(index);
                if gives > surplus {
                    continue;
                }
                let idle_ms = u64::try_from(now.at.since(since).as_millis()).unwrap_or(u64::MAX);
                self.delete(now, index, RemovalReason::Idle { idle_ms });
                surplus -= gives;
            }
        }
    }

    /// When the next instance has been idle for long enough. Promises do not keep one for longer than that.
    pub(super) fn idle_wake(&self, now: Now) -> Option<Time> {
        if self.stopping || formula::surplus(&Inputs { reserved: 0, ..self.inputs(now) }) == 0 {
            return None;
        }
        let groups = (0..self.groups.len()).map(GroupId);
        groups.filter_map(|group| self.pool.next_idle(group, now.at, self.idle_target.idle_time)).min()
    }

    /// A provider gave more than it said, or later than it should have: what no job holds goes.
    fn delete_above_max_instances(&mut self, now: Now) {
        for group in (0..self.groups.len()).map(GroupId) {
            let Some(max) = self.group(group).and_then(super::GroupState::max_instances) else { continue };
            let there = self.pool.count(group) - self.pool.deleting(group) as usize;
            for _ in max as usize..there {
                let idle: Option<(Time, pool::Index)> = self.pool.longest_idle(group);
                let Some((_, index)) = idle else { break };
                self.delete(now, index, RemovalReason::AboveMaxInstances);
            }
        }
    }

    /// What runs costs more than it may, since prices rose: what no job holds goes, the dearest groups first.
    fn delete_above_max_cost(&mut self, now: Now) {
        let Some(max) = self.config.max_cost_per_hour else { return };
        for group in self.order.clone().into_iter().rev() {
            let price = self.group(group).map_or(0.0, |group| group.config.price_per_hour);
            while price > 0.0 && self.cost_per_hour() - self.deleting_cost_per_hour() > max + 1e-9 {
                let Some((_, index)) = self.pool.longest_idle(group) else { break };
                self.delete(now, index, RemovalReason::AboveMaxCost);
            }
        }
    }

    /// What the instances cost that are being removed.
    fn deleting_cost_per_hour(&self) -> f64 {
        let groups = self.groups.iter().enumerate();
        groups.map(|(index, group)| f64::from(self.pool.deleting(GroupId(index))) * group.config.price_per_hour).sum()
    }

    /// Requests that have waited for too long for what they were granted.
    fn expire_scale_ups(&mut self, now: Now, id: GroupId) {
        let Some(group) = self.groups.get_mut(id.0) else { return };
        if !group.has_expired(now.at) {
            return;
        }
        let limit = group.creation_latencies.overdue_after(self.config.create_timeout).as_secs();
        let (overdue, changed) = group.expire_requests(now.at);
        for call in changed {
            self.mark_scale_up_dirty(id, call);
        }
        if overdue > 0 {
            self.creation_failed(now, id, format!("{overdue} granted instances did not appear within {limit} s"));
        }
    }

    /// A creation failed: the group is left alone for a while, and then asked for less.
    pub(super) fn creation_failed(&mut self, now: Now, id: GroupId, error: String) {
        let jitter = self.jitter();
        let Some(group) = self.groups.get_mut(id.0) else { return };
        let pause = group.creation.fail(now.at, error.clone(), jitter);
        let failures = group.creation.failures;
        self.decide(now, DecisionKind::CreationFailed { group: id, error, failures, pause });
    }

    /// The answer to a request for instances.
    pub(super) fn increased(&mut self, now: Now, id: GroupId, call: u64, result: Result<u32, String>) {
        let (deadline, short) = (self.config.create_timeout, self.config.update_interval_when_expecting);
        let Some(group) = self.group_mut(id) else { return };
        let Some(n) = group.answered(call, result.as_ref().ok().copied(), now.at, deadline).map(|ask| ask.requested)
        else {
            return;
        };
        self.mark_scale_up_dirty(id, call);
        let Some(group) = self.group_mut(id) else { return };
        let granted = result.as_ref().map_or(0, |granted| (*granted).min(n));
        match result {
            Ok(_) if granted > 0 => {
                group.creation.succeed();
                if granted < n {
                    // It gives as many as its own limit lets it: what comes up there in a pause is to be fetched soon.
                    group.partial_pause = match group.partial_pause {
                        Duration::ZERO => PARTIAL_PAUSE.min(short),
                        pause => (pause / 2).max(MIN_PARTIAL_PAUSE.min(short)),
                    };
                    group.partial_until = now.at + group.partial_pause;
                } else {
                    group.partial_pause = Duration::ZERO;
                    group.max_request_size =
                        group.max_request_size.map(|max| max.saturating_mul(2)).filter(|max| *max <= MAX_REQUEST_SIZE);
                }
                self.decide(now, DecisionKind::ScaleUpAccepted { group: id, requested: n, accepted: granted });
            }
            // It gave a moment ago, and was asked too soon.
            Ok(_) if group.partial_pause > Duration::ZERO && group.partial_pause < short => {
                group.partial_pause = (group.partial_pause * 2).min(short);
                group.partial_until = now.at + group.partial_pause;
                self.decide(now, DecisionKind::ScaleUpAccepted { group: id, requested: n, accepted: granted });
            }
            Ok(_) => self.creation_failed(now, id, format!("the provider granted none of {n} instances")),
            Err(error) => {
                group.max_request_size = Some((n / 2).max(1));
                self.creation_failed(now, id, error);
            }
        }
        let asks = self.group_mut(id).map(|group| &mut group.scale_ups);
        if let Some(asks) = asks {
            asks.retain(|ask| ask.outstanding > 0 || ask.state == RequestState::Sent);
        }
    }
}
