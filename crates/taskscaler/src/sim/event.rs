//! What a world's agenda is made of.

use super::disturbance::Disturbance;
use crate::event::Event;

/// What happens at a time.
#[derive(Debug)]
pub(super) enum SimEvent {
    /// Something for the engine, from a call that it made in this life of the manager.
    Delivered {
        life: u32,
        event: Event,
    },
    Arrives(usize),
    Ends {
        job: usize,
        attempt: u32,
    },
    Breaks {
        job: usize,
        attempt: u32,
    },
    /// One that waits gives up.
    Canceled {
        job: usize,
        attempt: u32,
    },
    RequestJobs,
    /// A request that was sent after the last job is answered.
    Empty,
    Wake,
    Kill,
    /// A group's plugin that was down may be up.
    PluginUp(usize),
    Disturbance(Disturbance),
    /// From here on nothing is wrong.
    FaultsEnd,
    UnmanagedInstance,
    Sample,
}
