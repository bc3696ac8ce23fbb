//! Counts unpacked entries and bytes, and ends reading above a limit or after a stop.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::UnpackError;
use crate::limits::{Exceeded, Limit, Limits};

/// Counters of one archive, for one or more threads.
pub struct Meter<'a> {
    limits: Limits,
    /// Size of the archive in bytes. `u64::MAX` means that it is unknown, so that the ratio has no limit.
    size: AtomicU64,
    stop: &'a (dyn Fn() -> bool + Sync),
    entries: AtomicU64,
    bytes: AtomicU64,
    /// Whether bytes of headers are counted.
    counts_headers: AtomicBool,
    /// Number of bytes of headers that may still be read.
    headers: AtomicU64,
    /// Number of bytes of names and targets that may still be added to those in memory.
    retainable: AtomicU64,
    /// Limit that was exceeded first.
    exceeded: OnceLock<Exceeded>,
    stopped: AtomicBool,
}

impl std::fmt::Debug for Meter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("entries", &self.entries).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<'a> Meter<'a> {
    /// Returns counters with these limits. `stop` is called before each read, for example, and ends the work if it
    /// returns true.
    #[must_use]
    pub fn new(limits: Limits, stop: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self {
            limits,
            size: AtomicU64::new(u64::MAX),
            stop,
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            counts_headers: AtomicBool::new(false),
            headers: AtomicU64::new(0),
            retainable: AtomicU64::new(limits.header_bytes),
            exceeded: OnceLock::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Sets the size of the archive in bytes, for the compression ratio.
    pub fn set_size(&self, bytes: u64) {
        self.size.store(bytes, Relaxed);
    }

    /// Returns the stop or exceeded limit that ended the reading, if any.
    pub fn cause(&self) -> Option<UnpackError> {
        if self.stopped.load(Relaxed) {
            return Some(UnpackError::Stopped);
        }
        self.exceeded.get().copied().map(UnpackError::Limit)
    }

    /// Checks the declared number of entries and size of a zip directory.
    pub(crate) fn check_zip_directory(&self, entries: u64, bytes: u64) -> Result<(), UnpackError> {
        let limits = &self.limits;
        self.check(entries <= limits.entries, Limit::Entries, limits.entries)?;
        self.check(bytes <= limits.header_bytes, Limit::HeaderBytes, limits.header_bytes)?;
        Ok(())
    }

    /// Counts an entry, or a directory that a name implies.
    ///
    /// # Errors
    /// [`UnpackError::Limit`], or [`UnpackError::Stopped`] after a stop.
    pub fn count_entry(&self) -> Result<(), UnpackError> {
        self.check_stop()?;
        let entries = self.entries.fetch_add(1, Relaxed) + 1;
        self.check(entries <= self.limits.entries, Limit::Entries, self.limits.entries)?;
        Ok(())
    }

    /// Counts bytes of names and targets that stay in memory.
    pub(crate) fn count_retained(&self, bytes: usize) -> Result<(), UnpackError> {
        let fits = take(&self.retainable, bytes as u64);
        self.check(fits, Limit::HeaderBytes, self.limits.header_bytes)?;
        Ok(())
    }

    /// Limits the bytes that `read` reads through a [`Headers`] reader.
    pub(crate) fn limit_headers<T>(&self, read: impl FnOnce() -> T) -> T {
        self.headers.store(self.limits.header_bytes, Relaxed);
        self.counts_headers.store(true, Relaxed);
        let result = read();
        self.counts_headers.store(false, Relaxed);
        result
    }

    fn count_header(&self, bytes: u64) -> io::Result<()> {
        let fits = !self.counts_headers.load(Relaxed) || take(&self.headers, bytes);
        self.check(fits, Limit::HeaderBytes, self.limits.header_bytes).map_err(io::Error::other)
    }

    /// Returns a reader that counts an entry's content, and fails after a stop or above a limit.
    pub fn content<R: Read>(&self, inner: R) -> impl Read {
        Content { inner, meter: self }
    }

    fn count_content(&self, bytes: u64) -> io::Result<()> {
        let bytes = self.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let limits = &self.limits;
        self.check(bytes <= limits.bytes, Limit::Bytes, limits.bytes).map_err(io::Error::other)?;
        let ratio_fits = bytes <= limits.ratio_floor || bytes <= self.size.load(Relaxed).saturating_mul(limits.ratio);
        self.check(ratio_fits, Limit::Ratio, limits.ratio).map_err(io::Error::other)
    }

    fn check(&self, fits: bool, limit: Limit, max: u64) -> Result<(), Exceeded> {
        if fits {
            return Ok(());
        }
        let exceeded = Exceeded { limit, max };
        Err(*self.exceeded.get_or_init(|| exceeded))
    }

    /// Fails after a stop.
    ///
    /// # Errors
    /// [`UnpackError::Stopped`]
    pub fn check_stop(&self) -> Result<(), UnpackError> {
        if (self.stop)() {
            self.stopped.store(true, Relaxed);
            return Err(UnpackError::Stopped);
        }
        Ok(())
    }
}

/// Subtracts `bytes` from a counter. Returns false if it is too small.
fn take(counter: &AtomicU64, bytes: u64) -> bool {
    let before = counter.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(bytes)));
    before.is_ok_and(|before| before >= bytes)
}

/// Reader of the archive itself. It also checks for a stop, because a decompressor may read a million empty blocks
/// before it returns any content.
pub(crate) struct Packed<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Packed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.meter.check_stop().map_err(io::Error::other)?;
        self.inner.read(buffer)
    }
}

impl<R: Seek> Seek for Packed<'_, R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// Reader that counts bytes of headers.
pub(crate) struct Headers<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Headers<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.meter.count_header(read as u64)?;
        Ok(read)
    }
}

/// Reader that counts bytes of content.
pub(crate) struct Content<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Do not return `ErrorKind::Interrupted`, after which callers would retry.
        self.meter.check_stop().map_err(io::Error::other)?;
        let read = self.inner.read(buffer)?;
        self.meter.count_content(read as u64)?;
        Ok(read)
    }
}
