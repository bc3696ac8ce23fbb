//! The port for data that is too large for rows: traces, and the content of artifacts.
//!
//! A trace only grows, and only at its end (invariant J3 of ARCHITECTURE.md). The content of an artifact is received,
//! checked by the caller, and then stored under its name or dropped.

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

pub(crate) const MAX_READ: u64 = 1024 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The bytes were appended. Holds the new length of the trace.
    Yes(u64),
    /// The bytes do not start at the end of the trace. Holds the length of the trace.
    WrongOffset(u64),
    /// The trace would become larger than allowed. No bytes were written.
    TooLarge,
}

/// Name under which the content of an artifact is stored.
///
/// A job has at most one artifact of each kind. While an upload with another file name replaces an artifact, the
/// contents of both exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ArtifactName {
    pub(crate) job: JobId,
    pub(crate) kind: String,
    pub(crate) filename: String,
}

#[async_trait]
pub(crate) trait Blobs: Send + Sync + fmt::Debug {
    /// Appends bytes that start at the end of a trace, unless the trace would become larger than `max_bytes`.
    async fn append_trace(&self, job: JobId, start: u64, bytes: Bytes, max_bytes: u64) -> Result<Appended, BlobError>;

    /// Returns the length and the CRC-32 checksum of a trace.
    async fn trace_checksum(&self, job: JobId) -> Result<(u64, u32), BlobError>;

    /// Returns at most [`MAX_READ`] bytes of a trace, starting at `offset`. Empty at the end, or if the trace does not exist.
    async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, BlobError>;

    /// Opens a trace for reading. `None` if the trace does not exist.
    async fn open_trace(&self, job: JobId) -> Result<Option<File>, BlobError>;

    /// Releases the resources for appending to a trace, after its job has ended.
    fn close_trace(&self, job: JobId);

    /// Starts to receive the content of an artifact. Content that is dropped without [`Incoming::store`] is deleted.
    async fn receive(&self) -> Result<Box<dyn Incoming>, BlobError>;

    async fn open(&self, name: &ArtifactName) -> Result<Option<File>, BlobError>;

    /// Returns the size in bytes and the content.
    async fn stream(&self, name: &ArtifactName) -> Result<Option<(u64, ByteStream)>, BlobError>;

    /// Returns whether the content is known to be missing. Does not use the network: `false` may mean that this is
    /// unknown.
    fn is_lost(&self, name: &ArtifactName) -> bool;

    /// Deletes the content of an artifact, if it exists. A caller that has already opened it can still read it.
    async fn delete(&self, name: &ArtifactName) -> Result<(), BlobError>;

    async fn list(&self, job: JobId) -> Result<Vec<ArtifactName>, BlobError>;
}

#[async_trait]
pub(crate) trait Incoming: Send {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError>;

    /// Opens the bytes that were written so far, for reading from the start.
    async fn open(&mut self) -> Result<File, BlobError>;

    /// Stores the content under a name, and replaces existing content of that name.
    async fn store(self: Box<Self>, name: &ArtifactName) -> Result<(), BlobError>;
}

pub(crate) async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<BlobError> + Send + 'static,
{
    let interrupted = || BlobError::new("a file", io::Error::other("the operation was interrupted")).into();
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(interrupted()))
}
