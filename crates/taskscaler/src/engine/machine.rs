//! States of instances as GitLab Runner names those of the machines of `docker+machine`.

use super::instance::{Instance, State};
use super::remove::STUCK;

/// The state of a machine that is created.
pub(super) const CREATING: &str = "creating";
/// All states, in the order of [`machine`].
pub(super) const MACHINES: [&str; 6] = ["acquired", CREATING, "idle", "used", "removing", "stuck-on-removing"];

/// The position of an instance's state in [`MACHINES`].
pub(super) fn machine(instance: &Instance) -> usize {
    match &instance.state {
        State::Deleting(deleting) if deleting.attempts >= STUCK => 5,
        State::Deleting(_) => 4,
        _ if instance.held > 0 => 3,
        State::Ready if !instance.kept => 2,
        State::Booting | State::Preparing => 1,
        // It has no job, and not every job can have it: it is held for a large request or with a suspended environment, an
        // operator cordoned it, or it is about to be removed.
        State::Ready | State::Asleep(_) | State::Aside { .. } | State::Draining(_) => 0,
    }
}
