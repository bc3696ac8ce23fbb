//! What a world's agenda is made of.

use super::turn::Turn;
use crate::event::Event;

/// What happens at a time.
#[derive(Debug)]
pub(super) enum Happening {
    /// Something for the engine, from a call that it made in this life of the manager.
    Told {
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
    AskForJobs,
    /// A request that was sent after the last job is answered.
    Empty,
    Wake,
    Kill,
    /// A group's plugin that was down may be up.
    PluginUp(usize),
    Turn(Turn),
    /// From here on nothing is wrong.
    Heal,
    Foreign,
    Sample,
}
