//! Holds an instance for a starved request.
//!
//! Smaller requests can overtake a request for several slots. After [`STARVATION_TIMEOUT`], an instance is held for the
//! overtaken request and gets no other job. At most one instance is held at a time.

use std::time::Duration;

use super::instance::InstancePhase;
use super::invariants::Violation;
use super::inventory::Inventory;
use super::pool::{Index, Pool};
use super::queue::{Queue, QueuedRequest};
use crate::decision::DecisionKind;
use crate::time::{Now, Time};
use crate::types::TaskKey;

const STARVATION_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct StarvationHold {
    held: Option<(TaskKey, Index)>,
}

impl StarvationHold {
    /// Releases the held instance if the request that it is held for now fits, can never fit there, or is no longer
    /// queued.
    ///
    /// Returns the request and the instance if the request fits.
    pub(super) fn update(&mut self, pool: &mut Pool, queue: &Queue) -> Option<(QueuedRequest, Index)> {
        let (key, index) = self.held.clone()?;
        let limits = pool.limits();
        let request = queue.get(&key).cloned();
        let instance = pool.get(index).filter(|instance| instance.held_for_request);
        let mut fitting = None;
        if let (Some(request), Some(instance)) = (request, instance)
            && instance.can_fit(request.slots, limits)
        {
            if limits.capacity.saturating_sub(instance.assigned_slots) < request.slots {
                return None;
            }
            fitting = Some((request, index));
        }
        self.held = None;
        pool.change(index, |instance| instance.held_for_request = false);
        fitting
    }

    pub(super) fn hold_for_starved(&mut self, inventory: &mut Inventory, now: Now, queue: &Queue) {
        if self.held.is_some() {
            return;
        }
        let Some(request) = oldest_if_large(queue).filter(|request| now.at >= request.since + STARVATION_TIMEOUT)
        else {
            return;
        };
        let Some(index) = inventory.pool.soonest(request.slots) else { return };
        let Some((group, id)) = inventory.identity(index) else { return };
        let (key, slots) = (request.key.clone(), request.slots);
        inventory.pool.change(index, |instance| instance.held_for_request = true);
        self.held = Some((key.clone(), index));
        inventory.record_decision(now, DecisionKind::Held { key, group, id, slots });
    }

    pub(super) fn next_wake(&self, now: Now, queue: &Queue) -> Option<Time> {
        let request = oldest_if_large(queue).filter(|_| self.held.is_none())?;
        Some(request.since + STARVATION_TIMEOUT).filter(|at| *at > now.at)
    }

    /// Returns the number of free slots of the held instance.
    pub(super) fn free_slots(&self, pool: &Pool) -> u64 {
        let instance = self.held.as_ref().and_then(|(_, index)| pool.get(*index));
        instance.map_or(0, |instance| u64::from(pool.limits().capacity.saturating_sub(instance.assigned_slots)))
    }

    /// Checks invariant I5 (docs/explanation/taskscaler.md).
    ///
    /// # Errors
    /// The first violation.
    pub(super) fn check(&self, pool: &Pool, queue: &Queue) -> Result<(), Violation> {
        let held = self.held.as_ref().and_then(|(key, index)| Some((queue.get(key)?, pool.get(*index)?)));
        if let Some((request, instance)) = held
            && instance.slot_totals(pool.limits()).supply > 0
            && pool.limits().capacity.saturating_sub(instance.assigned_slots) >= request.slots
            && matches!(instance.phase, InstancePhase::Ready)
        {
            let key = &request.key;
            return Err(Violation::new(
                "I5",
                format!("{key} is queued, but the instance that is held for it has enough free slots"),
            ));
        }
        let marked = pool.iter().filter(|(_, instance)| instance.held_for_request).count();
        if marked > usize::from(self.held.is_some()) {
            return Err(Violation::new("I5", format!("{marked} instances are held, for {:?}", self.held)));
        }
        Ok(())
    }
}

/// Returns the oldest request, if it needs several slots.
fn oldest_if_large(queue: &Queue) -> Option<&QueuedRequest> {
    queue.oldest_fitting(u32::MAX).filter(|request| request.slots > 1)
}
