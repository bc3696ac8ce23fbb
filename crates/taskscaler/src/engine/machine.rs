//! States of instances as GitLab Runner names those of the machines of `docker+machine`.

use super::deletion::STUCK_AFTER_ATTEMPTS;
use super::instance::{Instance, InstancePhase};

/// The state of a machine that is created.
pub(super) const CREATING: &str = "creating";
/// All states, in the order of [`machine`].
pub(super) const MACHINES: [&str; 6] = ["acquired", CREATING, "idle", "used", "removing", "stuck-on-removing"];

/// The position of an instance's state in [`MACHINES`].
pub(super) fn machine(instance: &Instance) -> usize {
    match &instance.state {
        InstancePhase::Deleting(deleting) if deleting.attempts >= STUCK_AFTER_ATTEMPTS => 5,
        InstancePhase::Deleting(_) => 4,
        _ if instance.held > 0 => 3,
        InstancePhase::Ready if !instance.held_for_request => 2,
        InstancePhase::Booting | InstancePhase::Preparing => 1,
        // It has no job, and not every job can have it: it is held for a large request or with a suspended environment, an
        // operator cordoned it, or it is about to be removed.
        InstancePhase::Ready
        | InstancePhase::Suspended(_)
        | InstancePhase::Cordoned { .. }
        | InstancePhase::Draining(_) => 0,
    }
}
