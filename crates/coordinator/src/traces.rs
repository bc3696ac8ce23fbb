//! Traces: one file per job that only grows, and only at its end (invariant J3).
//!
//! The file's length is the acknowledged length. Bytes at any other offset are not taken; the caller is told the length
//! and goes on from there (runner-api 11.11). A write that fails half-way is cut off again, so that the same bytes can be
//! sent once more.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use muster_job::JobId;
use muster_runner_api::service::ServiceError;
use parking_lot::Mutex;

use crate::error::{CoordinatorError, write_failed};

/// The folder below the state folder.
const FOLDER: &str = "traces";
/// The most that one read returns, in bytes.
const READ_MAX: u64 = 1024 * 1024;
/// Bytes per read while a checksum is computed.
const CHUNK: usize = 64 * 1024;
/// So much is written at once, by the caller's own thread: handing it to another one costs more than the system's copy.
const AT_ONCE: usize = 64 * 1024;

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    /// The bytes are in the file, which has this length now.
    Yes(u64),
    /// The file has this length, and the bytes belong elsewhere.
    WrongOffset(u64),
    /// With these bytes the trace would be larger than allowed; nothing was written.
    TooLarge,
}

/// All traces of a state folder.
#[derive(Debug)]
pub(crate) struct Traces {
    dir: PathBuf,
    bytes_max: u64,
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
    /// Opens the folder, and makes it if it is missing.
    pub(crate) fn open(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        let dir = dir.join(FOLDER);
        std::fs::create_dir_all(&dir)?;
        Ok(Self { dir, bytes_max, open: Mutex::default() })
    }

    /// Where a trace lies.
    pub(crate) fn path(&self, job: JobId) -> PathBuf {
        self.dir.join(format!("{job}.log"))
    }

    /// Appends bytes, if they belong at the end.
    pub(crate) async fn append(&self, job: JobId, start: u64, bytes: Bytes) -> Result<Appended, ServiceError> {
        let bytes_max = self.bytes_max;
        let few = bytes.len() <= AT_ONCE;
        let append = move |trace: &mut Trace| {
            trace.append(start, &bytes, bytes_max).map_err(|error| write_failed(&trace.path, &error))
        };
        self.with(job, few, append).await
    }

    /// Length and CRC-32 of what was written.
    pub(crate) async fn checksum(&self, job: JobId) -> Result<(u64, u32), ServiceError> {
        let sum = |trace: &mut Trace| {
            let path = trace.path.clone();
            let writer = trace.writer().map_err(|error| write_failed(&path, &error))?;
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
        work: impl FnOnce(&mut Trace) -> Result<T, ServiceError> + Send + 'static,
    ) -> Result<T, ServiceError> {
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
    pub(crate) fn close(&self, job: JobId) {
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

/// Reads a trace from `offset` on, at most 1 MiB; a trace that does not exist is empty.
pub(crate) async fn read(path: PathBuf, offset: u64) -> Result<Bytes, CoordinatorError> {
    let name = path.clone();
    let read = tokio::task::spawn_blocking(move || -> io::Result<Bytes> {
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Bytes::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(READ_MAX).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    });
    let result = read.await.map_err(|_| CoordinatorError::Closed)?;
    result.map_err(|source| CoordinatorError::Read { path: name, source })
}

/// The path of a trace below a state folder.
pub(crate) fn path_in(dir: &Path, job: JobId) -> PathBuf {
    dir.join(FOLDER).join(format!("{job}.log"))
}

/// The text of `output.checksum` (runner-api 3.3).
pub(crate) fn checksum_text(crc: u32) -> String {
    format!("crc32:{crc:08x}")
}

/// Runs file work on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
) -> Result<T, ServiceError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(ServiceError::Internal("a file operation was interrupted".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(bytes_max: u64) -> (tempfile::TempDir, Arc<Traces>) {
        let dir = tempfile::tempdir().expect("a folder");
        let traces = Arc::new(Traces::open(dir.path(), bytes_max).expect("traces"));
        (dir, traces)
    }

    async fn append(traces: &Arc<Traces>, start: u64, bytes: &'static str) -> Appended {
        traces.append(JobId(1), start, Bytes::from_static(bytes.as_bytes())).await.expect("written")
    }

    #[tokio::test]
    async fn bytes_are_taken_at_the_end_only() {
        let (_dir, traces) = traces(100);
        assert_eq!(append(&traces, 0, "hello ").await, Appended::Yes(6));
        assert_eq!(append(&traces, 0, "hello ").await, Appended::WrongOffset(6));
        assert_eq!(append(&traces, 7, "gap").await, Appended::WrongOffset(6));
        assert_eq!(append(&traces, 6, "world").await, Appended::Yes(11));
        assert_eq!(read(traces.path(JobId(1)), 6).await.expect("read"), "world");
        assert_eq!(read(traces.path(JobId(1)), 11).await.expect("read"), "");
        assert_eq!(traces.checksum(JobId(1)).await.expect("sum"), (11, crc32fast::hash(b"hello world")));
    }

    #[tokio::test]
    async fn length_and_checksum_come_from_the_file_after_a_restart() {
        let (dir, before) = traces(100);
        append(&before, 0, "hello ").await;
        let after = Arc::new(Traces::open(dir.path(), 100).expect("traces"));
        assert_eq!(append(&after, 6, "world").await, Appended::Yes(11));
        assert_eq!(after.checksum(JobId(1)).await.expect("sum"), (11, crc32fast::hash(b"hello world")));
    }

    #[tokio::test]
    async fn a_trace_does_not_pass_its_limit() {
        let (_dir, traces) = traces(8);
        assert_eq!(append(&traces, 0, "12345678").await, Appended::Yes(8));
        assert_eq!(append(&traces, 8, "9").await, Appended::TooLarge);
    }

    #[tokio::test]
    async fn a_full_disk_loses_nothing_once_there_is_space_again() {
        let (_dir, traces) = traces(100);
        let path = traces.path(JobId(1));
        std::os::unix::fs::symlink("/dev/full", &path).expect("a disk that is always full");
        let error = traces.append(JobId(1), 0, Bytes::from_static(b"hello")).await.expect_err("no space");
        assert!(matches!(error, ServiceError::StorageFull(_)), "{error}");
        std::fs::remove_file(&path).expect("space again");
        assert_eq!(append(&traces, 0, "hello").await, Appended::Yes(5));
    }
}
