//! Blobs in the memory of this process. Content that is read as a file is copied to an unnamed temporary file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, Write};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use muster_job::JobId;
use muster_runner_api::service::ByteStream;
use parking_lot::Mutex;

use super::{Appended, ArtifactName, BlobError, Blobs, Incoming, MAX_READ};

#[derive(Debug, Default)]
pub(crate) struct MemoryBlobs {
    traces: Mutex<BTreeMap<JobId, Vec<u8>>>,
    artifacts: Arc<Mutex<BTreeMap<ArtifactName, Bytes>>>,
}

struct IncomingBytes {
    bytes: Vec<u8>,
    artifacts: Arc<Mutex<BTreeMap<ArtifactName, Bytes>>>,
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn append_trace(&self, job: JobId, start: u64, bytes: Bytes, max_bytes: u64) -> Result<Appended, BlobError> {
        let mut traces = self.traces.lock();
        let trace = traces.entry(job).or_default();
        if start != length(trace) {
            return Ok(Appended::WrongOffset(length(trace)));
        }
        if start.saturating_add(length(&bytes)) > max_bytes {
            return Ok(Appended::TooLarge);
        }
        trace.extend_from_slice(&bytes);
        Ok(Appended::Yes(length(trace)))
    }

    async fn trace_checksum(&self, job: JobId) -> Result<(u64, u32), BlobError> {
        let traces = self.traces.lock();
        let trace = traces.get(&job).map_or(&[][..], Vec::as_slice);
        Ok((length(trace), crc32fast::hash(trace)))
    }

    async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, BlobError> {
        let traces = self.traces.lock();
        let trace = traces.get(&job).map_or(&[][..], Vec::as_slice);
        let rest = usize::try_from(offset).ok().and_then(|offset| trace.get(offset..)).unwrap_or_default();
        let end = rest.len().min(usize::try_from(MAX_READ).unwrap_or(usize::MAX));
        Ok(Bytes::copy_from_slice(rest.get(..end).unwrap_or_default()))
    }

    async fn open_trace(&self, job: JobId) -> Result<Option<File>, BlobError> {
        let trace = self.traces.lock().get(&job).cloned();
        trace.map(|trace| temporary_file(&trace)).transpose()
    }

    fn close_trace(&self, _: JobId) {}

    async fn receive(&self) -> Result<Box<dyn Incoming>, BlobError> {
        Ok(Box::new(IncomingBytes { bytes: Vec::new(), artifacts: Arc::clone(&self.artifacts) }))
    }

    async fn open(&self, name: &ArtifactName) -> Result<Option<File>, BlobError> {
        let content = self.artifacts.lock().get(name).cloned();
        content.map(|content| temporary_file(&content)).transpose()
    }

    async fn stream(&self, name: &ArtifactName) -> Result<Option<(u64, ByteStream)>, BlobError> {
        let content = self.artifacts.lock().get(name).cloned();
        Ok(content.map(|content| (length(&content), futures::stream::iter([Ok(content)]).boxed())))
    }

    fn is_lost(&self, name: &ArtifactName) -> bool {
        !self.artifacts.lock().contains_key(name)
    }

    async fn delete(&self, name: &ArtifactName) -> Result<(), BlobError> {
        self.artifacts.lock().remove(name);
        Ok(())
    }

    async fn list(&self, job: JobId) -> Result<Vec<ArtifactName>, BlobError> {
        Ok(self.artifacts.lock().keys().filter(|name| name.job == job).cloned().collect())
    }
}

#[async_trait]
impl Incoming for IncomingBytes {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    async fn open(&mut self) -> Result<File, BlobError> {
        temporary_file(&self.bytes)
    }

    async fn store(self: Box<Self>, name: &ArtifactName) -> Result<(), BlobError> {
        self.artifacts.lock().insert(name.clone(), self.bytes.into());
        Ok(())
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn temporary_file(bytes: &[u8]) -> Result<File, BlobError> {
    let create = || {
        let mut file = tempfile::tempfile()?;
        file.write_all(bytes)?;
        file.rewind()?;
        Ok(file)
    };
    create().map_err(|error| BlobError::new("an unnamed file", error))
}
