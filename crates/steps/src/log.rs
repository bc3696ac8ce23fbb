//! The port to a job's log: everything that a step prints goes through it, and is masked behind it.

/// Where a piece of log comes from (runner-api 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Muster's own words.
    Runner,
    /// What the job's processes write, to standard output or standard error: both are one pipe, because a person reads
    /// them as one text, and two pipes would not tell which was written first.
    Output,
}

/// Takes a job's log. Clones of the `Arc` around it write to one log, in the order of their calls.
pub trait Log: Send + Sync {
    /// Appends bytes; never waits for a reader. A log that cannot be kept stops the job by its own means.
    fn write(&self, stream: Stream, bytes: &[u8]);

    /// A step has ended: what its processes printed without ending the line is a line from now on.
    fn end_lines(&self) {}
}
