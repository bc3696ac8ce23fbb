//! Traces in files: one append-only file per job (invariant J3 of ARCHITECTURE.md).
//!
//! The length of the file is the acknowledged length. Bytes that do not start at this offset are rejected, and the
//! answer holds the length (docs/spec/runner-api.md, section 11, trap 11). After a failed write, the file is truncated
//! to its previous length, so that the same bytes can be sent again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use muster_job::JobId;
use parking_lot::Mutex;

use super::super::{Appended, BlobError, blocking};

/// Bytes per read while a checksum is computed.
const CHUNK: usize = 64 * 1024;
/// Maximum number of bytes that are written on the caller's thread. A switch of threads would cost more than the write.
const MAX_INLINE_WRITE: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Traces {
    dir: PathBuf,
    /// Traces that are being written.
    open: Mutex<HashMap<JobId, Arc<Mutex<Trace>>>>,
}

#[derive(Debug)]
struct Trace {
    path: PathBuf,
    /// `None` means that the next append or checksum opens the file and reads its length.
    writer: Option<Writer>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    size: u64,
    checksum: crc32fast::Hasher,
}

impl Traces {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, open: Mutex::default() }
    }

    pub(super) fn path(&self, job: JobId) -> PathBuf {
        self.dir.join(format!("{job}.log"))
    }

    pub(super) async fn append(
        &self,
        job: JobId,
        start: u64,
        bytes: Bytes,
        max_bytes: u64,
    ) -> Result<Appended, BlobError> {
        let is_small = bytes.len() <= MAX_INLINE_WRITE;
        let append =
            move |trace: &mut Trace| trace.append(start, &bytes, max_bytes).map_err(|error| failed(&trace.path, error));
        self.with_trace(job, is_small, append).await
    }

    /// Returns the length and the CRC-32 checksum of a trace.
    pub(super) async fn checksum(&self, job: JobId) -> Result<(u64, u32), BlobError> {
        let sum = |trace: &mut Trace| {
            let path = trace.path.clone();
            let writer = trace.writer().map_err(|error| failed(&path, error))?;
            Ok((writer.size, writer.checksum.clone().finalize()))
        };
        self.with_trace(job, true, sum).await
    }

    /// Runs `work` on this thread if `is_quick` is set, the trace is not in use, and its file need not be read first.
    /// Otherwise, uses a thread for blocking work.
    async fn with_trace<T: Send + 'static>(
        &self,
        job: JobId,
        is_quick: bool,
        work: impl FnOnce(&mut Trace) -> Result<T, BlobError> + Send + 'static,
    ) -> Result<T, BlobError> {
        let trace = self.entry(job);
        if is_quick
            && let Some(mut trace) = trace.try_lock()
            && trace.opens_quickly()
        {
            return work(&mut trace);
        }
        blocking(move || work(&mut trace.lock())).await
    }

    pub(super) fn close(&self, job: JobId) {
        self.open.lock().remove(&job);
    }

    fn entry(&self, job: JobId) -> Arc<Mutex<Trace>> {
        let new = || Arc::new(Mutex::new(Trace { path: self.path(job), writer: None }));
        Arc::clone(self.open.lock().entry(job).or_insert_with(new))
    }
}

impl Trace {
    /// Returns `false` if an existing file must first be read from its start.
    fn opens_quickly(&self) -> bool {
        self.writer.is_some()
            || std::fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn append(&mut self, start: u64, bytes: &[u8], max_bytes: u64) -> io::Result<Appended> {
        let writer = self.writer()?;
        if start != writer.size {
            return Ok(Appended::WrongOffset(writer.size));
        }
        let end = writer.size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if end > max_bytes {
            return Ok(Appended::TooLarge);
        }
        if let Err(error) = writer.file.write_all(bytes) {
            // Truncate the file to its previous length. If that fails too, the next append uses its actual length.
            let _ = writer.file.set_len(writer.size);
            self.writer = None;
            return Err(error);
        }
        writer.size = end;
        writer.checksum.update(bytes);
        Ok(Appended::Yes(end))
    }

    fn writer(&mut self) -> io::Result<&mut Writer> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => Writer::open(&self.path)?,
        };
        Ok(self.writer.insert(writer))
    }
}

impl Writer {
    fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = OpenOptions::new().create(true).read(true).append(true).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        let mut checksum = crc32fast::Hasher::new();
        let mut size = 0;
        let mut chunk = vec![0; if length == 0 { 0 } else { CHUNK }];
        while size < length {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            checksum.update(chunk.get(..read).unwrap_or_default());
            size += u64::try_from(read).unwrap_or(0);
        }
        Ok(Self { file, size, checksum })
    }
}

fn failed(path: &Path, error: io::Error) -> BlobError {
    BlobError::new(format_args!("`{}`", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces() -> (tempfile::TempDir, Traces) {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let traces = Traces::new(dir.path().to_owned());
        (dir, traces)
    }

    async fn append(traces: &Traces, start: u64, bytes: &'static str) -> Appended {
        traces.append(JobId(1), start, Bytes::from_static(bytes.as_bytes()), 100).await.expect("failed to write")
    }

    #[tokio::test]
    async fn length_and_checksum_come_from_the_file_after_a_restart() {
        let (dir, before) = traces();
        append(&before, 0, "hello ").await;
        let after = Traces::new(dir.path().to_owned());
        assert_eq!(append(&after, 6, "world").await, Appended::Yes(11));
        assert_eq!(
            after.checksum(JobId(1)).await.expect("failed to compute the checksum"),
            (11, crc32fast::hash(b"hello world"))
        );
    }

    #[tokio::test]
    async fn trace_append_succeeds_again_after_a_full_disk() {
        let (_dir, traces) = traces();
        let path = traces.path(JobId(1));
        std::os::unix::fs::symlink("/dev/full", &path).expect("failed to link to a disk that is always full");
        let error =
            traces.append(JobId(1), 0, Bytes::from_static(b"hello"), 100).await.expect_err("wrote to a full disk");
        assert!(matches!(error, BlobError::Full { .. }), "{error}");
        std::fs::remove_file(&path).expect("failed to delete the link");
        assert_eq!(append(&traces, 0, "hello").await, Appended::Yes(5));
    }
}
