//! Queued requests for slots, the oldest first.

use std::collections::{BTreeMap, HashMap};

use crate::time::Time;
use crate::types::{JobKind, StickyContextId, TaskKey, TriedInstance};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedRequest {
    pub(super) key: TaskKey,
    pub(super) since: Time,
    pub(super) slots: u32,
    pub(super) job_kind: Option<JobKind>,
    pub(super) context: Option<StickyContextId>,
    pub(super) avoid: Option<TriedInstance>,
}

/// Queue of requests, grouped by size.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Requests by number of slots and sequence number.
    by_size: BTreeMap<u32, BTreeMap<u64, QueuedRequest>>,
    positions: HashMap<TaskKey, (u32, u64)>,
    /// Number of slots of all requests.
    slots: u64,
    next_number: u64,
}

impl Queue {
    /// Returns false if the key is already queued.
    pub(super) fn push(&mut self, request: QueuedRequest) -> bool {
        if self.positions.contains_key(&request.key) {
            return false;
        }
        self.positions.insert(request.key.clone(), (request.slots, self.next_number));
        self.slots += u64::from(request.slots);
        self.by_size.entry(request.slots).or_default().insert(self.next_number, request);
        self.next_number += 1;
        true
    }

    pub(super) fn remove(&mut self, key: &TaskKey) -> Option<QueuedRequest> {
        let (slots, number) = self.positions.remove(key)?;
        let of_size = self.by_size.get_mut(&slots)?;
        let request = of_size.remove(&number)?;
        if of_size.is_empty() {
            self.by_size.remove(&slots);
        }
        self.slots -= u64::from(slots);
        Some(request)
    }

    /// Returns the oldest request for at most `max_slots` slots.
    pub(super) fn oldest_fitting(&self, max_slots: u32) -> Option<&QueuedRequest> {
        let oldest = self.by_size.range(..=max_slots).filter_map(|(_, of_size)| of_size.first_key_value());
        oldest.min_by_key(|(number, _)| **number).map(|(_, request)| request)
    }

    pub(super) fn get(&self, key: &TaskKey) -> Option<&QueuedRequest> {
        let (slots, number) = self.positions.get(key)?;
        self.by_size.get(slots)?.get(number)
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QueuedRequest> {
        let mut all: Vec<(&u64, &QueuedRequest)> = self.by_size.values().flatten().collect();
        all.sort_unstable_by_key(|(number, _)| **number);
        all.into_iter().map(|(_, request)| request)
    }

    pub(super) fn len(&self) -> usize {
        self.positions.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Number of slots that the requests need if each instance has `usable` slots.
    ///
    /// Includes slots that large requests leave unused on their instances.
    pub(super) fn slots(&self, usable: u32) -> u64 {
        let (mut at_least_as_large, mut instances) = (0, 0);
        for (slots, of_size) in self.by_size.iter().rev().filter(|(slots, _)| **slots > 1) {
            at_least_as_large += of_size.len() as u64;
            instances = at_least_as_large.div_ceil(u64::from((usable / slots).max(1))).max(instances);
        }
        self.slots.max(instances.saturating_sub(1) * u64::from(usable) + u64::from(instances > 0))
    }

    pub(super) fn requests_ahead(&self, key: &TaskKey) -> usize {
        let Some((_, number)) = self.positions.get(key) else { return 0 };
        self.by_size.values().map(|of_size| of_size.range(..number).count()).sum()
    }
}
