//! Slots: numbers that concurrent jobs do not share (`docs/spec/job-execution.md`, section 2.9).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::port::{Guard, Slot, SlotKey};

/// Maximum time that a job waits for a lower slot whose job has ended.
const REUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Slots of one executor. Clones share the slots.
#[derive(Debug, Clone)]
pub struct Slots {
    total: usize,
    in_use: Arc<Mutex<Vec<SlotInUse>>>,
    free: watch::Sender<usize>,
}

#[derive(Debug)]
struct SlotInUse {
    slot: Slot,
    /// Whether the job has ended, so that the slot will be free soon.
    is_ending: bool,
}

/// Guard of a slot in use. Dropping it frees the slot.
#[derive(Debug)]
pub struct HeldSlot {
    slots: Slots,
    /// The slot.
    pub slot: Slot,
}

impl Slots {
    /// Returns `total` free slots.
    #[must_use]
    pub fn new(total: usize) -> Self {
        Self { total, in_use: Arc::default(), free: watch::Sender::new(total) }
    }

    /// Returns a receiver of the number of free slots.
    #[must_use]
    pub fn free(&self) -> watch::Receiver<usize> {
        self.free.subscribe()
    }

    /// Takes the lowest free slot. `None` means that all slots are in use.
    #[must_use]
    pub fn take(&self, key: &SlotKey) -> Option<HeldSlot> {
        let mut in_use = self.in_use.lock();
        if in_use.len() >= self.total {
            return None;
        }
        let of_runner = in_use.iter().map(|used| &used.slot).filter(|slot| slot.key.runner == key.runner);
        let (id, project_slot) = (lowest_free(of_runner.map(|slot| slot.id)), lowest_free_of_project(&in_use, key));
        let slot = Slot { id, project_slot, key: key.clone() };
        in_use.push(SlotInUse { slot: slot.clone(), is_ending: false });
        self.free.send_replace(self.total - in_use.len());
        Some(HeldSlot { slots: self.clone(), slot })
    }

    /// Waits until a slot is free, and takes the lowest free slot. Cancel-safe.
    ///
    /// Also waits briefly if the job in a lower slot of the project has ended, but the slot is not free yet. Only in
    /// that slot does the next job find the checkout and the cache volumes of the ended job. The coordinator may assign
    /// the next job before the slot is free.
    pub async fn wait_for_free(&self, key: &SlotKey) -> HeldSlot {
        let mut free = self.free();
        if let Some(project_slot) = self.lowest_ending(key) {
            let released = async { while self.is_ending(key, project_slot) && free.changed().await.is_ok() {} };
            // After the timeout, the job gets another slot.
            let _ = tokio::time::timeout(REUSE_TIMEOUT, released).await;
        }
        loop {
            if let Some(held_slot) = self.take(key) {
                return held_slot;
            }
            // Cannot fail, because the sender is a field of `self`.
            if free.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns the lowest slot of the project in which the job has ended, but which is not free yet.
    ///
    /// `None` means that there is no such slot, or that a lower slot is free.
    fn lowest_ending(&self, key: &SlotKey) -> Option<u32> {
        let in_use = self.in_use.lock();
        let lowest_free = lowest_free_of_project(&in_use, key);
        let ending = in_use.iter().filter(|used| used.is_ending && used.slot.key == *key);
        ending.map(|used| used.slot.project_slot).min().filter(|slot| *slot < lowest_free)
    }

    /// Returns whether the job in this slot of the project has ended and still has the slot.
    fn is_ending(&self, key: &SlotKey, project_slot: u32) -> bool {
        let in_use = self.in_use.lock();
        in_use.iter().any(|used| used.is_ending && used.slot.key == *key && used.slot.project_slot == project_slot)
    }

    /// Takes the slot that a job had before. `None` means that another job has it.
    ///
    /// The job is already running, so the slot is taken even if more than `total` slots are then in use.
    #[must_use]
    pub fn reacquire(&self, slot: &Slot) -> Option<HeldSlot> {
        let mut in_use = self.in_use.lock();
        let same_id = |other: &Slot| other.key.runner == slot.key.runner && other.id == slot.id;
        let same_project_slot = |other: &Slot| other.key == slot.key && other.project_slot == slot.project_slot;
        if in_use.iter().map(|used| &used.slot).any(|other| same_id(other) || same_project_slot(other)) {
            return None;
        }
        in_use.push(SlotInUse { slot: slot.clone(), is_ending: false });
        self.free.send_replace(self.total.saturating_sub(in_use.len()));
        Some(HeldSlot { slots: self.clone(), slot: slot.clone() })
    }
}

impl Guard for HeldSlot {
    fn announce_end(&self) {
        let mut in_use = self.slots.in_use.lock();
        if let Some(used) = in_use.iter_mut().find(|used| used.slot == self.slot) {
            used.is_ending = true;
        }
    }

    fn release(self: Box<Self>) {
        // Dropping the guard frees the slot.
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        let mut in_use = self.slots.in_use.lock();
        if let Some(index) = in_use.iter().position(|used| used.slot == self.slot) {
            in_use.swap_remove(index);
        }
        self.slots.free.send_replace(self.slots.total.saturating_sub(in_use.len()));
    }
}

/// Returns the lowest number that no concurrent job of the project has.
fn lowest_free_of_project(in_use: &[SlotInUse], key: &SlotKey) -> u32 {
    lowest_free(in_use.iter().map(|used| &used.slot).filter(|slot| slot.key == *key).map(|slot| slot.project_slot))
}

fn lowest_free(in_use: impl Iterator<Item = u32>) -> u32 {
    let in_use: HashSet<u32> = in_use.collect();
    (0..=u32::MAX).find(|number| !in_use.contains(number)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(project_id: i64) -> SlotKey {
        SlotKey { runner: "one".to_owned(), project_id }
    }

    #[test]
    fn numbers_are_the_lowest_free_per_runner_and_project() {
        let slots = Slots::new(3);
        let first = slots.take(&key(1)).unwrap();
        let second = slots.take(&key(2)).unwrap();
        let third = slots.take(&key(1)).unwrap();
        let numbers = [&first, &second, &third].map(|held| (held.slot.id, held.slot.project_slot));
        assert_eq!(numbers, [(0, 0), (1, 0), (2, 1)]);
        assert!(slots.take(&key(1)).is_none(), "no more slots than the total can be taken");
        drop(first);
        assert_eq!(*slots.free().borrow(), 1);
        let reused = slots.take(&key(1)).unwrap();
        assert_eq!((reused.slot.id, reused.slot.project_slot), (0, 0));
    }

    #[tokio::test]
    async fn next_job_of_a_project_gets_the_slot_of_a_job_that_has_ended() {
        let (slots, project) = (Slots::new(3), key(1));
        let ended = slots.take(&project).unwrap();
        ended.announce_end();
        let mut next = std::pin::pin!(slots.wait_for_free(&project));
        assert!(futures::poll!(&mut next).is_pending());
        drop(ended);
        assert_eq!(next.await.slot.project_slot, 0);
    }

    #[tokio::test]
    async fn released_slot_ends_the_wait_of_all_jobs() {
        let (slots, project) = (Slots::new(9), key(1));
        let [ended, other] = [(), ()].map(|()| slots.take(&project).unwrap());
        ended.announce_end();
        let mut first = Box::pin(slots.wait_for_free(&project));
        let mut second = Box::pin(slots.wait_for_free(&project));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        // Both jobs wait only for the slot of `ended`, because `other` had not ended when they began to wait.
        other.announce_end();
        drop(ended);
        let (first, second) = (first.await, second.await);
        assert_eq!([first.slot.project_slot, second.slot.project_slot], [0, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn job_waits_only_for_a_lower_slot_of_its_project_and_only_for_a_moment() {
        let (slots, project) = (Slots::new(9), key(1));
        let [lower, ended] = [(), ()].map(|()| slots.take(&project).unwrap());
        ended.announce_end();
        let begin = tokio::time::Instant::now();
        assert_eq!(
            slots.wait_for_free(&key(2)).await.slot.project_slot,
            0,
            "a job of another project must get its lowest slot"
        );
        drop(lower);
        let lower = slots.wait_for_free(&project).await;
        assert_eq!(
            (lower.slot.project_slot, begin.elapsed()),
            (0, Duration::ZERO),
            "a job must not wait if a lower slot is free"
        );
        let next = slots.wait_for_free(&project).await;
        assert_eq!((next.slot.project_slot, begin.elapsed().as_secs()), (2, REUSE_TIMEOUT.as_secs()));
    }

    #[test]
    fn slots_are_numbered_separately_for_each_runner() {
        let other = SlotKey { runner: "other".to_owned(), project_id: 1 };
        let slots = Slots::new(9);
        let held = [slots.take(&key(1)), slots.take(&other), slots.take(&other)].map(Option::unwrap);
        let numbers = held.each_ref().map(|held| (held.slot.id, held.slot.project_slot));
        assert_eq!(numbers, [(0, 0), (0, 0), (1, 1)]);
    }

    #[test]
    fn slot_of_an_earlier_start_is_reacquired_once() {
        let slots = Slots::new(1);
        let slot = Slot { id: 4, project_slot: 2, key: key(1) };
        let held = slots.reacquire(&slot).unwrap();
        assert!(slots.reacquire(&slot).is_none());
        assert!(slots.take(&key(9)).is_none(), "a reacquired slot must count");
        drop(held);
        assert_eq!(*slots.free().borrow(), 1);
    }
}
