//! Suspending and resuming machines of a simulated provider.

use rand_chacha::ChaCha8Rng;

use super::cloud::{Cloud, Machine, chance};
use crate::time::Time;
use muster_fleeting::model::{InstanceId, InstanceState};

/// Before, during and after suspending.
const SUSPEND: [InstanceState; 3] = [InstanceState::Running, InstanceState::Suspending, InstanceState::Suspended];
/// Before, during and after resuming.
const RESUME: [InstanceState; 3] = [InstanceState::Suspended, InstanceState::Resuming, InstanceState::Running];

impl Cloud {
    /// Suspends machines, which takes as long as a deletion. Returns the accepted machines.
    pub fn suspend(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        self.change_state(at, ids, SUSPEND, random)
    }

    /// Resumes machines, which takes as long as a boot. Returns the accepted machines.
    pub fn resume(&mut self, at: Time, ids: &[InstanceId], random: &mut ChaCha8Rng) -> Result<Vec<InstanceId>, String> {
        self.change_state(at, ids, RESUME, random)
    }

    fn change_state(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        [from, transition, to]: [InstanceState; 3],
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        self.for_each(at, ids, random, |cloud, id, random| {
            let is_resume = to == InstanceState::Running;
            let duration = if is_resume { cloud.config.boot } else { cloud.config.deletion }.sample(random);
            let ignored = cloud.faults(at).suspend_ignored;
            let Some(machine) = cloud.machines.get_mut(id).filter(|machine| machine.is_live(at)) else { return false };
            let state = machine.suspend_state(at);
            // A repeated call is accepted. A call for a machine in the opposite transition is not.
            let accepted = [from, transition, to].contains(&state);
            if state == from && !chance(random, ignored) {
                machine.suspend_states.extend([(at, transition), (at + duration, to)]);
            }
            accepted
        })
    }

    /// Returns whether a machine exists and is neither suspended nor being suspended or resumed.
    #[must_use]
    pub fn is_running(&self, at: Time, id: &InstanceId) -> bool {
        let is_running = |machine: &Machine| machine.is_live(at) && machine.suspend_state(at) == InstanceState::Running;
        self.machines.get(id).is_some_and(is_running)
    }
}

impl Machine {
    pub(super) fn suspend_state(&self, at: Time) -> InstanceState {
        let last = self.suspend_states.iter().rev().find(|(from, _)| *from <= at);
        last.map_or(InstanceState::Running, |(_, state)| *state)
    }
}
