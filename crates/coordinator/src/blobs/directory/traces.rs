//! Traces in files: one per job, which only grows, and only at its end (J3).
//!
//! The file's length is the acknowledged length. Bytes at any other offset are not taken; the caller is told the length
//! and goes on from there (runner-api 11.11). A write that fails half-way is cut off again, so that the same bytes can be
//! sent once more.

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
/// So much is written at once, by the caller's own thread: handing it to another one costs more than the system's copy.
const AT_ONCE: usize = 64 * 1024;

/// All traces of a state folder.
#[derive(Debug)]
pub(super) struct Traces {
    dir: PathBuf,
    /// Traces that are being written.
    open: Mutex<HashMap<JobId, Arc<Mutex<Trace>>>>,
}

/// A trace that is being written.
#[derive(Debug)]
struct Trace {
    path: PathBuf,
    /// None: it is opened, and its length read, by the next append.
    writer: Option<Writer>,
}

#[derive(Debug)]
struct Writer {
    file: File,
    size: u64,
    checksum: crc32fast::Hasher,
}

impl Traces {
    /// The traces in a folder.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, open: Mutex::default() }
    }

    /// Where a trace lies.
    pub(super) fn path(&self, job: JobId) -> PathBuf {
        self.dir.join(format!("{job}.log"))
    }

    /// Appends bytes, if they belong at the end.
    pub(super) async fn append(
        &self,
        job: JobId,
        start: u64,
        bytes: Bytes,
        bytes_max: u64,
    ) -> Result<Appended, BlobError> {
        let few = bytes.len() <= AT_ONCE;
        let append =
            move |trace: &mut Trace| trace.append(start, &bytes, bytes_max).map_err(|error| failed(&trace.path, error));
        self.with(job, few, append).await
    }

    /// Length and CRC-32 of what was written.
    pub(super) async fn checksum(&self, job: JobId) -> Result<(u64, u32), BlobError> {
        let sum = |trace: &mut Trace| {
            let path = trace.path.clone();
            let writer = trace.writer().map_err(|error| failed(&path, error))?;
            Ok((writer.size, writer.checksum.clone().finalize()))
        };
        self.with(job, true, sum).await
    }

    /// Does something with a trace: at once where it is `quick` for one that needs not be read first and that nobody uses,
    /// else on a thread that may block.
    async fn with<T: Send + 'static>(
        &self,
        job: JobId,
        quick: bool,
        work: impl FnOnce(&mut Trace) -> Result<T, BlobError> + Send + 'static,
    ) -> Result<T, BlobError> {
        let trace = self.entry(job);
        if quick
            && let Some(mut trace) = trace.try_lock()
            && trace.is_at_hand()
        {
            return work(&mut trace);
        }
        blocking(move || work(&mut trace.lock())).await
    }

    /// The job is over: its file is closed.
    pub(super) fn close(&self, job: JobId) {
        self.open.lock().remove(&job);
    }

    fn entry(&self, job: JobId) -> Arc<Mutex<Trace>> {
        let new = || Arc::new(Mutex::new(Trace { path: self.path(job), writer: None }));
        Arc::clone(self.open.lock().entry(job).or_insert_with(new))
    }
}

impl Trace {
    /// Whether it is open, or new: one with content is read from its start when it is opened.
    fn is_at_hand(&self) -> bool {
        self.writer.is_some()
            || std::fs::symlink_metadata(&self.path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    fn append(&mut self, start: u64, bytes: &[u8], bytes_max: u64) -> io::Result<Appended> {
        let writer = self.writer()?;
        if start != writer.size {
            return Ok(Appended::WrongOffset(writer.size));
        }
        let end = writer.size.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if end > bytes_max {
            return Ok(Appended::TooLarge);
        }
        if let Err(error) = writer.file.write_all(bytes) {
            // Cut off what came through. Should that fail, too, the next append opens the file anew and goes by its length.
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

/// The error of an access to a file.
fn failed(path: &Path, error: io::Error) -> BlobError {
    BlobError::new(format_args!("`{}`", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces() -> (tempfile::TempDir, Traces) {
        let dir = tempfile::tempdir().expect("a folder");
        let traces = Traces::new(dir.path().to_owned());
        (dir, traces)
    }

    async fn append(traces: &Traces, start: u64, bytes: &'static str) -> Appended {
        traces.append(JobId(1), start, Bytes::from_static(bytes.as_bytes()), 100).await.expect("written")
    }

    #[tokio::test]
    async fn length_and_checksum_come_from_the_file_after_a_restart() {
        let (dir, before) = traces();
        append(&before, 0, "hello ").await;
        let after = Traces::new(dir.path().to_owned());
        assert_eq!(append(&after, 6, "world").await, Appended::Yes(11));
        assert_eq!(after.checksum(JobId(1)).await.expect("sum"), (11, crc32fast::hash(b"hello world")));
    }

    #[tokio::test]
    async fn a_full_disk_loses_nothing_once_there_is_space_again() {
        let (_dir, traces) = traces();
        let path = traces.path(JobId(1));
        std::os::unix::fs::symlink("/dev/full", &path).expect("a disk that is always full");
        let error = traces.append(JobId(1), 0, Bytes::from_static(b"hello"), 100).await.expect_err("no space");
        assert!(matches!(error, BlobError::Full { .. }), "{error}");
        std::fs::remove_file(&path).expect("space again");
        assert_eq!(append(&traces, 0, "hello").await, Appended::Yes(5));
    }
}
