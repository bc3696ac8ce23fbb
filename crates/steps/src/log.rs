//! The port to a job's log: everything that a step prints goes through it, and is masked behind it.

/// Where a piece of log comes from (runner-api 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Muster's own words.
    Runner,
    /// What the job's processes write to their standard output.
    Output,
    /// What the job's processes write to their standard error.
    Error,
}

/// Takes a job's log. Clones of the `Arc` around it write to one log, in the order of their calls.
pub trait Log: Send + Sync {
    /// Appends bytes; never waits for a reader. A log that cannot be kept stops the job by its own means.
    fn write(&self, stream: Stream, bytes: &[u8]);

    /// Whether standard output and error have to come apart (timestamps). If not, they share one pipe and so keep
    /// their order.
    fn separates_streams(&self) -> bool;
}
