//! Writes a job's trace: masking, then timestamps, then valid UTF-8 and the size limit (docs/spec/job-execution.md, section 1.10).
//!
//! The sink at the end receives the trace, byte for byte.

mod limit;
mod timestamps;

use std::io;

use muster_job::mask::{Masker, Secrets};
use muster_steps::log::{Log, Stream};
use parking_lot::Mutex;

use limit::SizeLimiter;
use timestamps::LineTimestamper;

/// Storage for the bytes of a trace.
pub trait Sink: Send {
    /// Appends `bytes`. If the disk is full, appends as many bytes as possible, and fails.
    ///
    /// # Errors
    /// The bytes cannot be written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Options of a trace.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// Values to mask.
    pub secrets: Secrets,
    /// Whether each line starts with the time and the stream.
    pub timestamps: bool,
    /// Maximum size in bytes. Further output is dropped. 0 means 4 MiB.
    pub limit: u64,
}

/// Callback for the first error of the sink.
pub type OnFault = Box<dyn Fn(&io::Error) + Send + Sync>;

/// Trace of a job, open for writing.
pub struct Trace {
    timestamps: bool,
    on_fault: OnFault,
    inner: Mutex<Inner>,
}

struct Inner {
    channels: Vec<(Stream, Channel)>,
    limiter: SizeLimiter,
    sink: Box<dyn Sink>,
    /// Whether the sink failed. Later output is dropped, because there would be a gap before it.
    faulted: bool,
    buffers: [Vec<u8>; 3],
}

struct Channel {
    masker: Masker,
    stamper: Option<LineTimestamper>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("timestamps", &self.timestamps).finish_non_exhaustive()
    }
}

impl Trace {
    /// Returns a trace that writes to `sink`. `initial_length` is the current size of the sink, which counts against the limit.
    #[must_use]
    pub fn new(options: &TraceOptions, sink: Box<dyn Sink>, initial_length: u64, on_fault: OnFault) -> Self {
        // Without timestamps all streams form one text, and a secret can be split between them.
        let streams: &[Stream] = if options.timestamps { &[Stream::Runner, Stream::Output] } else { &[Stream::Runner] };
        let channel = |stream: &Stream| {
            let stamper = options.timestamps.then(|| LineTimestamper::new(*stream));
            (*stream, Channel { masker: Masker::new(&options.secrets), stamper })
        };
        Self {
            timestamps: options.timestamps,
            on_fault,
            inner: Mutex::new(Inner {
                channels: streams.iter().map(channel).collect(),
                limiter: SizeLimiter::new(options.limit, initial_length),
                sink,
                faulted: false,
                buffers: Default::default(),
            }),
        }
    }

    /// Writes, unless the sink failed before. Reports the first failure.
    fn write_or_report(&self, write: impl FnOnce(&mut Inner) -> io::Result<()>) {
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

    /// Ends the trace: writes the output that was held back, then `last`. `last` is written even if the sink failed before.
    pub fn close(&self, last: &[u8]) {
        let mut inner = self.inner.lock();
        let mut result = inner.flush();
        if inner.faulted {
            // The fault callback has freed space for this text.
            result = inner.sink.append(b"\n").and_then(|()| inner.sink.append(last));
        } else {
            result = result.and_then(|()| inner.write(Stream::Runner, last)).and_then(|()| inner.flush());
            result = result.or_else(|error| {
                (self.on_fault)(&error);
                inner.sink.append(last)
            });
        }
        if let Err(error) = result {
            tracing::error!(%error, "failed to write the end of a job's log");
        }
    }
}

impl Log for Trace {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        self.write_or_report(|inner| inner.write(stream, bytes));
    }

    /// Writes an incomplete line, so that it precedes Muster's next message. Without timestamps there is only one stream, which is in
    /// order anyway.
    fn end_lines(&self) {
        if self.timestamps {
            self.write_or_report(|inner| inner.finish(Stream::Output));
        }
    }
}

impl Inner {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.process(stream, |masker, out| masker.push(bytes, out), false)
    }

    /// Writes the output of a stream that is held back.
    fn finish(&mut self, stream: Stream) -> io::Result<()> {
        self.process(stream, Masker::finish, true)
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

    fn process(&mut self, stream: Stream, mask: impl FnOnce(&mut Masker, &mut Vec<u8>), last: bool) -> io::Result<()> {
        if self.limiter.is_truncated() {
            // Output that will be dropped need not be masked.
            return Ok(());
        }
        let index = self.channels.iter().position(|(known, _)| *known == stream).unwrap_or(0);
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
