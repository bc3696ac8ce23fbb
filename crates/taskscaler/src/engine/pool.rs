//! All instances, with totals and sorted indexes.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use muster_fleeting::model::InstanceId;
use slab::Slab;

use super::instance::{Instance, InstanceLimits, InstancePhase, SlotTotals};
use super::metric_states::StateCounts;
use crate::policy::Placement;
use crate::time::Time;
use crate::types::{GroupId, StickyContextId, TriedInstance};

pub(super) type Index = usize;
/// Sort key of an instance with free slots: rank of its group, unassigned slots (`Pack`) or assigned slots (`Spread`),
/// sequence number, index. The smallest key is used first.
type SortKey = (usize, u32, u64, Index);

/// Maximum number of instances with the sticky context that are examined for a request.
const MAX_CONTEXT_CANDIDATES: usize = 32;

/// Totals over all instances. The fields are those of [`SlotTotals`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PoolTotals {
    pub(super) supply: u64,
    pub(super) acquired: u64,
    pub(super) unavailable: u64,
    pub(super) free: u64,
    pub(super) assigned: u64,
}

impl PoolTotals {
    pub(super) fn add(&mut self, part: SlotTotals) {
        self.supply += u64::from(part.supply);
        self.acquired += u64::from(part.acquired);
        self.unavailable += u64::from(part.unavailable);
        self.free += u64::from(part.free);
        self.assigned += u64::from(part.assigned);
    }

    fn subtract(&mut self, part: SlotTotals) {
        self.supply -= u64::from(part.supply);
        self.acquired -= u64::from(part.acquired);
        self.unavailable -= u64::from(part.unavailable);
        self.free -= u64::from(part.free);
        self.assigned -= u64::from(part.assigned);
    }
}

#[derive(Debug, Default)]
struct GroupPool {
    by_id: HashMap<InstanceId, Index>,
    /// Idle instances, by the time since which they are idle.
    idle: BTreeSet<(Time, Index)>,
    /// Instances whose change the next list may show, by the time when the change began. Excludes deletions.
    arriving: BTreeSet<(Time, Index)>,
    /// Instances that are being deleted, by the time when the deletion began.
    deleting: BTreeSet<(Time, Index)>,
    /// Number of instances that boot or are being prepared.
    starting: u32,
    /// Number of instances that are suspended, or being suspended or resumed.
    suspended: u32,
    /// Position of the group in the order of assignment.
    rank: usize,
}

#[derive(Debug)]
pub(super) struct Pool {
    all: Slab<Instance>,
    groups: Vec<GroupPool>,
    free: BTreeSet<SortKey>,
    /// Instances on which a job with a sticky context ran.
    by_context: HashMap<StickyContextId, BTreeSet<Index>>,
    due: BTreeSet<(Time, Index)>,
    totals: PoolTotals,
    states: StateCounts,
    placement: Placement,
    limits: InstanceLimits,
}

impl Pool {
    pub(super) fn new(limits: InstanceLimits, ranks: Vec<usize>) -> Self {
        let groups = ranks.into_iter().map(|rank| GroupPool { rank, ..GroupPool::default() }).collect();
        Self {
            all: Slab::new(),
            groups,
            free: BTreeSet::new(),
            by_context: HashMap::new(),
            due: BTreeSet::new(),
            totals: PoolTotals::default(),
            states: StateCounts::default(),
            placement: Placement::Pack,
            limits,
        }
    }

    pub(super) fn limits(&self) -> InstanceLimits {
        self.limits
    }

    pub(super) fn insert(&mut self, instance: Instance) -> Index {
        let (group, id) = (instance.group, instance.id.clone());
        let index = self.all.insert(instance);
        if let Some(group) = self.groups.get_mut(group.0) {
            group.by_id.insert(id, index);
        }
        for context in self.all.get(index).map(|instance| instance.contexts.clone()).unwrap_or_default() {
            self.by_context.entry(context).or_default().insert(index);
        }
        self.add_to_indexes(index);
        index
    }

    pub(super) fn remove(&mut self, index: Index) -> Option<Instance> {
        self.remove_from_indexes(index);
        let instance = self.all.try_remove(index)?;
        if let Some(group) = self.groups.get_mut(instance.group.0) {
            group.by_id.remove(&instance.id);
        }
        for context in &instance.contexts {
            self.remove_context(*context, index);
        }
        Some(instance)
    }

    fn remove_context(&mut self, context: StickyContextId, index: Index) {
        if let Some(instances) = self.by_context.get_mut(&context) {
            instances.remove(&index);
            if instances.is_empty() {
                self.by_context.remove(&context);
            }
        }
    }

    pub(super) fn has_context(&self, index: Index, context: StickyContextId) -> bool {
        self.all.get(index).is_some_and(|instance| instance.contexts.contains(&context))
    }

    /// Records that the instance has a context. If it then has more than `max_contexts`, the least recently used one is
    /// forgotten.
    pub(super) fn add_context(&mut self, index: Index, context: StickyContextId, max_contexts: usize) {
        let Some(instance) = self.all.get_mut(index) else { return };
        instance.contexts.retain(|other| *other != context);
        instance.contexts.push(context);
        let forgotten = if instance.contexts.len() > max_contexts { Some(instance.contexts.remove(0)) } else { None };
        self.by_context.entry(context).or_default().insert(index);
        if let Some(forgotten) = forgotten {
            self.remove_context(forgotten, index);
        }
    }

    /// Changes an instance, and updates the totals and indexes.
    pub(super) fn change<T>(&mut self, index: Index, change: impl FnOnce(&mut Instance) -> T) -> Option<T> {
        self.remove_from_indexes(index);
        let changed = self.all.get_mut(index).map(change);
        self.add_to_indexes(index);
        changed
    }

    pub(super) fn get(&self, index: Index) -> Option<&Instance> {
        self.all.get(index)
    }

    pub(super) fn find(&self, group: GroupId, id: &InstanceId) -> Option<Index> {
        self.groups.get(group.0)?.by_id.get(id).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Index, &Instance)> {
        self.all.iter()
    }

    /// Returns the instances of a group, in the order in which they were first seen.
    pub(super) fn of_group(&self, group: GroupId) -> Vec<Index> {
        self.select(group, |_| true)
    }

    /// Returns the instances of a group that are not in the list with this number, the first seen first.
    pub(super) fn unlisted(&self, group: GroupId, list: u64) -> Vec<Index> {
        self.select(group, |instance| instance.last_list != list)
    }

    fn select(&self, group: GroupId, is_selected: impl Fn(&Instance) -> bool) -> Vec<Index> {
        let of_group = self.groups.get(group.0).into_iter().flat_map(|group| group.by_id.values());
        let instances = of_group.filter_map(|index| Some((self.all.get(*index)?, *index)));
        let mut selected: Vec<(u64, Index)> = (instances.filter(|(instance, _)| is_selected(instance)))
            .map(|(instance, index)| (instance.sequence, index))
            .collect();
        selected.sort_unstable();
        selected.into_iter().map(|(_, index)| index).collect()
    }

    pub(super) fn count(&self, group: GroupId) -> usize {
        self.groups.get(group.0).map_or(0, |group| group.by_id.len())
    }

    pub(super) fn deleting_count(&self, group: GroupId) -> u32 {
        self.groups.get(group.0).map_or(0, |group| u32::try_from(group.deleting.len()).unwrap_or(u32::MAX))
    }

    /// Number of instances that boot or are being prepared.
    pub(super) fn starting_count(&self, group: GroupId) -> u32 {
        self.groups.get(group.0).map_or(0, |group| group.starting)
    }

    /// Includes instances that are being suspended or resumed.
    pub(super) fn suspended_count(&self, group: GroupId) -> u64 {
        self.groups.get(group.0).map_or(0, |group| u64::from(group.suspended))
    }

    /// Includes instances that are being suspended or resumed.
    pub(super) fn total_suspended(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.suspended)).sum()
    }

    pub(super) fn mark_listed(&mut self, index: Index, list: u64) {
        if let Some(instance) = self.all.get_mut(index) {
            instance.last_list = list;
        }
    }

    pub(super) fn totals(&self) -> PoolTotals {
        self.totals
    }

    pub(super) fn states(&self) -> &StateCounts {
        &self.states
    }

    /// Returns the instance on which a request should get its slots.
    ///
    /// Instances with the sticky context are preferred. The instance to avoid is used only if no other fits.
    pub(super) fn best(
        &self,
        slots: u32,
        context: Option<StickyContextId>,
        avoid: Option<TriedInstance>,
    ) -> Option<Index> {
        let is_tried = |index: Index| {
            avoid.is_some()
                && self.all.get(index).map(|instance| TriedInstance::from_instance_id(&instance.id)) == avoid
        };
        let with_context = context.and_then(|context| self.by_context.get(&context)).into_iter().flatten();
        let fits = |index: &&Index| self.all.get(**index).is_some_and(|instance| self.free_slots(instance) >= slots);
        let with_context = with_context.take(MAX_CONTEXT_CANDIDATES).filter(|index| !is_tried(**index));
        let sticky = with_context.filter(fits).filter_map(|index| {
            let instance = self.all.get(*index)?;
            Some(self.sort_key(*index, instance))
        });
        let sticky = sticky.min().map(|key| key.3);
        let any = |is_suitable: &dyn Fn(Index) -> bool| {
            let of_groups = self.groups.iter().filter_map(|group| self.best_of(group.rank, slots, is_suitable));
            of_groups.min().map(|key| key.3)
        };
        sticky.or_else(|| any(&|index| !is_tried(index))).or_else(|| any(&|_| true))
    }

    fn best_of(&self, group_rank: usize, slots: u32, is_suitable: &dyn Fn(Index) -> bool) -> Option<SortKey> {
        let (min, max) = match self.placement {
            Placement::Pack => (slots, u32::MAX),
            Placement::Spread => (0, self.limits.capacity.checked_sub(slots)?),
        };
        let fitting = (group_rank, min, 0, 0)..=(group_rank, max, u64::MAX, Index::MAX);
        self.free.range(fitting).find(|key| is_suitable(key.3)).copied()
    }

    /// Number of slots that one request can get now, on the instance where it can get the most.
    pub(super) fn max_fit(&self) -> u32 {
        let widest = self.groups.iter().filter_map(|group| {
            let all = (group.rank, 0, 0, 0)..=(group.rank, u32::MAX, u64::MAX, Index::MAX);
            let mut of_group = self.free.range(all);
            let key = match self.placement {
                Placement::Pack => of_group.next_back(),
                Placement::Spread => of_group.next(),
            };
            self.all.get(key?.3).map(|instance| self.free_slots(instance))
        });
        widest.max().unwrap_or(0)
    }

    /// Number of slots that one request can get now on an instance.
    ///
    /// A request counts as one use for all its slots, so the number of remaining uses does not limit it.
    fn free_slots(&self, instance: &Instance) -> u32 {
        let has_free = instance.slot_totals(self.limits).free > 0;
        if has_free { self.limits.capacity - instance.assigned_slots } else { 0 }
    }

    /// The instance that is likely to have `slots` free slots first: the one with the fewest assigned slots.
    pub(super) fn soonest(&self, slots: u32) -> Option<Index> {
        let fitting = self.all.iter().filter(|(_, instance)| instance.can_fit(slots, self.limits));
        fitting.min_by_key(|(_, instance)| (instance.assigned_slots, instance.sequence)).map(|(index, _)| index)
    }

    /// Returns the instance that has been idle the longest, and since when it is idle.
    pub(super) fn longest_idle(&self, group: GroupId) -> Option<(Time, Index)> {
        self.groups.get(group.0)?.idle.first().copied()
    }

    /// Returns up to `max` instances that have been idle for `idle_time`, the longest idle first, and since when they
    /// are idle.
    pub(super) fn idle(&self, group: GroupId, at: Time, idle_time: Duration, max: usize) -> Vec<(Time, Index)> {
        let idle = self.groups.get(group.0).into_iter().flat_map(|group| &group.idle);
        idle.take_while(|(since, _)| at.since(*since) >= idle_time).take(max).copied().collect()
    }

    /// When the next instance of a group will have been idle for `idle_time`.
    pub(super) fn next_idle(&self, group: GroupId, at: Time, idle_time: Duration) -> Option<Time> {
        // Instances that became idle earlier were handled before.
        let after = Time::from_millis((at.as_millis() + 1).saturating_sub(u64::try_from(idle_time.as_millis()).ok()?));
        let next = self.groups.get(group.0)?.idle.range((after, 0)..).next()?;
        Some(next.0 + idle_time).filter(|wake| *wake > at)
    }

    /// Number of slots of an instance that can be assigned now if each request is for one slot.
    ///
    /// Each request counts as one use, so the remaining uses limit the number.
    pub(super) fn offered_slots(&self, index: Index) -> u64 {
        let Some(instance) = self.all.get(index) else { return 0 };
        u64::from(instance.slot_totals(self.limits).free)
    }

    /// When the oldest and the newest of a group's expected changes began, except for deletions.
    pub(super) fn arrival_span(&self, group: GroupId) -> Option<(Time, Time)> {
        span(&self.groups.get(group.0)?.arriving)
    }

    /// Instances whose deletion began at `since` or earlier, the earliest first.
    pub(super) fn deleting_since(&self, group: GroupId, since: Time) -> Vec<Index> {
        let groups = self.groups.get(group.0).into_iter();
        groups.flat_map(|group| group.deleting.range(..=(since, Index::MAX))).map(|(_, index)| *index).collect()
    }

    /// When the oldest and the newest deletion began.
    pub(super) fn deletion_span(&self, group: GroupId) -> Option<(Time, Time)> {
        span(&self.groups.get(group.0)?.deleting)
    }

    pub(super) fn first_due(&self) -> Option<(Time, Index)> {
        self.due.first().copied()
    }

    pub(super) fn set_placement(&mut self, placement: Placement) {
        if placement != self.placement {
            self.reorder(|pool| pool.placement = placement);
        }
    }

    /// `ranks` has the rank of each group, in the order of the configuration.
    pub(super) fn set_ranks(&mut self, ranks: &[usize]) {
        self.reorder(|pool| {
            for (group, rank) in pool.groups.iter_mut().zip(ranks) {
                group.rank = *rank;
            }
        });
    }

    fn reorder(&mut self, change: impl FnOnce(&mut Self)) {
        let free: Vec<Index> = self.free.iter().map(|key| key.3).collect();
        self.free.clear();
        change(self);
        for index in free {
            if let Some(key) = self.all.get(index).map(|instance| self.sort_key(index, instance)) {
                self.free.insert(key);
            }
        }
    }

    fn sort_key(&self, index: Index, instance: &Instance) -> SortKey {
        let slots = match self.placement {
            Placement::Pack => self.limits.capacity.saturating_sub(instance.assigned_slots),
            Placement::Spread => instance.assigned_slots,
        };
        (self.groups.get(instance.group.0).map_or(0, |group| group.rank), slots, instance.sequence, index)
    }

    fn remove_from_indexes(&mut self, index: Index) {
        let Some(instance) = self.all.get(index) else { return };
        let part = instance.slot_totals(self.limits);
        self.totals.subtract(part);
        self.states.subtract(instance);
        if part.free > 0 {
            let key = self.sort_key(index, instance);
            self.free.remove(&key);
        }
        if let Some(due) = instance.due {
            self.due.remove(&(due, index));
        }
        if let Some(group) = self.groups.get_mut(instance.group.0) {
            if is_idle(instance) {
                group.idle.remove(&(instance.idle_since, index));
            }
            if let Some(changes) = group.expected_changes(instance) {
                changes.remove(&(instance.change_expected_since(), index));
            }
            group.starting -= u32::from(is_starting(instance));
            group.suspended -= u32::from(is_suspended(instance));
        }
    }

    fn add_to_indexes(&mut self, index: Index) {
        let Some(instance) = self.all.get(index) else { return };
        let part = instance.slot_totals(self.limits);
        self.totals.add(part);
        self.states.add(instance);
        if part.free > 0 {
            let key = self.sort_key(index, instance);
            self.free.insert(key);
        }
        if let Some(due) = instance.due {
            self.due.insert((due, index));
        }
        if let Some(group) = self.groups.get_mut(instance.group.0) {
            if is_idle(instance) {
                group.idle.insert((instance.idle_since, index));
            }
            if let Some(changes) = group.expected_changes(instance) {
                changes.insert((instance.change_expected_since(), index));
            }
            group.starting += u32::from(is_starting(instance));
            group.suspended += u32::from(is_suspended(instance));
        }
    }
}

impl GroupPool {
    fn expected_changes(&mut self, instance: &Instance) -> Option<&mut BTreeSet<(Time, Index)>> {
        match instance.phase {
            InstancePhase::Deleting(_) => Some(&mut self.deleting),
            _ if instance.expects_change() => Some(&mut self.arriving),
            _ => None,
        }
    }
}

fn span(times: &BTreeSet<(Time, Index)>) -> Option<(Time, Time)> {
    Some((times.first()?.0, times.last()?.0))
}

fn is_starting(instance: &Instance) -> bool {
    matches!(instance.phase, InstancePhase::Booting | InstancePhase::Preparing)
}

fn is_suspended(instance: &Instance) -> bool {
    matches!(instance.phase, InstancePhase::Suspended(_))
}

fn is_idle(instance: &Instance) -> bool {
    instance.phase == InstancePhase::Ready && instance.assigned_slots == 0
}
