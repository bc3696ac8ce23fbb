//! Leases: assignments of slots to tasks.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::invariants::Violation;
use super::inventory::Inventory;
use super::pool::{Index, Pool};
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::time::{Now, Time};
use crate::types::{JobKind, LossReason, SlotAssignment, TaskKey};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeaseLocation {
    index: Index,
    /// Lowest slot.
    slot: usize,
    slots: u32,
    since: Time,
    /// Total run time of the instance's jobs when the lease began, in milliseconds.
    occupancy_ms: u64,
    job_kind: Option<JobKind>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RunConditions {
    pub(super) job_kind: Option<JobKind>,
    /// Average number of other jobs on the instance.
    pub(super) neighbors: f64,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    by_key: HashMap<TaskKey, LeaseLocation>,
    /// Leases from before a restart that no job has claimed yet.
    unclaimed: BTreeSet<TaskKey>,
}

impl Leases {
    pub(super) fn assign(
        &mut self,
        pool: &mut Pool,
        at: Time,
        key: &TaskKey,
        (index, slots): (Index, u32),
        job_kind: Option<JobKind>,
    ) -> Option<SlotAssignment> {
        let (occupancy_ms, slot) =
            pool.change(index, |instance| (instance.occupancy_ms_at(at), instance.assign(slots, key, at)))?;
        let location = LeaseLocation { index, slot, slots, since: at, occupancy_ms, job_kind };
        self.by_key.insert(key.clone(), location);
        assignment(pool, key, location)
    }

    pub(super) fn restore(&mut self, pool: &Pool, at: Time, index: Index) {
        let slots = pool.get(index).into_iter().flat_map(|instance| instance.slots().iter().enumerate());
        // The lowest slot of each lease comes first.
        for (slot, key) in slots.filter_map(|(slot, key)| Some((slot, key.clone()?))) {
            let location = LeaseLocation { index, slot, slots: 0, since: at, occupancy_ms: 0, job_kind: None };
            self.unclaimed.insert(key.clone());
            self.by_key.entry(key).or_insert(location).slots += 1;
        }
    }

    pub(super) fn contains(&self, key: &TaskKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn instance(&self, key: &TaskKey) -> Option<Index> {
        self.by_key.get(key).map(|location| location.index)
    }

    /// Returns the lease that a task got before a restart, and marks it as claimed.
    pub(super) fn claim(&mut self, pool: &Pool, key: &TaskKey) -> Option<SlotAssignment> {
        let location = *self.by_key.get(key)?;
        self.unclaimed.remove(key);
        assignment(pool, key, location)
    }

    pub(super) fn take_unclaimed(&mut self) -> BTreeSet<TaskKey> {
        std::mem::take(&mut self.unclaimed)
    }

    pub(super) fn remove(&mut self, inventory: &mut Inventory, now: Now, key: &TaskKey) -> Option<Index> {
        let location = self.by_key.remove(key)?;
        self.unclaimed.remove(key);
        inventory.pool.change(location.index, |instance| instance.release(key, now));
        inventory.mark_dirty(location.index);
        Some(location.index)
    }

    pub(super) fn lose(&mut self, inventory: &mut Inventory, now: Now, index: Index, reason: &LossReason) {
        let Some(instance) = inventory.pool.get(index).filter(|instance| instance.assigned_slots > 0) else { return };
        let (group, id) = (instance.group, instance.id.clone());
        let jobs: Vec<TaskKey> = instance.keys().map(|(_, key)| key.clone()).collect();
        for key in &jobs {
            self.remove(inventory, now, key);
            inventory.push_action(Action::Lost { key: key.clone(), reason: reason.clone() });
        }
        inventory.record_decision(now, DecisionKind::Lost { group, id, reason: reason.clone(), jobs });
    }

    pub(super) fn run_conditions(&self, pool: &Pool, at: Time, key: &TaskKey) -> Option<RunConditions> {
        let location = self.by_key.get(key)?;
        let instance = pool.get(location.index)?;
        let occupancy = instance.occupancy_ms_at(at).saturating_sub(location.occupancy_ms);
        let run_time = at.since(location.since);
        let neighbors = if run_time.is_zero() {
            f64::from(instance.jobs.saturating_sub(1))
        } else {
            (Duration::from_millis(occupancy).as_secs_f64() / run_time.as_secs_f64() - 1.0).max(0.0)
        };
        Some(RunConditions { job_kind: location.job_kind, neighbors })
    }

    /// Checks that leases and the slots of instances agree.
    ///
    /// # Errors
    /// The first violation of R2.
    pub(super) fn check(&self, pool: &Pool) -> Result<(), Violation> {
        let mut leases_on_instances = 0;
        for (index, instance) in pool.iter() {
            for (slot, key) in instance.keys() {
                leases_on_instances += 1;
                let slots = instance.slots().iter().flatten().filter(|other| *other == key).count();
                let location = self.by_key.get(key);
                if location.is_none_or(|found| (found.index, found.slot, found.slots as usize) != (index, slot, slots))
                {
                    let id = &instance.id;
                    return Err(Violation::new(
                        "R2",
                        format!("slot {slot} of {id} is assigned to {key}, whose lease is {location:?}"),
                    ));
                }
            }
        }
        if leases_on_instances != self.by_key.len() {
            return Err(Violation::new(
                "R2",
                format!(
                    "{} leases exist, but instances have slots for {leases_on_instances} leases",
                    self.by_key.len()
                ),
            ));
        }
        Ok(())
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &TaskKey> {
        self.by_key.keys()
    }
}

fn assignment(pool: &Pool, key: &TaskKey, location: LeaseLocation) -> Option<SlotAssignment> {
    let instance = pool.get(location.index)?;
    Some(SlotAssignment {
        key: key.clone(),
        group: instance.group,
        instance: instance.id.clone(),
        slot: u32::try_from(location.slot).ok()?,
        slots: location.slots,
        use_number: instance.job_count,
    })
}
