//! States of instances as gitlab-runner names them in its metrics.

use super::deletion::STUCK_AFTER_ATTEMPTS;
use super::instance::{Instance, InstancePhase};
use super::suspend::SuspendState;

const CREATING: &str = "creating";
/// States by the index that [`machine_state`] returns.
const MACHINE_STATES: [&str; 6] = ["acquired", CREATING, "idle", "used", "removing", "stuck-on-removing"];
/// States by the index that [`provisioner_state`] returns.
const PROVISIONER_STATES: [&str; 6] = ["creating", "running", "deleting", "suspending", "suspended", "resuming"];

#[derive(Debug, Default)]
pub(super) struct StateCounts {
    machines: [u64; MACHINE_STATES.len()],
    provisioner: [u64; PROVISIONER_STATES.len()],
}

impl StateCounts {
    pub(super) fn add(&mut self, instance: &Instance) {
        self.change(instance, |count| *count += 1);
    }

    pub(super) fn subtract(&mut self, instance: &Instance) {
        self.change(instance, |count| *count -= 1);
    }

    fn change(&mut self, instance: &Instance, change: impl Fn(&mut u64)) {
        self.machines.get_mut(machine_state(instance)).map(&change);
        self.provisioner.get_mut(provisioner_state(instance)).map(&change);
    }

    /// Counts by the states of `fleeting_provisioner_instances`.
    pub(super) fn provisioner(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PROVISIONER_STATES.into_iter().zip(self.provisioner)
    }

    /// Counts by the states of `gitlab_runner_autoscaling_machine_states`.
    ///
    /// The `requested` instances, which have not appeared, count as being created.
    pub(super) fn machines(&self, requested: u64) -> Vec<(&'static str, u64)> {
        let count = |(state, count)| (state, if state == CREATING { count + requested } else { count });
        MACHINE_STATES.into_iter().zip(self.machines).map(count).collect()
    }
}

/// Index in [`MACHINE_STATES`].
fn machine_state(instance: &Instance) -> usize {
    match &instance.phase {
        InstancePhase::Deleting(deleting) if deleting.attempts >= STUCK_AFTER_ATTEMPTS => 5,
        InstancePhase::Deleting(_) => 4,
        _ if instance.assigned_slots > 0 => 3,
        InstancePhase::Ready if !instance.held_for_request => 2,
        InstancePhase::Booting | InstancePhase::Preparing => 1,
        InstancePhase::Ready
        | InstancePhase::Suspended(_)
        | InstancePhase::Cordoned { .. }
        | InstancePhase::Draining(_) => 0,
    }
}

/// Index in [`PROVISIONER_STATES`].
fn provisioner_state(instance: &Instance) -> usize {
    match &instance.phase {
        InstancePhase::Booting => 0,
        InstancePhase::Preparing
        | InstancePhase::Ready
        | InstancePhase::Cordoned { .. }
        | InstancePhase::Draining(_) => 1,
        InstancePhase::Deleting(_) => 2,
        InstancePhase::Suspended(suspension) => match suspension.state {
            SuspendState::Suspending => 3,
            SuspendState::Suspended => 4,
            SuspendState::Resuming | SuspendState::Preparing => 5,
        },
    }
}
