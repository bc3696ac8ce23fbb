//! All instance groups, and the order in which they are used.

use std::time::Duration;

use super::group::GroupState;
use crate::config::{GroupConfig, GroupSelection};
use crate::decision::ScaleUpBlock;
use crate::time::Time;
use crate::types::GroupId;

/// Assumed boot time until a boot has been observed.
const DEFAULT_BOOT_TIME: Duration = Duration::from_secs(60);

/// All instance groups.
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

    /// Returns all groups in the order of the configuration.
    pub(super) fn iter(&self) -> impl Iterator<Item = (GroupId, &GroupState)> {
        self.all.iter().enumerate().map(|(index, group)| (GroupId(index), group))
    }

    /// Returns the IDs of all groups in the order of the configuration.
    pub(super) fn ids(&self) -> impl DoubleEndedIterator<Item = GroupId> + use<> {
        (0..self.all.len()).map(GroupId)
    }

    /// Returns the IDs of all groups in the order in which instances are requested from them.
    pub(super) fn in_order(&self) -> Vec<GroupId> {
        self.order.clone()
    }

    /// Returns the position of each group in [`Self::in_order`].
    pub(super) fn ranks(&self) -> Vec<usize> {
        let mut ranks = vec![0; self.all.len()];
        for (rank, group) in self.order.iter().enumerate() {
            if let Some(group_rank) = ranks.get_mut(group.0) {
                *group_rank = rank;
            }
        }
        ranks
    }

    /// Returns the group of this name.
    pub(super) fn find(&self, name: &str) -> Option<GroupId> {
        self.all.iter().position(|group| group.config.name == name).map(GroupId)
    }

    /// Returns the name of a group. Empty if the group does not exist.
    pub(super) fn name(&self, id: GroupId) -> String {
        self.get(id).map_or_else(String::new, |group| group.config.name.clone())
    }

    /// Returns the blocks with the names of their groups.
    pub(super) fn with_names(
        &self,
        blocks: impl IntoIterator<Item = (GroupId, ScaleUpBlock)>,
    ) -> Vec<(String, ScaleUpBlock)> {
        blocks.into_iter().map(|(group, block)| (self.name(group), block)).collect()
    }

    /// Sets the price of a group's instances. Returns whether [`Self::ranks`] must be applied again.
    ///
    /// Ignores prices that are negative or not finite.
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

    /// Price per hour of an instance of the group. 0 if it is unknown.
    pub(super) fn price(&self, id: GroupId) -> f64 {
        self.get(id).map_or(0.0, |group| group.config.price_per_hour)
    }

    /// Price per hour of an instance of the cheapest group. 0 if the price of a group is unknown.
    pub(super) fn lowest_price(&self) -> f64 {
        self.all.iter().map(|group| group.config.price_per_hour).reduce(f64::min).unwrap_or_default()
    }

    /// Number of requested instances that jobs will be able to use.
    pub(super) fn expected_usable(&self) -> u64 {
        self.all.iter().map(|group| u64::from(group.expected_usable())).sum()
    }

    /// Typical time until a new instance is running, in the slowest group.
    pub(super) fn boot_time(&self) -> Duration {
        self.all.iter().filter_map(|group| group.boot.fastest).max().unwrap_or(DEFAULT_BOOT_TIME)
    }

    /// Maximum number of instances of all groups together. `None` means no limit.
    pub(super) fn max_instances(&self) -> Option<u64> {
        self.all.iter().map(|group| group.max_instances().map(u64::from)).sum()
    }
}

/// Returns the groups in the order in which instances are requested from them.
fn order(selection: GroupSelection, groups: &[GroupState]) -> Vec<GroupId> {
    let mut order: Vec<GroupId> = (0..groups.len()).map(GroupId).collect();
    if selection == GroupSelection::Price {
        let price = |group: &GroupId| groups.get(group.0).map_or(0.0, |group| group.config.price_per_hour);
        order.sort_by(|one, other| price(one).total_cmp(&price(other)));
    }
    order
}
