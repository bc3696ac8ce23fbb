//! Slots: numbers that jobs at the same time do not share (job-execution 2.9).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Whose jobs are counted together for `CI_CONCURRENT_PROJECT_ID`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotKey {
    /// The project's id at the coordinator.
    pub project_id: i64,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// `CI_CONCURRENT_ID`: the lowest number that no other job has.
    pub id: u32,
    /// `CI_CONCURRENT_PROJECT_ID`: the same among the jobs of one project.
    pub project_slot: u32,
    /// The project.
    pub key: SlotKey,
}

/// The slots of one environment. Clones are the same slots.
#[derive(Debug, Clone)]
pub struct Slots {
    total: usize,
    taken: Arc<Mutex<BTreeMap<u32, (SlotKey, u32)>>>,
    free: watch::Sender<usize>,
}

/// A slot in use; dropped, it is free.
#[derive(Debug)]
pub struct TakenSlot {
    slots: Slots,
    /// The slot.
    pub slot: Slot,
}

impl Slots {
    /// `total` slots, all free.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self { total, taken: Arc::default(), free: watch::Sender::new(total) }
    }

    /// The number of free slots, and its changes.
    #[must_use]
    pub fn free(&self) -> watch::Receiver<usize> {
        self.free.subscribe()
    }

    /// Takes the lowest free slot, if there is one.
    #[must_use]
    pub fn take(&self, key: &SlotKey) -> Option<TakenSlot> {
        let mut taken = self.taken.lock();
        if taken.len() >= self.total {
            return None;
        }
        let id = lowest(|id| taken.contains_key(&id));
        let project_slot = lowest(|slot| taken.values().any(|(other, used)| other == key && *used == slot));
        taken.insert(id, (key.clone(), project_slot));
        self.free.send_replace(self.total - taken.len());
        Some(TakenSlot { slots: self.clone(), slot: Slot { id, project_slot, key: key.clone() } })
    }

    /// Takes the slot that a job had before; none where another job has it.
    ///
    /// More slots than `total` may be taken so, where the capacity was lowered in between: the jobs are there.
    #[must_use]
    pub fn take_again(&self, slot: &Slot) -> Option<TakenSlot> {
        let mut taken = self.taken.lock();
        let clash = taken.contains_key(&slot.id)
            || taken.values().any(|(key, used)| *key == slot.key && *used == slot.project_slot);
        if clash {
            return None;
        }
        taken.insert(slot.id, (slot.key.clone(), slot.project_slot));
        self.free.send_replace(self.total.saturating_sub(taken.len()));
        Some(TakenSlot { slots: self.clone(), slot: slot.clone() })
    }
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken.lock();
        taken.remove(&self.slot.id);
        self.slots.free.send_replace(self.slots.total.saturating_sub(taken.len()));
    }
}

/// The lowest number that is not in use. Ends, since only finitely many are.
fn lowest(in_use: impl Fn(u32) -> bool) -> u32 {
    (0..=u32::MAX).find(|number| !in_use(*number)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(project_id: i64) -> SlotKey {
        SlotKey { project_id }
    }

    #[test]
    fn numbers_are_the_lowest_free_ones_per_environment_and_per_project() {
        let slots = Slots::new(3);
        let first = slots.take(&key(1)).unwrap();
        let second = slots.take(&key(2)).unwrap();
        let third = slots.take(&key(1)).unwrap();
        let numbers = [&first, &second, &third].map(|taken| (taken.slot.id, taken.slot.project_slot));
        assert_eq!(numbers, [(0, 0), (1, 0), (2, 1)]);
        assert!(slots.take(&key(1)).is_none(), "no more than the total");
        drop(first);
        assert_eq!(*slots.free().borrow(), 1);
        let again = slots.take(&key(1)).unwrap();
        assert_eq!((again.slot.id, again.slot.project_slot), (0, 0));
    }

    #[test]
    fn a_slot_of_an_earlier_start_is_taken_again_once() {
        let slots = Slots::new(1);
        let slot = Slot { id: 4, project_slot: 2, key: key(1) };
        let taken = slots.take_again(&slot).unwrap();
        assert!(slots.take_again(&slot).is_none());
        assert!(slots.take(&key(9)).is_none(), "it counts");
        drop(taken);
        assert_eq!(*slots.free().borrow(), 1);
    }
}
