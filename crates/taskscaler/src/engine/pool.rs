//! All instances, with the sums and orders over them. Each change goes through [`Pool::change`], so that they agree.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use muster_fleeting::model::InstanceId;
use slab::Slab;

use super::instance::{Instance, InstancePhase, SlotTotals};
use super::machine::{CREATING, MACHINES, machine};
use super::suspend::SuspendState;
use crate::policy::Placement;
use crate::time::Time;
use crate::types::{GroupId, StickyContextId, TriedInstance};

/// Where an instance is in the pool.
pub(super) type Index = usize;
/// The order in which free slots are given: the group's rank, then by how full the instance is, then by its age.
type Rank = (usize, u32, u64, Index);

/// Instances with a sticky context that are looked at for one request.
const MAX_CONTEXT_CANDIDATES: usize = 32;

/// Sums over instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PoolTotals {
    pub(super) supply: u64,
    pub(super) acquired: u64,
    pub(super) unavailable: u64,
    pub(super) free: u64,
    pub(super) held: u64,
}

impl PoolTotals {
    pub(super) fn add(&mut self, part: SlotTotals) {
        self.supply += u64::from(part.supply);
        self.acquired += u64::from(part.acquired);
        self.unavailable += u64::from(part.unavailable);
        self.free += u64::from(part.free);
        self.held += u64::from(part.held);
    }

    fn subtract(&mut self, part: SlotTotals) {
        self.supply -= u64::from(part.supply);
        self.acquired -= u64::from(part.acquired);
        self.unavailable -= u64::from(part.unavailable);
        self.free -= u64::from(part.free);
        self.held -= u64::from(part.held);
    }
}

/// Of one group.
#[derive(Debug, Default)]
struct GroupPool {
    by_id: HashMap<InstanceId, Index>,
    /// Ready and without a job, the longest idle first.
    idle: BTreeSet<(Time, Index)>,
    /// Instances that are not removed, and that the next snapshot may bring news of, by when that began.
    arriving: BTreeSet<(Time, Index)>,
    /// Instances that are being removed, by when that began.
    deleting: BTreeSet<(Time, Index)>,
    /// Instances that boot or are made ready.
    starting: u32,
    /// Instances that are suspended for a later job, or are on the way there and back.
    suspended: u32,
    rank: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Pool {
    all: Slab<Instance>,
    groups: Vec<GroupPool>,
    free: BTreeSet<Rank>,
    /// Which instances have a sticky context.
    by_context: HashMap<StickyContextId, BTreeSet<Index>>,
    due: BTreeSet<(Time, Index)>,
    sums: PoolTotals,
    by_state: [u64; STATES.len()],
    machines: [u64; MACHINES.len()],
    placement: Placement,
    capacity: u32,
    uses_max: Option<u32>,
}

impl Pool {
    /// An empty pool of groups with these ranks.
    pub(super) fn new(capacity: u32, uses_max: Option<u32>, ranks: Vec<usize>) -> Self {
        let of = ranks.into_iter().map(|rank| GroupPool { rank, ..GroupPool::default() }).collect();
        Self {
            all: Slab::new(),
            groups: of,
            free: BTreeSet::new(),
            by_context: HashMap::new(),
            due: BTreeSet::new(),
            sums: PoolTotals::default(),
            by_state: [0; STATES.len()],
            machines: [0; MACHINES.len()],
            placement: Placement::Pack,
            capacity,
            uses_max,
        }
    }

    pub(super) fn insert(&mut self, instance: Instance) -> Index {
        let (group, id) = (instance.group, instance.id.clone());
        let index = self.all.insert(instance);
        if let Some(of) = self.groups.get_mut(group.0) {
            of.by_id.insert(id, index);
        }
        for context in self.all.get(index).map(|instance| instance.contexts.clone()).unwrap_or_default() {
            self.by_context.entry(context).or_default().insert(index);
        }
        self.index(index);
        index
    }

    pub(super) fn remove(&mut self, index: Index) -> Option<Instance> {
        self.unindex(index);
        let instance = self.all.try_remove(index)?;
        if let Some(of) = self.groups.get_mut(instance.group.0) {
            of.by_id.remove(&instance.id);
        }
        for context in &instance.contexts {
            self.remove_context(*context, index);
        }
        Some(instance)
    }

    fn remove_context(&mut self, context: StickyContextId, index: Index) {
        if let Some(holders) = self.by_context.get_mut(&context) {
            holders.remove(&index);
            if holders.is_empty() {
                self.by_context.remove(&context);
            }
        }
    }

    /// Whether the instance has a sticky context.
    pub(super) fn has_context(&self, index: Index, context: StickyContextId) -> bool {
        self.all.get(index).is_some_and(|instance| instance.contexts.contains(&context))
    }

    /// The instance has a sticky context from now on; it is known for the last `most` of them.
    pub(super) fn add_context(&mut self, index: Index, context: StickyContextId, most: usize) {
        let Some(instance) = self.all.get_mut(index) else { return };
        instance.contexts.retain(|other| *other != context);
        instance.contexts.push(context);
        let forgotten = if instance.contexts.len() > most { Some(instance.contexts.remove(0)) } else { None };
        self.by_context.entry(context).or_default().insert(index);
        if let Some(forgotten) = forgotten {
            self.remove_context(forgotten, index);
        }
    }

    /// The one way to change an instance.
    pub(super) fn change<T>(&mut self, index: Index, change: impl FnOnce(&mut Instance) -> T) -> Option<T> {
        self.unindex(index);
        let changed = self.all.get_mut(index).map(change);
        self.index(index);
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

    /// Those of a group, in the order in which they were seen first.
    pub(super) fn of_group(&self, group: GroupId) -> Vec<Index> {
        self.chosen(group, |_| true)
    }

    /// Those of a group that the list of this number did not have, in the order in which they were seen first.
    pub(super) fn unlisted(&self, group: GroupId, list: u64) -> Vec<Index> {
        self.chosen(group, |instance| instance.listed != list)
    }

    fn chosen(&self, group: GroupId, is_chosen: impl Fn(&Instance) -> bool) -> Vec<Index> {
        let of_group = self.groups.get(group.0).into_iter().flat_map(|of| of.by_id.values());
        let instances = of_group.filter_map(|index| Some((self.all.get(*index)?, *index)));
        let mut found: Vec<(u64, Index)> =
            instances.filter(|(instance, _)| is_chosen(instance)).map(|(one, index)| (one.sequence, index)).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, index)| index).collect()
    }

    /// Instances of a group in any state.
    pub(super) fn count(&self, group: GroupId) -> usize {
        self.groups.get(group.0).map_or(0, |of| of.by_id.len())
    }

    /// Of those, the ones that are being removed.
    pub(super) fn deleting(&self, group: GroupId) -> u32 {
        self.groups.get(group.0).map_or(0, |of| u32::try_from(of.deleting.len()).unwrap_or(u32::MAX))
    }

    /// Of those, the ones that boot or are made ready.
    pub(super) fn starting(&self, group: GroupId) -> u32 {
        self.groups.get(group.0).map_or(0, |of| of.starting)
    }

    /// Of a group, the ones that are suspended for a later job, or are on the way there and back.
    pub(super) fn suspended_in(&self, group: GroupId) -> u64 {
        self.groups.get(group.0).map_or(0, |of| u64::from(of.suspended))
    }

    /// Those of all groups.
    pub(super) fn suspended(&self) -> u64 {
        self.groups.iter().map(|of| u64::from(of.suspended)).sum()
    }

    /// The list of this number had it.
    pub(super) fn mark_listed(&mut self, index: Index, list: u64) {
        if let Some(instance) = self.all.get_mut(index) {
            instance.listed = list;
        }
    }

    pub(super) fn sums(&self) -> PoolTotals {
        self.sums
    }

    /// Instances by the states of `fleeting_provisioner_instances`.
    pub(super) fn by_state(&self) -> impl Iterator<Item = (&'static str, u64)> {
        STATES.into_iter().zip(self.by_state)
    }

    /// Instances by the states of `gitlab_runner_autoscaling_machine_states`, and those that were requested and have not
    /// appeared: they are being created.
    pub(super) fn machines(&self, requested: u64) -> Vec<(&'static str, u64)> {
        let count = |(state, count)| (state, if state == CREATING { count + requested } else { count });
        MACHINES.into_iter().zip(self.machines).map(count).collect()
    }

    /// The instance whose slots a request for so many gets next: one with its sticky context, where there is one, and not the
    /// one to avoid, where there is another.
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
        let holders = context.and_then(|context| self.by_context.get(&context)).into_iter().flatten();
        let fits = |index: &&Index| self.all.get(**index).is_some_and(|instance| self.free_slots(instance) >= slots);
        let holders = holders.take(MAX_CONTEXT_CANDIDATES).filter(|index| !is_tried(**index));
        let sticky = holders.filter(fits).filter_map(|index| {
            let instance = self.all.get(*index)?;
            Some(self.rank(*index, instance))
        });
        let sticky = sticky.min().map(|rank| rank.3);
        let any = |suits: &dyn Fn(Index) -> bool| {
            self.groups.iter().filter_map(|of| self.best_of(of.rank, slots, suits)).min().map(|rank| rank.3)
        };
        sticky.or_else(|| any(&|index| !is_tried(index))).or_else(|| any(&|_| true))
    }

    /// That of the group with this rank.
    fn best_of(&self, group: usize, slots: u32, suits: &dyn Fn(Index) -> bool) -> Option<Rank> {
        let (least, most) = match self.placement {
            Placement::Pack => (slots, u32::MAX),
            Placement::Spread => (0, self.capacity.checked_sub(slots)?),
        };
        let fitting = (group, least, 0, 0)..=(group, most, u64::MAX, Index::MAX);
        self.free.range(fitting).find(|rank| suits(rank.3)).copied()
    }

    /// The most slots that one request can have now.
    pub(super) fn max_fit(&self) -> u32 {
        let widest = self.groups.iter().filter_map(|of| {
            let all = (of.rank, 0, 0, 0)..=(of.rank, u32::MAX, u64::MAX, Index::MAX);
            let mut of_group = self.free.range(all);
            let rank = match self.placement {
                Placement::Pack => of_group.next_back(),
                Placement::Spread => of_group.next(),
            };
            self.all.get(rank?.3).map(|instance| self.free_slots(instance))
        });
        widest.max().unwrap_or(0)
    }

    /// Slots that one request can have of an instance now.
    fn free_slots(&self, instance: &Instance) -> u32 {
        let gives = instance.slot_totals(self.capacity, self.uses_max).free > 0;
        if gives { self.capacity - instance.held } else { 0 }
    }

    /// The instance that will soonest have so many slots free: that with the fewest held.
    pub(super) fn soonest(&self, slots: u32) -> Option<Index> {
        let can = self.all.iter().filter(|(_, instance)| instance.can_fit(slots, self.capacity, self.uses_max));
        can.min_by_key(|(_, instance)| (instance.held, instance.sequence)).map(|(index, _)| index)
    }

    pub(super) fn longest_idle(&self, group: GroupId) -> Option<(Time, Index)> {
        self.groups.get(group.0)?.idle.first().copied()
    }

    /// Instances that have been idle for `idle_time`, the longest first, and since when.
    pub(super) fn idle(&self, group: GroupId, at: Time, idle_time: Duration, most: usize) -> Vec<(Time, Index)> {
        let idle = self.groups.get(group.0).into_iter().flat_map(|of| &of.idle);
        idle.take_while(|(since, _)| at.since(*since) >= idle_time).take(most).copied().collect()
    }

    /// When the next one will have been idle for so long.
    pub(super) fn next_idle(&self, group: GroupId, at: Time, idle_time: Duration) -> Option<Time> {
        // Those that are idle for as long already were looked at.
        let after = Time::from_millis((at.as_millis() + 1).saturating_sub(u64::try_from(idle_time.as_millis()).ok()?));
        let next = self.groups.get(group.0)?.idle.range((after, 0)..).next()?;
        Some(next.0 + idle_time).filter(|wake| *wake > at)
    }

    /// Slots that an instance gives.
    pub(super) fn offered_slots(&self, index: Index) -> u64 {
        let Some(instance) = self.all.get(index) else { return 0 };
        u64::from(instance.slot_totals(self.capacity, self.uses_max).free)
    }

    /// When the first and the last began of what a group's next snapshot may bring news of, but for removals.
    pub(super) fn arriving(&self, group: GroupId) -> Option<(Time, Time)> {
        span(&self.groups.get(group.0)?.arriving)
    }

    /// A group's instances whose removal began at this time or before it, the first at the front.
    pub(super) fn removing_since(&self, group: GroupId, since: Time) -> Vec<Index> {
        let leaving = self.groups.get(group.0).into_iter().flat_map(|of| of.deleting.range(..=(since, Index::MAX)));
        leaving.map(|(_, index)| *index).collect()
    }

    /// When the first and the last began of a group's removals.
    pub(super) fn removing(&self, group: GroupId) -> Option<(Time, Time)> {
        span(&self.groups.get(group.0)?.deleting)
    }

    /// The first instance about which something is to be done, and when.
    pub(super) fn first_due(&self) -> Option<(Time, Index)> {
        self.due.first().copied()
    }

    /// Another order of the free slots.
    pub(super) fn set_placement(&mut self, placement: Placement) {
        if placement != self.placement {
            self.reorder(|pool| pool.placement = placement);
        }
    }

    /// Other ranks of the groups.
    pub(super) fn set_ranks(&mut self, ranks: &[usize]) {
        self.reorder(|pool| {
            for (of, rank) in pool.groups.iter_mut().zip(ranks) {
                of.rank = *rank;
            }
        });
    }

    /// Changes what free slots are ordered by.
    fn reorder(&mut self, change: impl FnOnce(&mut Self)) {
        let free: Vec<Index> = self.free.iter().map(|rank| rank.3).collect();
        self.free.clear();
        change(self);
        for index in free {
            if let Some(rank) = self.all.get(index).map(|instance| self.rank(index, instance)) {
                self.free.insert(rank);
            }
        }
    }

    fn rank(&self, index: Index, instance: &Instance) -> Rank {
        let full = match self.placement {
            Placement::Pack => self.capacity.saturating_sub(instance.held),
            Placement::Spread => instance.held,
        };
        (self.groups.get(instance.group.0).map_or(0, |of| of.rank), full, instance.sequence, index)
    }

    fn unindex(&mut self, index: Index) {
        let Some(instance) = self.all.get(index) else { return };
        let part = instance.slot_totals(self.capacity, self.uses_max);
        self.sums.subtract(part);
        if let Some(count) = self.by_state.get_mut(label(instance)) {
            *count -= 1;
        }
        if let Some(count) = self.machines.get_mut(machine(instance)) {
            *count -= 1;
        }
        if part.free > 0 {
            let rank = self.rank(index, instance);
            self.free.remove(&rank);
        }
        if let Some(due) = instance.due {
            self.due.remove(&(due, index));
        }
        if let Some(of) = self.groups.get_mut(instance.group.0) {
            if is_idle(instance) {
                of.idle.remove(&(instance.idle_since, index));
            }
            if let Some(expected) = of.expected(instance) {
                expected.remove(&(instance.expected_since(), index));
            }
            of.starting -= u32::from(is_coming(instance));
            of.suspended -= u32::from(is_asleep(instance));
        }
    }

    fn index(&mut self, index: Index) {
        let Some(instance) = self.all.get(index) else { return };
        let part = instance.slot_totals(self.capacity, self.uses_max);
        self.sums.add(part);
        if let Some(count) = self.by_state.get_mut(label(instance)) {
            *count += 1;
        }
        if let Some(count) = self.machines.get_mut(machine(instance)) {
            *count += 1;
        }
        if part.free > 0 {
            let rank = self.rank(index, instance);
            self.free.insert(rank);
        }
        if let Some(due) = instance.due {
            self.due.insert((due, index));
        }
        if let Some(of) = self.groups.get_mut(instance.group.0) {
            if is_idle(instance) {
                of.idle.insert((instance.idle_since, index));
            }
            if let Some(expected) = of.expected(instance) {
                expected.insert((instance.expected_since(), index));
            }
            of.starting += u32::from(is_coming(instance));
            of.suspended += u32::from(is_asleep(instance));
        }
    }
}

impl GroupPool {
    /// Where an instance is that the next snapshot may bring news of.
    fn expected(&mut self, instance: &Instance) -> Option<&mut BTreeSet<(Time, Index)>> {
        match instance.state {
            InstancePhase::Deleting(_) => Some(&mut self.deleting),
            _ if instance.is_expected() => Some(&mut self.arriving),
            _ => None,
        }
    }
}

fn span(times: &BTreeSet<(Time, Index)>) -> Option<(Time, Time)> {
    Some((times.first()?.0, times.last()?.0))
}

impl Instance {
    /// When the change began that the next snapshots may show the end of.
    fn expected_since(&self) -> Time {
        if self.state == InstancePhase::Booting { self.requested_at } else { self.since }
    }
}

/// States as the peer's metrics name them.
const STATES: [&str; 6] = ["creating", "running", "deleting", "suspending", "suspended", "resuming"];

fn label(instance: &Instance) -> usize {
    match &instance.state {
        InstancePhase::Booting => 0,
        InstancePhase::Preparing
        | InstancePhase::Ready
        | InstancePhase::Cordoned { .. }
        | InstancePhase::Draining(_) => 1,
        InstancePhase::Deleting(_) => 2,
        InstancePhase::Suspended(sleep) => match sleep.state {
            SuspendState::Suspending => 3,
            SuspendState::Suspended => 4,
            SuspendState::Resuming | SuspendState::Preparing => 5,
        },
    }
}

fn is_coming(instance: &Instance) -> bool {
    matches!(instance.state, InstancePhase::Booting | InstancePhase::Preparing)
}

fn is_asleep(instance: &Instance) -> bool {
    matches!(instance.state, InstancePhase::Suspended(_))
}

fn is_idle(instance: &Instance) -> bool {
    instance.state == InstancePhase::Ready && instance.held == 0
}
