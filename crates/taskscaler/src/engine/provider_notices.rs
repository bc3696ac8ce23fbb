//! What a group's plugin tells by itself: prices, stock, and instances that are not to be used any more.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::group::GroupState;
use crate::config::GroupSelection;
use crate::time::Now;
use crate::types::{GroupId, RemovalReason};

/// An instance that is disowned before it is listed is known so for this long,
const EARLY_RETIREMENT_TTL: Duration = Duration::from_secs(600);
/// and so many at most.
const MAX_EARLY_RETIREMENTS: usize = 1000;

/// The groups in the order in which they are asked, and each group's rank in it.
pub(super) fn order(by: GroupSelection, groups: &[GroupState]) -> (Vec<GroupId>, Vec<usize>) {
    let mut order: Vec<GroupId> = (0..groups.len()).map(GroupId).collect();
    if by == GroupSelection::Price {
        let price = |group: &GroupId| groups.get(group.0).map_or(0.0, |group| group.config.price_per_hour);
        order.sort_by(|one, other| price(one).total_cmp(&price(other)));
    }
    let mut ranks = vec![0; groups.len()];
    for (rank, group) in order.iter().enumerate() {
        if let Some(place) = ranks.get_mut(group.0) {
            *place = rank;
        }
    }
    (order, ranks)
}

impl Engine {
    /// The instance gets no more jobs; those that it has may end before. Without a job it goes at once.
    pub(super) fn retire_instance(&mut self, now: Now, group: GroupId, id: &InstanceId, why: String) {
        if let Some(index) = self.pool.find(group, id) {
            return self.drain_or_delete(now, index, RemovalReason::Retired { reason: why });
        }
        // It may be listed in a moment.
        if let Some(group) = self.group_mut(group) {
            group.retired_early.retain(|_, (since, _)| now.at.since(*since) < EARLY_RETIREMENT_TTL);
            if group.retired_early.len() < MAX_EARLY_RETIREMENTS {
                group.retired_early.insert(id.clone(), (now.at, why));
            }
        }
    }

    /// Instances that were disowned before they were known.
    pub(super) fn retire_known(&mut self, now: Now, id: GroupId) {
        let Some(group) = self.group(id) else { return };
        let known = |name: &&InstanceId| self.pool.find(id, name).is_some();
        let known: Vec<InstanceId> = group.retired_early.keys().filter(known).cloned().collect();
        for name in known {
            let told = self.group_mut(id).and_then(|group| group.retired_early.remove(&name));
            if let (Some((_, why)), Some(index)) = (told, self.pool.find(id, &name)) {
                self.drain_or_delete(now, index, RemovalReason::Retired { reason: why });
            }
        }
    }

    /// A price that is no number, or below nothing, is none.
    pub(super) fn set_price(&mut self, group: GroupId, per_hour: f64) {
        let Some(group) = self.group_mut(group).filter(|_| per_hour.is_finite() && per_hour >= 0.0) else { return };
        group.is_priced = true;
        if group.config.price_per_hour.total_cmp(&per_hour).is_ne() {
            group.config.price_per_hour = per_hour;
            let (order, ranks) = order(self.config.group_selection, &self.groups);
            self.order = order;
            self.pool.set_ranks(&ranks);
        }
    }

    pub(super) fn set_stock(&mut self, group: GroupId, available: bool) {
        if let Some(group) = self.group_mut(group) {
            group.out_of_stock = !available;
        }
    }
}
