//! Port to a job's log. All output of steps is written to it. The implementation masks secrets.

/// Origin of a piece of log (docs/spec/runner-api.md, section 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Messages of Muster itself.
    Runner,
    /// Standard output and standard error of the job's processes. Both are one pipe, because two pipes would lose the order in
    /// which they were written.
    Output,
}

/// Receives a job's log. Clones of the `Arc` around it write to the same log, in the order of their calls.
pub trait Log: Send + Sync {
    /// Appends bytes. Never waits for a reader. An implementation that cannot store the log must stop the job itself.
    fn write(&self, stream: Stream, bytes: &[u8]);

    /// Adds a line break if the last line of the output has none.
    fn end_lines(&self) {}
}
