//! Events of a simulation.

use super::disturbance::Disturbance;
use crate::event::Event;

#[derive(Debug)]
pub(super) enum SimEvent {
    /// An event reaches the engine. It is dropped if the manager was restarted after the event was planned.
    ///
    /// `manager_run` is the number of the manager's run in which the event was planned.
    Delivered {
        manager_run: u32,
        event: Event,
    },
    /// A job arrives at the coordinator.
    JobArrives(usize),
    /// A job has run for its duration.
    JobEnds {
        job: usize,
        attempt: u32,
    },
    /// The connection of a job to its machine breaks.
    ConnectionBreaks {
        job: usize,
        attempt: u32,
    },
    /// A queued job is canceled.
    JobCanceled {
        job: usize,
        attempt: u32,
    },
    /// The manager requests jobs again after a refusal.
    RequestJobs,
    /// The coordinator answers a request without a job.
    EmptyAnswer,
    /// The engine's wake-up time has come.
    Wake,
    /// The manager is killed and starts again.
    Kill,
    /// A failed plugin restarts, unless it has failed again.
    PluginUp(usize),
    /// A disturbance happens.
    Disturbance(Disturbance),
    /// The disturbances are reverted.
    FaultsEnd,
    /// Someone other than the manager creates a machine.
    UnmanagedInstance,
    Sample,
}
