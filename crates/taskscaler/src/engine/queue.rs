//! Requests that wait for a slot, the oldest first.

use std::collections::{BTreeMap, HashMap};

use crate::time::Time;
use crate::words::Key;

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiter {
    pub(super) key: Key,
    pub(super) since: Time,
}

/// See the module. Everything is done in logarithmic time.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeMap<u64, Waiter>,
    numbers: HashMap<Key, u64>,
    next: u64,
}

impl Queue {
    /// False where the key waits already.
    pub(super) fn push(&mut self, key: Key, since: Time) -> bool {
        if self.numbers.contains_key(&key) {
            return false;
        }
        self.numbers.insert(key.clone(), self.next);
        self.order.insert(self.next, Waiter { key, since });
        self.next += 1;
        true
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Waiter> {
        self.order.remove(&self.numbers.remove(key)?)
    }

    pub(super) fn pop(&mut self) -> Option<Waiter> {
        let (_, waiter) = self.order.pop_first()?;
        self.numbers.remove(&waiter.key);
        Some(waiter)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Waiter> {
        self.order.get(self.numbers.get(key)?)
    }

    /// All, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.order.values()
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// How many wait longer than `key`.
    pub(super) fn before(&self, key: &Key) -> usize {
        self.numbers.get(key).map_or(0, |number| self.order.range(..number).count())
    }
}
