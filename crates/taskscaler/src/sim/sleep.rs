//! How a provider's machines are suspended and resumed.

use rand_chacha::ChaCha8Rng;

use super::cloud::{Cloud, Machine, chance};
use crate::time::Time;
use crate::{InstanceId, InstanceState};

impl Cloud {
    /// Suspends machines, or resumes them. Which way it takes, and for how long, is as with removals and creations.
    pub fn sleep(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        resume: bool,
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        let lies = self.lies(at);
        if chance(random, lies.refused) {
            return Err("internal error, try again".to_owned());
        }
        let mut accepted = Vec::new();
        for id in ids {
            if chance(random, lies.short) {
                continue;
            }
            let takes = if resume { self.config.boot } else { self.config.deletion }.sample(random);
            let Some(machine) = self.machines.get_mut(id).filter(|machine| machine.is_live(at)) else { continue };
            let (from, over, to) = match resume {
                true => (InstanceState::Suspended, InstanceState::Resuming, InstanceState::Running),
                false => (InstanceState::Running, InstanceState::Suspending, InstanceState::Suspended),
            };
            let now = machine.slept(at);
            // What is on its way is accepted again, and what is on the other way is not.
            if now != from && now != over && now != to {
                continue;
            }
            accepted.push(id.clone());
            if now == from && !chance(random, lies.sleepless) {
                machine.sleep.extend([(at, over), (at + takes, to)]);
            }
        }
        if chance(random, lies.failed_after_success) { Err("502 bad gateway".to_owned()) } else { Ok(accepted) }
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
        let last = self.sleep.iter().rev().find(|(from, _)| *from <= at);
        last.map_or(InstanceState::Running, |(_, state)| *state)
    }
}
