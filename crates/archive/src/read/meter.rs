//! Counts what an archive unpacks to, and ends reading at a limit.

use std::cell::Cell;
use std::io::{self, Read};

use crate::UnpackError;
use crate::limits::{Exceeded, Limit, Limits};

/// The counters of one archive.
pub(super) struct Meter<'a> {
    limits: Limits,
    /// Size of the archive in bytes.
    size: u64,
    stop: &'a dyn Fn() -> bool,
    entries: Cell<u64>,
    bytes: Cell<u64>,
    /// Bytes of headers that may still be read. `None` while content is read.
    headers: Cell<Option<u64>>,
    exceeded: Cell<Option<Exceeded>>,
    stopped: Cell<bool>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(limits: Limits, size: u64, stop: &'a dyn Fn() -> bool) -> Self {
        Self {
            limits,
            size,
            stop,
            entries: Cell::new(0),
            bytes: Cell::new(0),
            headers: Cell::new(None),
            exceeded: Cell::new(None),
            stopped: Cell::new(false),
        }
    }

    /// Returns the stop or the exceeded limit that ended reading.
    pub(super) fn cause(&self) -> Option<UnpackError> {
        if self.stopped.get() {
            return Some(UnpackError::Stopped);
        }
        self.exceeded.get().map(UnpackError::Limit)
    }

    /// Compares what a zip archive says of its directory with the limits.
    pub(super) fn directory(&self, entries: u64, bytes: u64) -> Result<(), UnpackError> {
        let limits = &self.limits;
        self.check(entries <= limits.entries, Limit::Entries, limits.entries)
            .and_then(|()| self.check(bytes <= limits.header_bytes, Limit::HeaderBytes, limits.header_bytes))
            .map_err(UnpackError::Broken)
    }

    /// Counts one more entry.
    pub(super) fn entry(&self) -> Result<(), UnpackError> {
        self.check_stop().map_err(UnpackError::Broken)?;
        self.entries.set(self.entries.get() + 1);
        self.check(self.entries.get() <= self.limits.entries, Limit::Entries, self.limits.entries)
            .map_err(UnpackError::Broken)
    }

    /// Limits what `read` reads through a [`Headers`] reader of this meter.
    pub(super) fn headers<T>(&self, read: impl FnOnce() -> T) -> T {
        self.headers.set(Some(self.limits.header_bytes));
        let result = read();
        self.headers.set(None);
        result
    }

    fn header(&self, bytes: u64) -> io::Result<()> {
        let Some(left) = self.headers.get() else { return Ok(()) };
        self.headers.set(Some(left.saturating_sub(bytes)));
        self.check(bytes <= left, Limit::HeaderBytes, self.limits.header_bytes)
    }

    fn content(&self, bytes: u64) -> io::Result<()> {
        let bytes = self.bytes.get().saturating_add(bytes);
        self.bytes.set(bytes);
        let limits = &self.limits;
        self.check(bytes <= limits.bytes, Limit::Bytes, limits.bytes)?;
        let is_dense = bytes <= limits.ratio_floor || bytes <= self.size.saturating_mul(limits.ratio);
        self.check(is_dense, Limit::Ratio, limits.ratio)
    }

    fn check(&self, fits: bool, limit: Limit, max: u64) -> io::Result<()> {
        if fits {
            return Ok(());
        }
        let exceeded = Exceeded { limit, max };
        self.exceeded.set(Some(exceeded));
        Err(io::Error::other(exceeded))
    }

    fn check_stop(&self) -> io::Result<()> {
        if (self.stop)() {
            self.stopped.set(true);
            // Not `Interrupted`, which is tried again.
            return Err(io::Error::other("stopped"));
        }
        Ok(())
    }
}

/// A reader below a library that parses headers.
pub(super) struct Headers<'a, R> {
    pub(super) inner: R,
    pub(super) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Headers<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.meter.header(read as u64)?;
        Ok(read)
    }
}

/// The content of an entry.
pub(super) struct Content<'a, R> {
    pub(super) inner: R,
    pub(super) meter: &'a Meter<'a>,
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.meter.check_stop()?;
        let read = self.inner.read(buffer)?;
        self.meter.content(read as u64)?;
        Ok(read)
    }
}
