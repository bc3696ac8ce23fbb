//! Requests that wait for a slot, the oldest first; those that want as many slots in one line.

use std::collections::{BTreeMap, HashMap};

use crate::time::Time;
use crate::types::{JobKind, StickyContextId, TaskKey, TriedInstance};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedRequest {
    pub(super) key: TaskKey,
    pub(super) since: Time,
    /// How many slots it wants.
    pub(super) slots: u32,
    pub(super) job_kind: Option<JobKind>,
    pub(super) context: Option<StickyContextId>,
    pub(super) avoid: Option<TriedInstance>,
}

/// See the module. Everything is done in logarithmic time; there are as many lines as sizes that occur.
#[derive(Debug, Default)]
pub(super) struct Queue {
    by_size: BTreeMap<u32, BTreeMap<u64, QueuedRequest>>,
    positions: HashMap<TaskKey, (u32, u64)>,
    slots: u64,
    next: u64,
}

impl Queue {
    /// False where the key waits already.
    pub(super) fn push(&mut self, waiter: QueuedRequest) -> bool {
        if self.positions.contains_key(&waiter.key) {
            return false;
        }
        self.positions.insert(waiter.key.clone(), (waiter.slots, self.next));
        self.slots += u64::from(waiter.slots);
        self.by_size.entry(waiter.slots).or_default().insert(self.next, waiter);
        self.next += 1;
        true
    }

    pub(super) fn remove(&mut self, key: &TaskKey) -> Option<QueuedRequest> {
        let (slots, number) = self.positions.remove(key)?;
        let line = self.by_size.get_mut(&slots)?;
        let waiter = line.remove(&number)?;
        if line.is_empty() {
            self.by_size.remove(&slots);
        }
        self.slots -= u64::from(slots);
        Some(waiter)
    }

    /// Who waits longest of those that want at most so many slots.
    pub(super) fn oldest_fitting(&self, slots_max: u32) -> Option<&QueuedRequest> {
        let heads = self.by_size.range(..=slots_max).filter_map(|(_, line)| line.first_key_value());
        heads.min_by_key(|(number, _)| **number).map(|(_, waiter)| waiter)
    }

    pub(super) fn get(&self, key: &TaskKey) -> Option<&QueuedRequest> {
        let (slots, number) = self.positions.get(key)?;
        self.by_size.get(slots)?.get(number)
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedRequest> {
        let mut all: Vec<(&u64, &QueuedRequest)> = self.by_size.values().flatten().collect();
        all.sort_unstable_by_key(|(number, _)| **number);
        all.into_iter().map(|(_, waiter)| waiter)
    }

    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Slots that are wanted: their sum, or as many as ask for the instances that are needed at least, since of those who
    /// want many only so many fit on one of `usable` slots.
    pub(super) fn slots(&self, usable: u32) -> u64 {
        let (mut wider, mut instances) = (0, 0);
        for (slots, line) in self.by_size.iter().rev().filter(|(slots, _)| **slots > 1) {
            wider += line.len() as u64;
            instances = wider.div_ceil(u64::from((usable / slots).max(1))).max(instances);
        }
        self.slots.max(instances.saturating_sub(1) * u64::from(usable) + u64::from(instances > 0))
    }

    /// How many wait longer than `key`.
    pub(super) fn position(&self, key: &TaskKey) -> usize {
        let Some((_, own)) = self.positions.get(key) else { return 0 };
        self.by_size.values().map(|line| line.range(..own).count()).sum()
    }
}
