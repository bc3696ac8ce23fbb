//! What a world's agenda is made of.

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
    AskForJobs,
    Wake,
    Kill,
    Foreign,
    Sample,
}
