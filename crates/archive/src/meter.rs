//! Counts what an archive unpacks to, and ends the work at a limit or at a stop.

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
    /// Bytes of names and targets that may still be kept until the end.
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
    /// Counts up to `limits`. `stop` is asked before each read, each directory and each link; `true` ends the work.
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

    /// Sets the size of the archive, which its ratio is measured by.
    pub(crate) fn set_size(&self, bytes: u64) {
        self.size.set(bytes);
    }

    /// Returns the stop or the exceeded limit that ended reading.
    pub(crate) fn cause(&self) -> Option<UnpackError> {
        if self.stopped.get() {
            return Some(UnpackError::Stopped);
        }
        self.exceeded.get().map(UnpackError::Limit)
    }

    /// Compares what a zip archive says of its directory with the limits.
    pub(crate) fn directory(&self, entries: u64, bytes: u64) -> Result<(), UnpackError> {
        let limits = &self.limits;
        self.check(entries <= limits.entries, Limit::Entries, limits.entries)?;
        self.check(bytes <= limits.header_bytes, Limit::HeaderBytes, limits.header_bytes)?;
        Ok(())
    }

    /// Counts one more entry, or a directory that the name of one implies.
    pub(crate) fn entry(&self) -> Result<(), UnpackError> {
        self.check_stop()?;
        self.entries.set(self.entries.get() + 1);
        self.check(self.entries.get() <= self.limits.entries, Limit::Entries, self.limits.entries)?;
        Ok(())
    }

    /// Counts what is kept until the end.
    pub(crate) fn retain(&self, bytes: usize) -> Result<(), UnpackError> {
        let left = self.retainable.get().checked_sub(bytes as u64);
        self.retainable.set(left.unwrap_or_default());
        self.check(left.is_some(), Limit::HeaderBytes, self.limits.header_bytes)?;
        Ok(())
    }

    /// Limits what `read` reads through a [`Headers`] reader of this meter.
    pub(crate) fn headers<T>(&self, read: impl FnOnce() -> T) -> T {
        self.headers.set(Some(self.limits.header_bytes));
        let result = read();
        self.headers.set(None);
        result
    }

    fn header(&self, bytes: u64) -> io::Result<()> {
        let Some(left) = self.headers.get() else { return Ok(()) };
        self.headers.set(Some(left.saturating_sub(bytes)));
        self.check(bytes <= left, Limit::HeaderBytes, self.limits.header_bytes).map_err(io::Error::other)
    }

    fn content(&self, bytes: u64) -> io::Result<()> {
        let bytes = self.bytes.get().saturating_add(bytes);
        self.bytes.set(bytes);
        let limits = &self.limits;
        self.check(bytes <= limits.bytes, Limit::Bytes, limits.bytes).map_err(io::Error::other)?;
        let is_dense = bytes <= limits.ratio_floor || bytes <= self.size.get().saturating_mul(limits.ratio);
        self.check(is_dense, Limit::Ratio, limits.ratio).map_err(io::Error::other)
    }

    fn check(&self, fits: bool, limit: Limit, max: u64) -> Result<(), Exceeded> {
        if fits {
            return Ok(());
        }
        let exceeded = Exceeded { limit, max };
        self.exceeded.set(Some(exceeded));
        Err(exceeded)
    }

    /// Asks whether to stop.
    pub(crate) fn check_stop(&self) -> Result<(), UnpackError> {
        if (self.stop)() {
            self.stopped.set(true);
            return Err(UnpackError::Stopped);
        }
        Ok(())
    }
}

/// The archive itself. A part of it that yields nothing, such as a million empty blocks, ends at a stop too.
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

/// A reader below a library that parses headers.
pub(crate) struct Headers<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Headers<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.meter.header(read as u64)?;
        Ok(read)
    }
}

/// The content of an entry.
pub(crate) struct Content<'a, R> {
    pub(crate) inner: R,
    pub(crate) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Not `Interrupted`, which is tried again.
        self.meter.check_stop().map_err(io::Error::other)?;
        let read = self.inner.read(buffer)?;
        self.meter.content(read as u64)?;
        Ok(read)
    }
}
