//! Suspending and resuming machines of a simulated provider.

use rand_chacha::ChaCha8Rng;

use super::cloud::{Cloud, Machine, chance};
use crate::time::Time;
use muster_fleeting::model::{InstanceId, InstanceState};

impl Cloud {
    /// Suspends or resumes machines, and returns those for which the call was accepted.
    ///
    /// Suspending takes as long as a deletion, and resuming as long as a boot.
    pub fn set_suspended(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        resume: bool,
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        self.for_each(at, ids, random, |cloud, id, random| {
            let duration = if resume { cloud.config.boot } else { cloud.config.deletion }.sample(random);
            let ignored = cloud.faults(at).suspend_ignored;
            let Some(machine) = cloud.machines.get_mut(id).filter(|machine| machine.is_live(at)) else { return false };
            let (from, transition, to) = match resume {
                true => (InstanceState::Suspended, InstanceState::Resuming, InstanceState::Running),
                false => (InstanceState::Running, InstanceState::Suspending, InstanceState::Suspended),
            };
            let state = machine.suspend_state(at);
            // A repeated call is accepted, but not one for a machine that is in transition to the opposite state.
            let accepted = [from, transition, to].contains(&state);
            if state == from && !chance(random, ignored) {
                machine.suspend_states.extend([(at, transition), (at + duration, to)]);
            }
            accepted
        })
    }

    /// Returns true if a machine exists and is not suspended.
    #[must_use]
    pub fn is_running(&self, at: Time, id: &InstanceId) -> bool {
        let is_running = |machine: &Machine| machine.is_live(at) && machine.suspend_state(at) == InstanceState::Running;
        self.machines.get(id).is_some_and(is_running)
    }
}

impl Machine {
    /// Returns the state that a booted machine has at a time.
    pub(super) fn suspend_state(&self, at: Time) -> InstanceState {
        let last = self.suspend_states.iter().rev().find(|(from, _)| *from <= at);
        last.map_or(InstanceState::Running, |(_, state)| *state)
    }
}
