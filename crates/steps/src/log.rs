//! Interface through which steps write to a job's log. Its implementation masks secrets.

/// Origin of a piece of log (docs/spec/runner-api.md, section 3.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// Messages of Muster itself.
    Runner,
    /// Standard output and standard error of the job's processes. They share a pipe, which preserves the order.
    Output,
}

/// Log of a job.
pub trait Log: Send + Sync {
    /// Appends bytes, without waiting for a reader. An implementation that cannot store the log must stop the job
    /// itself.
    fn write(&self, stream: Stream, bytes: &[u8]);

    /// Adds a line break if the last line of the output has none.
    fn end_lines(&self) {}
}
