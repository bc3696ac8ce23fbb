//! What must hold after every event (life-of-a-job.md, invariants I1-I6): the books agree with themselves and with the
//! limits. Shared by tests, the simulator and debug builds of the driver.

use super::instance::InstancePhase;
use super::{Engine, pool};

/// An invariant that does not hold: a defect of the engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invariant {invariant} does not hold: {message}")]
pub struct Violation {
    /// Which one.
    pub invariant: &'static str,
    /// What was found.
    pub message: String,
}

impl Violation {
    /// What was found against an invariant.
    #[must_use]
    pub fn new(invariant: &'static str, what: impl Into<String>) -> Self {
        Self { invariant, message: what.into() }
    }
}

impl Engine {
    /// Looks at everything; takes time in proportion to the instances.
    ///
    /// # Errors
    /// The first [`Violation`] that is found.
    pub fn check(&self) -> Result<(), Violation> {
        let mut held = 0;
        let mut sums = pool::PoolTotals::default();
        for (index, instance) in self.pool.iter() {
            let id = &instance.id;
            let part =
                instance.slot_totals(self.config.capacity.get(), self.config.max_uses.map(std::num::NonZeroU32::get));
            sums.add(part);
            if instance.is_deleting() && instance.held > 0 {
                return Err(Violation::new("I2", format!("{id} is removed and has {} jobs", instance.held)));
            }
            if matches!(instance.state, InstancePhase::Suspended(_))
                && (instance.held > 0 || instance.saved_environment.is_none())
            {
                return Err(Violation::new("I2", format!("{id} is suspended and has {} jobs", instance.held)));
            }
            // The limits may have been others before a restart.
            if instance.held > self.config.capacity.get() && !instance.restored {
                return Err(Violation::new("J4", format!("{id} has {} jobs", instance.held)));
            }
            if self.config.max_uses.is_some_and(|max| instance.job_count > max.get()) && !instance.restored {
                return Err(Violation::new("J4", format!("{id} was used {} times", instance.job_count)));
            }
            for (slot, key) in instance.keys() {
                held += 1;
                let place = self.leases.get(key);
                let slots = instance.slots.iter().flatten().filter(|other| *other == key).count();
                if place.is_none_or(|place| (place.index, place.slot, place.slots as usize) != (index, slot, slots)) {
                    return Err(Violation::new(
                        "R2",
                        format!("slot {slot} of {id} is held by {key}, whose lease is {place:?}"),
                    ));
                }
                if self.queue.get(key).is_some() {
                    return Err(Violation::new("R2", format!("{key} has a slot and waits for one")));
                }
            }
            let bounded = matches!(instance.state, InstancePhase::Ready | InstancePhase::Cordoned { .. })
                || instance.due.is_some();
            if !bounded && instance.held == 0 {
                return Err(Violation::new(
                    "I3",
                    format!("nothing will happen to {id}, which is {:?}", instance.state),
                ));
            }
        }
        if sums != self.pool.sums() {
            return Err(Violation::new("books", format!("sums are {:?} and should be {sums:?}", self.pool.sums())));
        }
        if held != self.leases.len() {
            return Err(Violation::new("R2", format!("{held} slots are held by {} leases", self.leases.len())));
        }
        self.check_waiting()
    }

    /// Nobody waits while what would suit is free.
    fn check_waiting(&self) -> Result<(), Violation> {
        if self.stopping {
            return Ok(());
        }
        if let Some(waiter) = self.queue.oldest_fitting(self.pool.max_fit()) {
            let (key, slots) = (&waiter.key, waiter.slots);
            return Err(Violation::new("I5", format!("{key} waits for {slots} slots, which are free")));
        }
        let kept = self
            .held_for_request
            .as_ref()
            .and_then(|(key, index)| Some((self.queue.get(key)?, self.pool.get(*index)?)));
        if let Some((waiter, instance)) = kept
            && instance.slot_totals(self.config.capacity.get(), self.limits().1).supply > 0
            && self.config.capacity.get().saturating_sub(instance.held) >= waiter.slots
            && matches!(instance.state, InstancePhase::Ready)
        {
            return Err(Violation::new("I5", format!("{} waits, and what is kept for it is free", waiter.key)));
        }
        let marked = self.pool.iter().filter(|(_, instance)| instance.held_for_request).count();
        if marked > usize::from(self.held_for_request.is_some()) {
            return Err(Violation::new("I5", format!("{marked} instances are kept, for {:?}", self.held_for_request)));
        }
        Ok(())
    }
}
