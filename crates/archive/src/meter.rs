//! Counts the unpacked entries and bytes of an archive. Ends reading when a limit is exceeded or the caller stops it.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};

use crate::UnpackError;
use crate::limits::{Exceeded, Limit, Limits};

/// The counters of one archive, for reading it and for writing its entries.
pub struct Meter<'a> {
    limits: Limits,
    /// Size of the archive in bytes.
    size: Cell<u64>,
    stop: &'a dyn Fn() -> bool,
    entries: Cell<u64>,
    bytes: Cell<u64>,
    /// Bytes of headers that may still be read. `None` while content is read.
    headers: Cell<Option<u64>>,
    /// Bytes of names and targets that may still be stored until the end.
    retainable: Cell<u64>,
    exceeded: Cell<Option<Exceeded>>,
    stopped: Cell<bool>,
}

impl std::fmt::Debug for Meter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("entries", &self.entries).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<'a> Meter<'a> {
    /// Counts up to `limits`. `stop` is called before each read, each directory and each link. If it returns true, the
    /// work ends.
    #[must_use]
    pub fn new(limits: Limits, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            limits,
            size: Cell::new(u64::MAX),
            stop,
            entries: Cell::new(0),
            bytes: Cell::new(0),
            headers: Cell::new(None),
            retainable: Cell::new(limits.header_bytes),
            exceeded: Cell::new(None),
            stopped: Cell::new(false),
        }
    }

    /// Sets the size of the archive, from which the compression ratio is computed.
    pub(crate) fn set_size(&self, bytes: u64) {
        self.size.set(bytes);
    }

    /// Returns the error of the stop or the exceeded limit that ended reading, if there was one.
    pub(crate) fn cause(&self) -> Option<UnpackError> {
        if self.stopped.get() {
            return Some(UnpackError::Stopped);
        }
        self.exceeded.get().map(UnpackError::Limit)
    }

    /// Compares the number of entries and the size of a zip directory, as its end record declares them, with the limits.
    pub(crate) fn check_zip_directory(&self, entries: u64, bytes: u64) -> Result<(), UnpackError> {
        let limits = &self.limits;
        self.check(entries <= limits.entries, Limit::Entries, limits.entries)?;
        self.check(bytes <= limits.header_bytes, Limit::HeaderBytes, limits.header_bytes)?;
        Ok(())
    }

    /// Counts one more entry, or a directory that the name of an entry implies.
    pub(crate) fn count_entry(&self) -> Result<(), UnpackError> {
        self.check_stop()?;
        self.entries.set(self.entries.get() + 1);
        self.check(self.entries.get() <= self.limits.entries, Limit::Entries, self.limits.entries)?;
        Ok(())
    }

    /// Counts bytes of names and targets that are stored until the end.
    pub(crate) fn retain(&self, bytes: usize) -> Result<(), UnpackError> {
        let remaining = self.retainable.get().checked_sub(bytes as u64);
        self.retainable.set(remaining.unwrap_or_default());
        self.check(remaining.is_some(), Limit::HeaderBytes, self.limits.header_bytes)?;
        Ok(())
    }

    /// Calls `read`, and limits the bytes that it reads through a [`Headers`] reader of this meter.
    pub(crate) fn limit_headers<T>(&self, read: impl FnOnce() -> T) -> T {
        self.headers.set(Some(self.limits.header_bytes));
        let result = read();
        self.headers.set(None);
        result
    }

    fn count_header(&self, bytes: u64) -> io::Result<()> {
        let Some(remaining) = self.headers.get() else { return Ok(()) };
        self.headers.set(Some(remaining.saturating_sub(bytes)));
        self.check(bytes <= remaining, Limit::HeaderBytes, self.limits.header_bytes).map_err(io::Error::other)
    }

    fn count_content(&self, bytes: u64) -> io::Result<()> {
        let bytes = self.bytes.get().saturating_add(bytes);
        self.bytes.set(bytes);
        let limits = &self.limits;
        self.check(bytes <= limits.bytes, Limit::Bytes, limits.bytes).map_err(io::Error::other)?;
        let ratio_fits = bytes <= limits.ratio_floor || bytes <= self.size.get().saturating_mul(limits.ratio);
        self.check(ratio_fits, Limit::Ratio, limits.ratio).map_err(io::Error::other)
    }

    fn check(&self, fits: bool, limit: Limit, max: u64) -> Result<(), Exceeded> {
        if fits {
            return Ok(());
        }
        let exceeded = Exceeded { limit, max };
        self.exceeded.set(Some(exceeded));
        Err(exceeded)
    }

    /// Fails if the caller's `stop` function returns true.
    pub(crate) fn check_stop(&self) -> Result<(), UnpackError> {
        if (self.stop)() {
            self.stopped.set(true);
            return Err(UnpackError::Stopped);
        }
        Ok(())
    }
}

/// Reader of the archive itself. It checks for a stop at each read, so even a million empty blocks, which yield no content, can be
/// stopped.
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

/// Reader that passes bytes to a library that parses headers, and counts them.
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

/// Reader of the content of an entry. It counts the bytes.
pub(crate) struct Content<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Not `ErrorKind::Interrupted`, because callers retry after it.
        self.meter.check_stop().map_err(io::Error::other)?;
        let read = self.inner.read(buffer)?;
        self.meter.count_content(read as u64)?;
        Ok(read)
    }
}
