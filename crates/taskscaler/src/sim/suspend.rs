//! Suspending and resuming machines of a simulated provider.

use rand_chacha::ChaCha8Rng;

use super::cloud::{Cloud, Machine, chance};
use crate::time::Time;
use muster_fleeting::model::{InstanceId, InstanceState};

impl Cloud {
    /// Suspends or resumes machines, and returns those for which the call was accepted.
    ///
    /// Suspending takes as long as a deletion, and resuming as long as a boot.
    pub fn sleep(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        resume: bool,
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        self.for_each(at, ids, random, |cloud, id, random| {
            let takes = if resume { cloud.config.boot } else { cloud.config.deletion }.sample(random);
            let sleepless = cloud.faults(at).suspend_ignored;
            let Some(machine) = cloud.machines.get_mut(id).filter(|machine| machine.is_live(at)) else { return false };
            let (from, over, to) = match resume {
                true => (InstanceState::Suspended, InstanceState::Resuming, InstanceState::Running),
                false => (InstanceState::Running, InstanceState::Suspending, InstanceState::Suspended),
            };
            let now = machine.slept(at);
            // A repeated call is accepted. A call for a machine that is in transition to the opposite state is not.
            let accepted = [from, over, to].contains(&now);
            if now == from && !chance(random, sleepless) {
                machine.suspend_states.extend([(at, over), (at + takes, to)]);
            }
            accepted
        })
    }

    /// Returns true if a machine exists and is not suspended.
    #[must_use]
    pub fn is_awake(&self, at: Time, id: &InstanceId) -> bool {
        let is_awake = |machine: &Machine| machine.is_live(at) && machine.slept(at) == InstanceState::Running;
        self.machines.get(id).is_some_and(is_awake)
    }
}

impl Machine {
    /// Returns the state of a booted machine at this time.
    pub(super) fn slept(&self, at: Time) -> InstanceState {
        let last = self.suspend_states.iter().rev().find(|(from, _)| *from <= at);
        last.map_or(InstanceState::Running, |(_, state)| *state)
    }
}
