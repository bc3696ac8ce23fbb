//! All instance groups, and the order in which they are used.

use std::time::Duration;

use super::group::GroupState;
use crate::config::{GroupConfig, GroupSelection};
use crate::decision::ScaleUpBlock;
use crate::time::Time;
use crate::types::GroupId;

/// Assumed boot time until a boot has been observed.
const DEFAULT_BOOT_TIME: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Groups {
    all: Vec<GroupState>,
    /// Groups in the order in which instances are requested from them.
    order: Vec<GroupId>,
    selection: GroupSelection,
}

impl Groups {
    pub(super) fn new(configs: &[GroupConfig], selection: GroupSelection, at: Time) -> Self {
        let all: Vec<GroupState> = configs.iter().map(|config| GroupState::new(config.clone(), at)).collect();
        let order = order(selection, &all);
        Self { all, order, selection }
    }

    pub(super) fn get(&self, id: GroupId) -> Option<&GroupState> {
        self.all.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: GroupId) -> Option<&mut GroupState> {
        self.all.get_mut(id.0)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// In the order of the configuration.
    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupId, &GroupState)> {
        self.all.iter().enumerate().map(|(index, group)| (GroupId(index), group))
    }

    /// In the order of the configuration.
    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = GroupId> + use<> {
        (0..self.all.len()).map(GroupId)
    }

    pub(super) fn ids_in_selection_order(&self) -> Vec<GroupId> {
        self.order.clone()
    }

    /// Position of each group in the selection order.
    pub(super) fn ranks(&self) -> Vec<usize> {
        let mut ranks = vec![0; self.all.len()];
        for (rank, group) in self.order.iter().enumerate() {
            if let Some(group_rank) = ranks.get_mut(group.0) {
                *group_rank = rank;
            }
        }
        ranks
    }

    pub(super) fn find(&self, name: &str) -> Option<GroupId> {
        self.all.iter().position(|group| group.config.name == name).map(GroupId)
    }

    /// Empty if the group does not exist.
    pub(super) fn name(&self, id: GroupId) -> String {
        self.get(id).map_or_else(String::new, |group| group.config.name.clone())
    }

    pub(super) fn with_names(
        &self,
        blocks: impl IntoIterator<Item = (GroupId, ScaleUpBlock)>,
    ) -> Vec<(String, ScaleUpBlock)> {
        blocks.into_iter().map(|(group, block)| (self.name(group), block)).collect()
    }

    /// Ignores invalid prices. Returns whether the order of the groups may have changed.
    pub(super) fn set_price(&mut self, id: GroupId, per_hour: f64) -> bool {
        let Some(group) = self.get_mut(id).filter(|_| per_hour.is_finite() && per_hour >= 0.0) else { return false };
        group.is_priced = true;
        if group.config.price_per_hour.total_cmp(&per_hour).is_eq() {
            return false;
        }
        group.config.price_per_hour = per_hour;
        self.order = order(self.selection, &self.all);
        true
    }

    /// 0 means unknown.
    pub(super) fn price(&self, id: GroupId) -> f64 {
        self.get(id).map_or(0.0, |group| group.config.price_per_hour)
    }

    /// Price of the cheapest group. 0 if any group's price is unknown.
    pub(super) fn lowest_price(&self) -> f64 {
        self.all.iter().map(|group| group.config.price_per_hour).reduce(f64::min).unwrap_or_default()
    }

    pub(super) fn expected_usable(&self) -> u64 {
        self.all.iter().map(|group| u64::from(group.expected_usable())).sum()
    }

    /// Typical boot time of the slowest group.
    pub(super) fn boot_time(&self) -> Duration {
        self.all.iter().filter_map(|group| group.boot.fastest).max().unwrap_or(DEFAULT_BOOT_TIME)
    }

    /// `None` means no limit.
    pub(super) fn max_instances(&self) -> Option<u64> {
        self.all.iter().map(|group| group.max_instances().map(u64::from)).sum()
    }
}

fn order(selection: GroupSelection, groups: &[GroupState]) -> Vec<GroupId> {
    let mut order: Vec<GroupId> = (0..groups.len()).map(GroupId).collect();
    if selection == GroupSelection::Price {
        let price = |group: &GroupId| groups.get(group.0).map_or(0.0, |group| group.config.price_per_hour);
        order.sort_by(|one, other| price(one).total_cmp(&price(other)));
    }
    order
}
