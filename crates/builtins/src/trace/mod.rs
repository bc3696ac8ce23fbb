//! Writes a job's trace: masks secrets, adds timestamps, and limits the size (docs/spec/job-execution.md, section
//! 1.10).

mod added_masks;
mod limit;
mod timestamps;

use std::cell::RefCell;
use std::io;

use muster_job::mask::{Masker, Secrets};
use muster_steps::log::{Log, Stream};
use muster_steps::style;
use parking_lot::Mutex;

use added_masks::{AddedMasks, COMMAND, Part};
use limit::SizeLimiter;
use timestamps::LineTimestamper;

/// Storage of a trace.
pub trait Sink: Send {
    /// Appends `bytes`. On a full disk, appends as many as possible, and fails.
    ///
    /// # Errors
    /// If not all bytes can be written.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// Options of a trace.
#[derive(Debug, Clone, Default)]
pub struct TraceOptions {
    /// Values to mask.
    pub secrets: Secrets,
    /// Whether `::add-mask::VALUE` adds values to mask.
    pub adds_masks: bool,
    /// Whether lines start with time and stream.
    pub timestamps: bool,
    /// Maximum size in bytes. Further output is dropped. 0 means 4 MiB.
    pub limit: u64,
}

/// Replacement of a masked value.
const MASKED: &str = "[MASKED]";

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
    secrets: Secrets,
    /// Whether values were added to `secrets`.
    has_added_secrets: bool,
    /// Finds values that the job adds. `None` means that it cannot add any.
    added_masks: Option<AddedMasks>,
    limiter: SizeLimiter,
    sink: Box<dyn Sink>,
    /// Whether the sink failed. Later output is dropped, because it would follow a gap.
    faulted: bool,
}

/// Buffers for one piece of output.
#[derive(Default)]
struct Buffers {
    masked: Vec<u8>,
    stamped: Vec<u8>,
}

thread_local! {
    /// Buffers that jobs on this thread share.
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

struct Channel {
    masker: StreamMasker,
    stamper: Option<LineTimestamper>,
}

/// Masks the output of a stream.
///
/// Preparing the search for secrets is expensive. After a secret was added, the next output prepares it again.
#[derive(Default)]
struct StreamMasker(Option<Masker>);

impl StreamMasker {
    fn push(&mut self, secrets: &Secrets, bytes: &[u8], out: &mut Vec<u8>) {
        self.0.get_or_insert_with(|| Masker::new(secrets)).push(bytes, out);
    }

    /// Appends output that was held back, and drops the masker. The next output creates one with all secrets that are
    /// then known.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if let Some(mut masker) = self.0.take() {
            masker.finish(out);
        }
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("timestamps", &self.timestamps).finish_non_exhaustive()
    }
}

impl Trace {
    /// Returns a trace that writes to `sink`. `initial_length` is the current size of the sink in bytes.
    #[must_use]
    pub fn new(options: &TraceOptions, sink: Box<dyn Sink>, initial_length: u64, on_fault: OnFault) -> Self {
        // Without timestamps, all streams are one text, and a secret can be split between them.
        let streams: &[Stream] = if options.timestamps { &[Stream::Runner, Stream::Output] } else { &[Stream::Runner] };
        let channel = |stream: &Stream| {
            let stamper = options.timestamps.then(|| LineTimestamper::new(*stream));
            (*stream, Channel { masker: StreamMasker::default(), stamper })
        };
        Self {
            timestamps: options.timestamps,
            on_fault,
            inner: Mutex::new(Inner {
                channels: streams.iter().map(channel).collect(),
                secrets: options.secrets.clone(),
                has_added_secrets: false,
                added_masks: options.adds_masks.then(AddedMasks::new),
                limiter: SizeLimiter::new(options.limit, initial_length),
                sink,
                faulted: false,
            }),
        }
    }

    /// Returns all values to mask. `None` means that none was added to those of [`TraceOptions`].
    #[must_use]
    pub fn secrets_with_added(&self) -> Option<Secrets> {
        let inner = self.inner.lock();
        inner.has_added_secrets.then(|| inner.secrets.clone())
    }

    /// Masks a value in later output of all streams.
    pub fn add_secret(&self, value: &str) {
        let mut inner = self.inner.lock();
        inner.secrets.add(value);
        inner.has_added_secrets = true;
        drop(inner);
        // The output that the maskers hold back was written before the value was known, so it is not masked with it.
        self.write_or_report(Inner::flush_maskers);
    }

    /// Writes unless the sink has failed. Reports the first failure.
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

    /// Ends the trace with `last`, which is written even after a failure.
    pub fn close(&self, last: &[u8]) {
        let mut inner = self.inner.lock();
        let mut result = inner.flush();
        if inner.faulted {
            // The callback may have freed space.
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

    /// Completes the job's line before Muster's next message. Does nothing without timestamps, because there is then
    /// only one stream.
    fn end_lines(&self) {
        if self.timestamps {
            self.write_or_report(|inner| inner.finish(Stream::Output));
        }
    }
}

impl Inner {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        match self.added_masks.as_mut().filter(|_| stream == Stream::Output) {
            Some(added_masks) => {
                let parts = added_masks.push(bytes);
                parts.into_iter().try_for_each(|part| self.write_part(part))
            }
            None => self.write_masked(stream, bytes),
        }
    }

    fn write_masked(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.process(stream, |masker, secrets, out| masker.push(secrets, bytes, out), false)
    }

    /// Writes a part of the output. The value of a `Part::Value` is masked in later output.
    fn write_part(&mut self, part: Part<'_>) -> io::Result<()> {
        match part {
            Part::Text(bytes) => self.write_masked(Stream::Output, &bytes),
            Part::Value(value) => {
                self.add_secret(&value)?;
                let line = format!("{COMMAND}{MASKED}\n");
                self.process(Stream::Output, |_, _, out| out.extend_from_slice(line.as_bytes()), false)
            }
            Part::Rejected(reason) => {
                let line = style::warning(&format!("a value of {COMMAND} is not masked, because {reason}"));
                self.write_masked(Stream::Runner, line.as_bytes())
            }
        }
    }

    fn add_secret(&mut self, value: &str) -> io::Result<()> {
        // The agent in a container has already replaced the value.
        if value != MASKED {
            self.secrets.add(value);
            self.has_added_secrets = true;
        }
        // The maskers hold back output that could be the beginning of a masked value. A line with `COMMAND` follows,
        // which cannot continue the value, so the output can be written.
        self.flush_maskers()
    }

    /// Writes the output that the maskers hold back. Later output is masked with new secrets, too.
    fn flush_maskers(&mut self) -> io::Result<()> {
        self.streams().into_iter().try_for_each(|stream| self.flush_masker(stream, false))
    }

    fn streams(&self) -> Vec<Stream> {
        self.channels.iter().map(|(stream, _)| *stream).collect()
    }

    /// Writes the held output of a stream.
    fn finish(&mut self, stream: Stream) -> io::Result<()> {
        let pending = self.added_masks.as_mut().filter(|_| stream == Stream::Output).and_then(AddedMasks::finish);
        pending.map_or(Ok(()), |part| self.write_part(part))?;
        self.flush_masker(stream, true)
    }

    /// Writes the output that a masker holds back. `ends_line` also completes the line.
    fn flush_masker(&mut self, stream: Stream, ends_line: bool) -> io::Result<()> {
        self.process(stream, |masker, _, out| masker.finish(out), ends_line)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.faulted {
            return Ok(());
        }
        // Without timestamps, the loop below does not cover `Stream::Output`.
        let pending = self.added_masks.as_mut().and_then(AddedMasks::finish);
        pending.map_or(Ok(()), |part| self.write_part(part))?;
        for stream in self.streams() {
            self.finish(stream)?;
        }
        self.sink.append(&self.limiter.finish())
    }

    fn process(
        &mut self,
        stream: Stream,
        mask: impl FnOnce(&mut StreamMasker, &Secrets, &mut Vec<u8>),
        ends_line: bool,
    ) -> io::Result<()> {
        if self.limiter.is_truncated() {
            // Output that will be dropped needs no masking.
            return Ok(());
        }
        let index = self.channels.iter().position(|(known, _)| *known == stream).unwrap_or(0);
        let Some((_, channel)) = self.channels.get_mut(index) else { return Ok(()) };
        BUFFERS.with_borrow_mut(|Buffers { masked, stamped }| {
            masked.clear();
            mask(&mut channel.masker, &self.secrets, masked);
            let output = match &mut channel.stamper {
                Some(stamper) => {
                    stamped.clear();
                    stamper.push(masked, stamped);
                    if ends_line {
                        stamper.finish(stamped);
                    }
                    stamped
                }
                None => masked,
            };
            self.limiter.push(output);
            if output.is_empty() { Ok(()) } else { self.sink.append(output) }
        })
    }
}

#[cfg(test)]
mod tests;
