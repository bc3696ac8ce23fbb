//! Log of a job. Each write wakes the readers.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream};
use muster_builtins::trace::Sink;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::quota::JobQuota;

const CHUNK_BYTES: usize = 512 * 1024;

thread_local! {
    /// Memory for this thread's chunks, reused after they were sent.
    static CHUNKS: RefCell<BytesMut> = RefCell::default();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    bytes: u64,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct LogFile {
    file: File,
    progress: watch::Sender<Progress>,
    crc: Mutex<crc32fast::Hasher>,
    quota: JobQuota,
}

impl LogFile {
    pub(super) fn open(path: &Path, quota: JobQuota) -> io::Result<Self> {
        let mut options = File::options();
        let mut file = muster_files::open_with(options.read(true).append(true).create(true).mode(0o600), path)?;
        let mut crc = crc32fast::Hasher::new();
        let mut bytes = 0;
        // A new log needs only a small buffer.
        let mut buffer = vec![0; if file.metadata()?.len() == 0 { 1 } else { CHUNK_BYTES }];
        loop {
            let length = file.read(&mut buffer)?;
            if length == 0 {
                break;
            }
            crc.update(buffer.get(..length).unwrap_or_default());
            bytes += length as u64;
        }
        let (progress, _) = watch::channel(Progress { bytes, closed: false });
        Ok(Self { file, progress, crc: Mutex::new(crc), quota })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.progress.borrow().bytes
    }

    pub(crate) fn crc32(&self) -> u32 {
        self.crc.lock().clone().finalize()
    }

    pub(crate) fn ends_with_line_break(&self) -> bool {
        let mut last = [b'\n'];
        match self.bytes() {
            0 => true,
            bytes => self.file.read_exact_at(&mut last, bytes - 1).is_ok() && last == *b"\n",
        }
    }

    pub(crate) fn close(&self) {
        self.progress.send_modify(|progress| progress.closed = true);
    }

    /// Appends bytes and wakes the readers. After an error, a part may be in the log.
    pub(crate) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.quota.reserve(bytes.len() as u64)?;
        let mut rest = bytes;
        let mut result = Ok(());
        while !rest.is_empty() {
            match (&self.file).write(rest) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    rest = rest.get(length..).unwrap_or_default();
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => result = Err(error),
            }
            break;
        }
        let written = bytes.len() - rest.len();
        if written > 0 {
            self.crc.lock().update(bytes.get(..written).unwrap_or_default());
            self.progress.send_modify(|progress| progress.bytes += written as u64);
        }
        result
    }

    pub(crate) fn follow(self: Arc<Self>, offset: u64) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        let progress = self.progress.subscribe();
        stream::try_unfold((self, progress, offset), |(log, mut progress, offset)| async move {
            loop {
                let now = *progress.borrow_and_update();
                if offset < now.bytes {
                    let wanted = usize::try_from(now.bytes - offset).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
                    let chunk = log.read(offset, wanted)?;
                    let next = offset + wanted as u64;
                    return Ok(Some((chunk, (log, progress, next))));
                }
                if now.closed || progress.changed().await.is_err() {
                    return Ok(None);
                }
            }
        })
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Bytes> {
        CHUNKS.with_borrow_mut(|chunks| {
            chunks.resize(length, 0);
            self.file.read_exact_at(chunks, offset).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "another process has shortened it; only the agent may change files in its spool",
                ),
                _ => error,
            })?;
            Ok(chunks.split().freeze())
        })
    }
}

pub(crate) struct LogSink(pub(crate) Arc<LogFile>);

impl Sink for LogSink {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }
}
