//! Invariants that must hold after every event.
//!
//! The crate's documentation defines I1 to I6, and `docs/spec/life-of-a-job.md` defines J4 and R2.

use super::instance::InstancePhase;
use super::pool::{Pool, PoolTotals};
use super::queue::Queue;

/// An invariant that does not hold, which is a bug in the engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invariant {invariant} does not hold: {message}")]
pub struct Violation {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// Description of the inconsistent state.
    pub message: String,
}

impl Violation {
    /// Creates a violation.
    #[must_use]
    pub fn new(invariant: &'static str, message: impl Into<String>) -> Self {
        Self { invariant, message: message.into() }
    }
}

/// # Errors
/// The first violation.
pub(super) fn check_instances(pool: &Pool) -> Result<(), Violation> {
    let limits = pool.limits();
    let mut totals = PoolTotals::default();
    for (_, instance) in pool.iter() {
        let (id, assigned) = (&instance.id, instance.assigned_slots);
        totals.add(instance.slot_totals(limits));
        if instance.is_deleting() && assigned > 0 {
            return Err(Violation::new("I2", format!("{id} is being deleted but has {assigned} assigned slots")));
        }
        if matches!(instance.phase, InstancePhase::Suspended(_))
            && (assigned > 0 || instance.saved_environment.is_none())
        {
            let environment = &instance.saved_environment;
            return Err(Violation::new(
                "I2",
                format!("{id} is suspended with {assigned} assigned slots and the saved environment {environment:?}"),
            ));
        }
        // An instance from before a restart may exceed a limit that was lowered at the restart.
        if assigned > limits.capacity && !instance.created_elsewhere {
            let capacity = limits.capacity;
            return Err(Violation::new("J4", format!("{id} has {assigned} assigned slots, but only {capacity} slots")));
        }
        if limits.max_uses.is_some_and(|max| instance.job_count > max) && !instance.created_elsewhere {
            return Err(Violation::new("J4", format!("{id} has had {} jobs", instance.job_count)));
        }
        let has_next_step = matches!(instance.phase, InstancePhase::Ready | InstancePhase::Cordoned { .. })
            || instance.due.is_some()
            || assigned > 0;
        if !has_next_step {
            let phase = &instance.phase;
            return Err(Violation::new("I3", format!("{id} would stay in this phase indefinitely: {phase:?}")));
        }
    }
    if totals != pool.totals() {
        let message = format!("the totals are {:?} and should be {totals:?}", pool.totals());
        return Err(Violation::new("totals", message));
    }
    Ok(())
}

/// Checks that no request waits while enough slots are free.
///
/// # Errors
/// A violation of I5.
pub(super) fn check_queue(pool: &Pool, queue: &Queue) -> Result<(), Violation> {
    match queue.oldest_fitting(pool.max_fit()) {
        Some(request) => {
            let (key, slots) = (&request.key, request.slots);
            Err(Violation::new("I5", format!("{key} waits for {slots} slots, but they are free")))
        }
        None => Ok(()),
    }
}
