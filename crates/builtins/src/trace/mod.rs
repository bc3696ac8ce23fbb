//! The one way into a job's trace: masking, then timestamps, then clean UTF-8 within the size limit (job-execution
//! 1.10). What comes out at the far end is the trace, byte for byte.

mod limit;
mod stamp;

use std::io;

use muster_job::mask::{Masker, Secrets};
use muster_steps::log::{Log, Stream};
use parking_lot::Mutex;

use limit::Limiter;
use stamp::Stamper;

/// Where the bytes of a trace end up.
pub trait Sink: Send {
    /// Appends all of `bytes`, or as many as there is room for and then fails.
    ///
    /// # Errors
    /// What the disk says.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// What a trace looks like.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// What to mask.
    pub secrets: Secrets,
    /// Start each line with time and stream.
    pub timestamps: bool,
    /// Bytes after which output is dropped; 0 means 4 MiB.
    pub limit: u64,
}

/// Told once, with the first error of the sink.
pub type OnFault = Box<dyn Fn(&io::Error) + Send + Sync>;

/// A job's trace, open for writing.
pub struct Trace {
    timestamps: bool,
    on_fault: OnFault,
    inner: Mutex<Inner>,
}

struct Inner {
    channels: Vec<(Stream, Channel)>,
    limiter: Limiter,
    sink: Box<dyn Sink>,
    /// The sink failed: later output would leave a gap, and is dropped.
    faulted: bool,
    buffers: [Vec<u8>; 3],
}

struct Channel {
    masker: Masker,
    stamper: Option<Stamper>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("timestamps", &self.timestamps).finish_non_exhaustive()
    }
}

impl Trace {
    /// A trace that writes to `sink`. `already` is the sink's length: it counts against the limit.
    #[must_use]
    pub fn new(options: &TraceOptions, sink: Box<dyn Sink>, already: u64, on_fault: OnFault) -> Self {
        // Without timestamps all streams are one text, and a secret may run through all of them.
        let streams: &[Stream] = if options.timestamps { &[Stream::Runner, Stream::Output] } else { &[Stream::Runner] };
        let channel = |stream: &Stream| {
            let stamper = options.timestamps.then(|| Stamper::new(*stream));
            (*stream, Channel { masker: Masker::new(&options.secrets), stamper })
        };
        Self {
            timestamps: options.timestamps,
            on_fault,
            inner: Mutex::new(Inner {
                channels: streams.iter().map(channel).collect(),
                limiter: Limiter::new(options.limit, already),
                sink,
                faulted: false,
                buffers: Default::default(),
            }),
        }
    }

    /// Writes, unless the sink failed before; tells of the first failure.
    fn pass_on(&self, write: impl FnOnce(&mut Inner) -> io::Result<()>) {
        let mut inner = self.inner.lock();
        if inner.faulted {
            return;
        }
        if let Err(error) = write(&mut inner) {
            inner.faulted = true;
            drop(inner);
            (self.on_fault)(&error);
        }
    }

    /// The end: writes what was held back, then `last`, which is kept even where the disk had been full.
    pub fn close(&self, last: &[u8]) {
        let mut inner = self.inner.lock();
        let mut result = inner.flush();
        if inner.faulted {
            // Whoever was told has made room for this.
            result = inner.sink.append(b"\n").and_then(|()| inner.sink.append(last));
        } else {
            result = result.and_then(|()| inner.put(Stream::Runner, last)).and_then(|()| inner.flush());
            result = result.or_else(|error| {
                (self.on_fault)(&error);
                inner.sink.append(last)
            });
        }
        if let Err(error) = result {
            tracing::error!(%error, "the last words of a job could not be written to its log");
        }
    }
}

impl Log for Trace {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        self.pass_on(|inner| inner.put(stream, bytes));
    }

    /// So the line stands before what Muster prints next. Without timestamps all is one text, and nothing is out of order.
    fn end_lines(&self) {
        if self.timestamps {
            self.pass_on(|inner| inner.finish(Stream::Output));
        }
    }
}

impl Inner {
    fn put(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.pass(stream, |masker, out| masker.push(bytes, out), false)
    }

    /// Writes what a stream holds back.
    fn finish(&mut self, stream: Stream) -> io::Result<()> {
        self.pass(stream, Masker::finish, true)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.faulted {
            return Ok(());
        }
        let streams: Vec<Stream> = self.channels.iter().map(|(stream, _)| *stream).collect();
        for stream in streams {
            self.finish(stream)?;
        }
        let [_, _, out] = &mut self.buffers;
        out.clear();
        self.limiter.finish(out);
        self.sink.append(out)
    }

    fn pass(&mut self, stream: Stream, mask: impl FnOnce(&mut Masker, &mut Vec<u8>), last: bool) -> io::Result<()> {
        if self.limiter.is_cut() {
            // What nobody will see needs no mask.
            return Ok(());
        }
        let index = self.channels.iter().position(|(own, _)| *own == stream).unwrap_or(0);
        let Some((_, channel)) = self.channels.get_mut(index) else { return Ok(()) };
        let [masked, stamped, limited] = &mut self.buffers;
        masked.clear();
        stamped.clear();
        limited.clear();
        mask(&mut channel.masker, masked);
        match &mut channel.stamper {
            Some(stamper) => {
                stamper.push(masked, stamped);
                if last {
                    stamper.finish(stamped);
                }
                self.limiter.push(stamped, limited);
            }
            None => self.limiter.push(masked, limited),
        }
        if limited.is_empty() { Ok(()) } else { self.sink.append(limited) }
    }
}

#[cfg(test)]
mod tests;
