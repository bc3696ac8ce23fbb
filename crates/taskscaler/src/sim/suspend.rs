//! How a provider's machines are suspended and resumed.

use rand_chacha::ChaCha8Rng;

use super::cloud::{Cloud, Machine, chance};
use crate::time::Time;
use muster_fleeting::model::{InstanceId, InstanceState};

impl Cloud {
    /// Suspends machines, or resumes them. Which way it takes, and for how long, is as with removals and creations.
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
            // What is on its way is accepted again, and what is on the other way is not.
            let accepted = [from, over, to].contains(&now);
            if now == from && !chance(random, sleepless) {
                machine.suspend_states.extend([(at, over), (at + takes, to)]);
            }
            accepted
        })
    }

    /// Whether a machine is there, and not suspended.
    #[must_use]
    pub fn is_awake(&self, at: Time, id: &InstanceId) -> bool {
        let is_awake = |machine: &Machine| machine.is_live(at) && machine.slept(at) == InstanceState::Running;
        self.machines.get(id).is_some_and(is_awake)
    }
}

impl Machine {
    /// What one that has booted was at a time.
    pub(super) fn slept(&self, at: Time) -> InstanceState {
        let last = self.suspend_states.iter().rev().find(|(from, _)| *from <= at);
        last.map_or(InstanceState::Running, |(_, state)| *state)
    }
}
