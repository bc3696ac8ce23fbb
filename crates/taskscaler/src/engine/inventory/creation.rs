//! Requests for instances, and the provider's answers.

use super::{Inventory, UNBOUNDED};
use crate::config::Config;
use crate::decision::{DecisionKind, ScaleUpBlock, StuckDeletions};
use crate::engine::creation_control::Acceptance;
use crate::engine::group::Plugin;
use crate::event::Action;
use crate::formula::Inputs;
use crate::time::Now;
use crate::types::GroupId;

/// Limits on creations that apply to all groups together.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct ScaleUpLimits {
    pub(in crate::engine) is_stopping: bool,
    pub(in crate::engine) max_cost_per_hour: Option<f64>,
}

impl Inventory {
    /// Returns what blocks the creation of instances in each group. The groups are in selection order.
    ///
    /// `None` means that the group can create instances.
    pub(in crate::engine) fn scale_up_blocks(
        &mut self,
        now: Now,
        limits: ScaleUpLimits,
    ) -> Vec<(GroupId, Option<ScaleUpBlock>)> {
        self.groups
            .ids_in_selection_order()
            .into_iter()
            .map(|group| (group, self.scale_up_block(now, group, limits)))
            .collect()
    }

    fn scale_up_block(&mut self, now: Now, id: GroupId, limits: ScaleUpLimits) -> Option<ScaleUpBlock> {
        let (headroom, cost_headroom) = (self.instance_headroom(id), self.cost_headroom(id, limits.max_cost_per_hour));
        let (starting, deleting) = (self.pool.starting_count(id), self.pool.deleting_count(id));
        let stuck = if headroom == 0 { self.stuck_deletions(now, id) } else { StuckDeletions::default() };
        let group = self.groups.get_mut(id)?;
        if limits.is_stopping {
            return Some(ScaleUpBlock::Stopping);
        }
        if let Some(by) = &group.drained {
            return Some(ScaleUpBlock::Drained { by: by.clone() });
        }
        if let Plugin::Down { cause } = &group.plugin {
            return Some(ScaleUpBlock::PluginDown { cause: cause.clone() });
        }
        if !group.is_listed {
            return Some(ScaleUpBlock::NotListedYet {
                error: group.list_calls.failure().map(|(_, error)| error.to_owned()),
            });
        }
        if headroom == 0 {
            let max = group.max_instances().unwrap_or(0);
            return Some(ScaleUpBlock::AtMax { max, unconfirmed: group.requests.unconfirmed(), deleting, stuck });
        }
        if group.is_out_of_stock {
            return Some(ScaleUpBlock::OutOfStock);
        }
        let starting = group.requests.expected() + starting;
        if let Some(block) = group.creation.failure_block(now.at, group.requests.has_unanswered(), starting) {
            return Some(block);
        }
        if let Some(max_per_hour) = limits.max_cost_per_hour {
            if !group.is_priced {
                return Some(ScaleUpBlock::PriceUnknown);
            }
            if cost_headroom == 0 {
                return Some(ScaleUpBlock::CostLimit { max_per_hour });
            }
        }
        group.creation.is_throttled(now.at).then_some(ScaleUpBlock::Throttled)
    }

    pub(in crate::engine) fn request_size(
        &mut self,
        now: Now,
        id: GroupId,
        missing: u64,
        limits: ScaleUpLimits,
    ) -> u32 {
        let headroom = self.instance_headroom(id).min(self.cost_headroom(id, limits.max_cost_per_hour));
        let Some(group) = self.groups.get_mut(id) else { return 0 };
        let count = missing.min(headroom).min(u64::from(group.creation.max_request(now.at)));
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the number of instances that could not be requested.
    pub(in crate::engine) fn request_instances(
        &mut self,
        now: Now,
        missing: u64,
        inputs: Inputs,
        limits: ScaleUpLimits,
    ) -> u64 {
        let (mut remaining, mut skipped) = (missing, Vec::new());
        for (id, block) in self.scale_up_blocks(now, limits) {
            match block {
                // This block ends soon. Waiting is better than a request to the next group, which may cost more.
                Some(ScaleUpBlock::Throttled | ScaleUpBlock::NotListedYet { error: None }) => break,
                Some(block) => {
                    skipped.push((id, block));
                    continue;
                }
                None => {}
            }
            let count = self.request_size(now, id, remaining, limits);
            if count > 0 {
                let call = self.record_request(now, id, count);
                let skipped = skipped.clone();
                self.record_decision(now, DecisionKind::ScaleUp { group: id, count, missing, inputs, skipped });
                self.push_action(Action::Increase { group: id, call, count });
                remaining -= u64::from(count);
            }
            if remaining == 0 {
                break;
            }
        }
        remaining
    }

    /// Returns the ID of the call.
    fn record_request(&mut self, now: Now, id: GroupId, count: u32) -> u64 {
        let call = self.allocate_number();
        if let Some(group) = self.groups.get_mut(id) {
            group.creation.record_request(count);
            group.requests.send(now, call, count);
            self.mark_requests_dirty(id, [call]);
        }
        call
    }

    /// `result` is the number of accepted instances.
    pub(in crate::engine) fn handle_increase_answer(
        &mut self,
        now: Now,
        config: &Config,
        id: GroupId,
        call: u64,
        result: Result<u32, String>,
    ) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let answer = result.as_ref().ok().copied();
        let Some(requested) = group.requests.answer(call, answer, now.at, config.create_timeout) else { return };
        let accepted = answer.unwrap_or(0).min(requested);
        let failure = match result {
            Ok(_) => {
                let longest_pause = config.update_interval_when_expecting;
                match group.creation.record_answer(now.at, requested, accepted, longest_pause) {
                    Acceptance::Creating => None,
                    Acceptance::Failed => {
                        Some(format!("the provider accepted none of the requested instances ({requested})"))
                    }
                }
            }
            Err(error) => {
                group.creation.halve_request_size(requested);
                Some(error)
            }
        };
        group.requests.remove_complete();
        self.mark_requests_dirty(id, [call]);
        match failure {
            None => self.record_decision(now, DecisionKind::ScaleUpAccepted { group: id, requested, accepted }),
            Some(error) => self.creation_failed(now, id, error),
        }
    }

    pub(in crate::engine) fn expire_requests(&mut self, now: Now, config: &Config, id: GroupId) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let list_started_at = group.list_calls.applied_list_started_at();
        let Some(expired) = group.requests.expire(now.at, list_started_at, config.create_timeout) else { return };
        self.mark_requests_dirty(id, expired.changed);
        if expired.overdue > 0 {
            let (count, limit) = (expired.overdue, expired.limit.as_secs());
            self.creation_failed(now, id, format!("accepted instances that did not appear within {limit} s: {count}"));
        }
    }

    fn creation_failed(&mut self, now: Now, id: GroupId, error: String) {
        let jitter = self.jitter();
        let Some(group) = self.groups.get_mut(id) else { return };
        let failure = group.creation.record_creation_failure(now.at, error.clone(), jitter);
        let (failures, pause) = (failure.failures, failure.pause);
        self.record_decision(now, DecisionKind::CreationFailed { group: id, error, failures, pause });
    }

    pub(in crate::engine) fn readiness_failed(&mut self, now: Now, id: GroupId, error: String) {
        let jitter = self.jitter();
        let Some(group) = self.groups.get_mut(id) else { return };
        let failure = group.creation.record_readiness_failure(now.at, error.clone(), jitter);
        let (failures, pause) = (failure.failures, failure.pause);
        self.record_decision(now, DecisionKind::CreationFailed { group: id, error, failures, pause });
    }

    /// Number of instances that boot, are expected, or can be requested now.
    pub(in crate::engine) fn instances_soon(&mut self, now: Now, limits: ScaleUpLimits) -> u64 {
        let (mut booting, mut possible) = (0, 0);
        for (id, block) in self.scale_up_blocks(now, limits) {
            let additional = match block {
                // A throttled group can request instances again in a moment.
                None | Some(ScaleUpBlock::Throttled) => u64::from(self.request_size(now, id, UNBOUNDED, limits)),
                Some(_) => 0,
            };
            let Some(group) = self.groups.get(id).filter(|group| group.creation.has_no_readiness_failures()) else {
                continue;
            };
            if let Some(
                ScaleUpBlock::Stopping
                | ScaleUpBlock::Drained { .. }
                | ScaleUpBlock::PluginDown { .. }
                | ScaleUpBlock::NotListedYet { .. },
            ) = block
            {
                continue;
            }
            booting += u64::from(self.pool.starting_count(id)) + u64::from(group.expected_usable());
            // If a provider recently failed, its possible instances do not count, because it may fail again. With a
            // cost limit, only those of the first group count, because they reduce the headroom of the others.
            let is_affordable = limits.max_cost_per_hour.is_none() || possible == 0;
            if group.creation.provider_accepts() && is_affordable {
                possible += additional;
            }
        }
        booting + possible
    }

    /// Number of slots without a job on the existing instances, plus those of the instances that are expected or can be
    /// requested.
    pub(in crate::engine) fn future_slots(
        &self,
        blocks: &[(GroupId, Option<ScaleUpBlock>)],
        slots_per_new_instance: u64,
    ) -> u64 {
        let totals = self.pool.totals();
        let existing = totals.supply * u64::from(self.pool.limits().capacity);
        let existing = existing.saturating_sub(totals.unavailable + totals.acquired);
        blocks.iter().fold(existing, |slots, (id, block)| {
            let expected = self.groups.get(*id).map_or(0, |group| u64::from(group.expected_usable()));
            let additional = match block {
                // Each completed deletion allows another instance.
                Some(ScaleUpBlock::AtMax { deleting, stuck, .. }) => u64::from(deleting.saturating_sub(stuck.count)),
                Some(ScaleUpBlock::Throttled | ScaleUpBlock::PartiallyAccepted) | None => self.instance_headroom(*id),
                // One attempt shows whether creations work again.
                Some(ScaleUpBlock::Probing { .. }) => 1,
                Some(_) => 0,
            };
            slots.saturating_add((expected + additional).saturating_mul(slots_per_new_instance))
        })
    }
}
