//! Makes the delete calls that are due, and schedules their retries.

use std::collections::HashSet;
use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::instance::InstancePhase;
use super::inventory::Inventory;
use super::pool::Index;
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::throttle::jittered;
use crate::time::Now;
use crate::types::GroupId;

/// Time until a failed health check is repeated, and until an expired timer is checked again while the plugin is down.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Delay after the first rejected delete call. Each further call doubles the delay, up to the retry interval.
const DELETE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// A deletion is reported as stuck each time that this many more delete calls had no effect.
pub(super) const STUCK_AFTER_ATTEMPTS: u32 = 10;
/// Time after which an unanswered delete call is repeated.
const CALL_TIMEOUT: Duration = Duration::from_secs(1200);

#[derive(Debug, Default)]
pub(super) struct Deletions {
    due: Vec<Index>,
}

impl Deletions {
    /// Adds an instance to the next delete calls. Called for each instance in the phase `Deleting` when its timer has
    /// expired.
    pub(super) fn add_due(&mut self, inventory: &mut Inventory, index: Index) {
        inventory.pool.change(index, |instance| {
            instance.due = None;
            if let InstancePhase::Deleting(deleting) = &mut instance.phase {
                deleting.call_in_flight = false;
            }
        });
        self.due.push(index);
    }

    /// Makes one delete call for each group with due instances.
    pub(super) fn call(&mut self, inventory: &mut Inventory, now: Now) {
        let due = std::mem::take(&mut self.due);
        if due.is_empty() {
            return;
        }
        let mut calls: Vec<Vec<InstanceId>> = vec![Vec::new(); inventory.groups.len()];
        for index in due {
            let attempts = inventory.pool.change(index, |instance| {
                let InstancePhase::Deleting(deleting) = &mut instance.phase else { return None };
                deleting.call_in_flight = true;
                deleting.attempts = deleting.attempts.saturating_add(1);
                let attempts = deleting.attempts;
                instance.due = Some(now.at + CALL_TIMEOUT);
                Some(attempts)
            });
            let Some((attempts, (group, id))) = attempts.flatten().zip(inventory.identity(index)) else { continue };
            if attempts % STUCK_AFTER_ATTEMPTS == 0 {
                inventory.record_decision(now, DecisionKind::DeletionStuck { group, id: id.clone(), attempts });
            }
            if let Some(ids) = calls.get_mut(group.0) {
                ids.push(id);
            }
        }
        for (group, ids) in calls.into_iter().enumerate() {
            if !ids.is_empty() {
                inventory.push_action(Action::Decrease { group: GroupId(group), ids });
            }
        }
    }
}

/// Repeats an accepted deletion after `retry` if the instance still exists. A rejected deletion is retried earlier.
pub(super) fn handle_answer(
    inventory: &mut Inventory,
    now: Now,
    group: GroupId,
    ids: &[InstanceId],
    result: Result<Vec<InstanceId>, String>,
    retry: Duration,
) {
    let accepted: HashSet<InstanceId> = match result {
        Ok(accepted) => accepted.into_iter().collect(),
        Err(error) => {
            tracing::debug!(error, "failed to delete instances, retrying");
            HashSet::new()
        }
    };
    for id in ids {
        let Some(index) = inventory.pool.find(group, id) else { continue };
        let jitter = inventory.jitter();
        inventory.pool.change(index, |instance| {
            let InstancePhase::Deleting(deleting) = &mut instance.phase else { return };
            deleting.call_in_flight = false;
            let doublings = deleting.attempts.saturating_sub(1).min(10);
            let after_rejection = DELETE_RETRY_DELAY.saturating_mul(1 << doublings).min(retry);
            let pause = if accepted.contains(id) { retry } else { jittered(after_rejection, jitter) };
            instance.due = Some(now.at + pause);
        });
    }
}
