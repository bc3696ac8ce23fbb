//! Groups and their instances, whose changes are recorded for the ledger and the history.
//!
//! The inventory does not know leases. A method that finds that an instance must be deleted returns the reason, and the
//! caller first ends the leases.

mod creation;
mod instances;
mod operator;

use muster_fleeting::model::InstanceId;

use super::groups::Groups;
use super::instance::{Instance, InstanceLimits};
use super::outbox::Outbox;
use super::pool::{Index, Pool};
use crate::config::Config;
use crate::decision::{DecisionKind, StuckDeletions};
use crate::event::Action;
use crate::ledger::{Row, RowKey};
use crate::throttle::splitmix64;
use crate::time::{Now, Time, milliseconds};
use crate::types::GroupId;

pub(super) use self::creation::ScaleUpLimits;

/// Headroom of a group without a limit.
pub(super) const UNBOUNDED: u64 = 1_000_000_000;
/// Time after which a deletion counts as stuck. Three times the usual duration is used if that is longer.
const STUCK_AFTER: std::time::Duration = std::time::Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) groups: Groups,
    pub(super) pool: Pool,
    pub(super) outbox: Outbox,
    next_number: u64,
    jitter_seed: u64,
}

impl Inventory {
    pub(super) fn new(config: &Config, now: Now) -> Self {
        let groups = Groups::new(&config.groups, config.group_selection, now.at);
        let max_uses = config.max_uses.map(std::num::NonZeroU32::get);
        let limits = InstanceLimits { capacity: config.capacity.get(), max_uses };
        let pool = Pool::new(limits, groups.ranks());
        Self { groups, pool, outbox: Outbox::default(), next_number: 1, jitter_seed: config.jitter_seed }
    }

    pub(super) fn allocate_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Skips the numbers below `next`, which were used before a restart.
    pub(super) fn skip_numbers_to(&mut self, next: u64) {
        self.next_number = self.next_number.max(next);
    }

    /// Returns a pseudorandom number, which is reproducible with the same seed.
    pub(super) fn jitter(&mut self) -> u64 {
        let number = self.allocate_number();
        splitmix64(self.jitter_seed ^ number)
    }

    pub(super) fn push_action(&mut self, action: Action) {
        self.outbox.push_action(action);
    }

    pub(super) fn record_decision(&mut self, now: Now, kind: DecisionKind) {
        self.outbox.record_decision(now, kind);
    }

    pub(super) fn identity(&self, index: Index) -> Option<(GroupId, InstanceId)> {
        self.pool.get(index).map(|instance| (instance.group, instance.id.clone()))
    }

    pub(super) fn is_plugin_down(&self, index: Index) -> bool {
        let group = self.pool.get(index).and_then(|instance| self.groups.get(instance.group));
        group.is_some_and(super::group::GroupState::is_plugin_down)
    }

    pub(super) fn list_now(&mut self, now: Now, group: GroupId) {
        if let Some(group) = self.groups.get_mut(group) {
            group.list_calls.request_at(now.at);
        }
    }

    pub(super) fn remove(&mut self, now: Now, index: Index) {
        let Some(instance) = self.pool.remove(index) else { return };
        let (deletion, lifetime) = (instance.deletion_time(now.at), now.at.since(instance.first_seen));
        let Instance { group, id, .. } = instance;
        if let Some(group) = self.groups.get_mut(group) {
            group.record_deleted(id.clone(), now, deletion);
        }
        self.mark_id_dirty(group, &id);
        self.record_decision(now, DecisionKind::Deleted { group, id: id.clone(), lifetime, deletion });
        self.push_action(Action::ForgetInstance { group, id });
    }

    pub(super) fn mark_dirty(&mut self, index: Index) {
        if let Some((group, id)) = self.identity(index) {
            self.mark_id_dirty(group, &id);
        }
    }

    pub(super) fn mark_id_dirty(&mut self, group: GroupId, id: &InstanceId) {
        let id = id.as_str().to_owned();
        self.mark_group_row(group, |group| RowKey::Deleted { group, id: id.clone() });
        self.mark_group_row(group, |group| RowKey::Instance { group, id });
    }

    pub(super) fn mark_unmanaged_dirty(&mut self, group: GroupId, id: &InstanceId) {
        self.mark_group_row(group, |group| RowKey::Unmanaged { group, id: id.as_str().to_owned() });
    }

    pub(super) fn mark_requests_dirty(&mut self, group: GroupId, calls: impl IntoIterator<Item = u64>) {
        for call in calls {
            self.mark_group_row(group, |group| RowKey::ScaleUp { group, call });
        }
    }

    fn mark_group_row(&mut self, id: GroupId, row: impl FnOnce(String) -> RowKey) {
        if let Some(group) = self.groups.get(id) {
            self.outbox.mark_dirty([row(group.config.name.clone())]);
        }
    }

    /// `None` if the row does not exist, or belongs to no group.
    pub(super) fn row(&self, key: &RowKey) -> Option<Row> {
        let id = self.groups.find(key.group()?)?;
        let group = self.groups.get(id)?;
        match key {
            RowKey::Instance { id: instance, .. } => {
                let index = self.pool.find(id, &InstanceId::new(instance.clone()))?;
                self.pool.get(index).map(Instance::row)
            }
            RowKey::ScaleUp { call, .. } => group.requests.row(*call),
            RowKey::Deleted { id, .. } => {
                let deleted_at = group.deleted.deleted_at(&InstanceId::new(id.clone()))?;
                Some(Row::Deleted { deleted_at })
            }
            RowKey::Unmanaged { id, .. } => {
                let first_seen_at = group.unmanaged.first_seen_unix(&InstanceId::new(id.clone()))?;
                Some(Row::Unmanaged { first_seen_at })
            }
            RowKey::DrainedGroup { .. } => Some(Row::DrainedGroup { by: group.drained.clone()? }),
            RowKey::JobKind(_) | RowKey::ForecastIdle { .. } | RowKey::SlotDemand { .. } => None,
        }
    }

    /// Number of instances that boot, are being prepared, or are requested.
    pub(super) fn booting(&self) -> u64 {
        let starting = self.groups.ids().map(|group| u64::from(self.pool.starting_count(group)));
        self.groups.expected_usable() + starting.sum::<u64>()
    }

    /// Number of instances that exist or may appear.
    fn count(&self, id: GroupId) -> usize {
        self.pool.count(id) + self.groups.get(id).map_or(0, super::group::GroupState::outside_pool)
    }

    pub(super) fn instance_headroom(&self, id: GroupId) -> u64 {
        let Some(group) = self.groups.get(id) else { return 0 };
        let Some(max) = group.max_instances() else { return UNBOUNDED };
        u64::from(max).saturating_sub(self.count(id) as u64)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not below 0")]
    pub(super) fn cost_headroom(&self, id: GroupId, max_cost_per_hour: Option<f64>) -> u64 {
        let price = self.groups.price(id);
        match max_cost_per_hour {
            Some(max) if price > 0.0 => ((max - self.cost_per_hour()).max(0.0) / price + 1e-9) as u64,
            _ => UNBOUNDED,
        }
    }

    /// Includes unmanaged instances, and instances that may appear.
    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    pub(super) fn cost_per_hour(&self) -> f64 {
        self.groups.ids().map(|id| self.count(id) as f64 * self.groups.price(id)).sum()
    }

    pub(super) fn deleting_cost_per_hour(&self) -> f64 {
        self.groups.ids().map(|id| f64::from(self.pool.deleting_count(id)) * self.groups.price(id)).sum()
    }

    /// Cost per hour of the suspended instances, of one more suspended instance in the group `additional`, and of one
    /// instance at the lowest price, which must stay affordable for other jobs.
    ///
    /// Suspended instances count with their full price, because each may run again at any time.
    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    pub(super) fn suspended_cost_per_hour(&self, additional: Option<GroupId>) -> f64 {
        let suspended = self.groups.ids().map(|id| self.pool.suspended_count(id) as f64 * self.groups.price(id));
        suspended.sum::<f64>() + additional.map_or(0.0, |id| self.groups.price(id)) + self.groups.lowest_price()
    }

    fn stuck_deletions(&self, now: Now, id: GroupId) -> StuckDeletions {
        let Some(group) = self.groups.get(id) else { return StuckDeletions::default() };
        let stuck_after = STUCK_AFTER.max(group.deletion.fastest.unwrap_or_default() * 3);
        let stuck_after = milliseconds(stuck_after);
        let Some(since) = now.at.as_millis().checked_sub(stuck_after) else { return StuckDeletions::default() };
        let stuck = self.pool.deleting_since(id, Time::from_millis(since));
        let first = stuck.first().and_then(|index| Some(self.pool.get(*index)?.id.clone()));
        StuckDeletions { count: u32::try_from(stuck.len()).unwrap_or(u32::MAX), first }
    }
}
