//! Requests that wait for a slot, the oldest first; those that want as many slots in one line.

use std::collections::{BTreeMap, HashMap};

use crate::time::Time;
use crate::words::{Context, Key, Tried, Work};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) key: Key,
    pub(super) since: Time,
    /// How many slots it wants.
    pub(super) slots: u32,
    pub(super) work: Option<Work>,
    pub(super) context: Option<Context>,
    pub(super) avoid: Option<Tried>,
}

/// See the module. Everything is done in logarithmic time; there are as many lines as sizes that occur.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lines: BTreeMap<u32, BTreeMap<u64, Waiter>>,
    places: HashMap<Key, (u32, u64)>,
    slots: u64,
    next: u64,
}

impl Queue {
    /// False where the key waits already.
    pub(super) fn push(&mut self, waiter: Waiter) -> bool {
        if self.places.contains_key(&waiter.key) {
            return false;
        }
        self.places.insert(waiter.key.clone(), (waiter.slots, self.next));
        self.slots += u64::from(waiter.slots);
        self.lines.entry(waiter.slots).or_default().insert(self.next, waiter);
        self.next += 1;
        true
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Waiter> {
        let (slots, number) = self.places.remove(key)?;
        let line = self.lines.get_mut(&slots)?;
        let waiter = line.remove(&number)?;
        if line.is_empty() {
            self.lines.remove(&slots);
        }
        self.slots -= u64::from(slots);
        Some(waiter)
    }

    /// Who waits longest of those that want at most so many slots.
    pub(super) fn first(&self, slots_max: u32) -> Option<&Waiter> {
        let heads = self.lines.range(..=slots_max).filter_map(|(_, line)| line.first_key_value());
        heads.min_by_key(|(number, _)| **number).map(|(_, waiter)| waiter)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Waiter> {
        let (slots, number) = self.places.get(key)?;
        self.lines.get(slots)?.get(number)
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        let mut all: Vec<(&u64, &Waiter)> = self.lines.values().flatten().collect();
        all.sort_unstable_by_key(|(number, _)| **number);
        all.into_iter().map(|(_, waiter)| waiter)
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Slots that are wanted: their sum, or as many as ask for the instances that are needed at least, since of those who
    /// want many only so many fit on one of `usable` slots.
    pub(super) fn slots(&self, usable: u32) -> u64 {
        let (mut wider, mut instances) = (0, 0);
        for (slots, line) in self.lines.iter().rev().filter(|(slots, _)| **slots > 1) {
            wider += line.len() as u64;
            instances = wider.div_ceil(u64::from((usable / slots).max(1))).max(instances);
        }
        self.slots.max(instances.saturating_sub(1) * u64::from(usable) + u64::from(instances > 0))
    }

    /// How many wait longer than `key`.
    pub(super) fn before(&self, key: &Key) -> usize {
        let Some((_, own)) = self.places.get(key) else { return 0 };
        self.lines.values().map(|line| line.range(..own).count()).sum()
    }
}
