//! The port to what is too large for rows: traces, and the content of artifacts.
//!
//! A trace only grows, and only at its end (J3). Artifacts are written whole: content is received first, checked by the
//! caller, and then kept under its name or dropped. Rows say which artifacts exist; content without a row is a leftover
//! of a process that was killed, and is deleted at the next start.
//!
//! [`directory`] keeps them in files, [`memory`] in this process. Both pass the same tests (`contract`).

#[cfg(test)]
mod contract;
pub(crate) mod directory;
pub(crate) mod memory;

use std::fmt;
use std::fs::File;
use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use muster_job::JobId;
use muster_runner_api::service::ByteStream;

use crate::error::BlobError;

/// Maximum number of bytes that one read of a trace returns.
pub(crate) const READ_MAX: u64 = 1024 * 1024;

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The bytes are in the trace, which has this length now.
    Yes(u64),
    /// The trace has this length, and the bytes belong elsewhere.
    WrongOffset(u64),
    /// With these bytes the trace would be larger than allowed; nothing was written.
    TooLarge,
}

/// Names the content of an artifact: there is one per job and kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ArtifactName {
    pub(crate) job: JobId,
    pub(crate) kind: String,
    pub(crate) filename: String,
}

/// The port. Every call may be repeated.
#[async_trait]
pub(crate) trait Blobs: Send + Sync + fmt::Debug {
    /// Appends bytes to a trace, if they belong at its end and it stays within `bytes_max`.
    async fn append_trace(&self, job: JobId, start: u64, bytes: Bytes, bytes_max: u64) -> Result<Appended, BlobError>;

    /// Returns length and CRC-32 of a trace.
    async fn sum_of_trace(&self, job: JobId) -> Result<(u64, u32), BlobError>;

    /// Returns at most [`READ_MAX`] bytes of a trace from `offset` on. Empty at its end, and if the trace does not exist.
    async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, BlobError>;

    /// Opens a trace to look at all of it. `None` if it does not exist.
    async fn open_trace(&self, job: JobId) -> Result<Option<File>, BlobError>;

    /// Lets go of what is held to append to a trace: its job is over.
    fn close_trace(&self, job: JobId);

    /// Begins to receive the content of an artifact. Dropped without [`Incoming::keep`] it leaves nothing.
    async fn receive(&self) -> Result<Box<dyn Incoming>, BlobError>;

    /// Opens the content of an artifact to look into it. `None` if it does not exist.
    async fn open(&self, name: &ArtifactName) -> Result<Option<File>, BlobError>;

    /// Opens the content of an artifact to send it; with its size in bytes. `None` if it does not exist.
    async fn stream(&self, name: &ArtifactName) -> Result<Option<(u64, ByteStream)>, BlobError>;

    /// Whether the content is known to be missing, although its row says that it exists. Asks no other machine: `false` if
    /// only that would tell.
    fn is_lost(&self, name: &ArtifactName) -> bool;

    /// Deletes the content of an artifact, if it exists. A caller that has opened it can still read it.
    async fn delete(&self, name: &ArtifactName) -> Result<(), BlobError>;

    /// Returns the names of what is kept for a job.
    async fn list(&self, job: JobId) -> Result<Vec<ArtifactName>, BlobError>;
}

/// The content of an artifact on its way.
#[async_trait]
pub(crate) trait Incoming: Send {
    /// Adds bytes.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError>;

    /// Opens what was written, from its start.
    async fn open(&mut self) -> Result<File, BlobError>;

    /// Keeps it under a name, in place of what had that name.
    async fn keep(self: Box<Self>, name: &ArtifactName) -> Result<(), BlobError>;
}

/// Runs file work on a thread that may block.
pub(crate) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<BlobError> + Send + 'static,
{
    let interrupted = || BlobError::new("a file", io::Error::other("the operation was interrupted")).into();
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(interrupted()))
}
