//! Log of steps that run at the same time: the log of the job gets their output one step after the other, in the order of the list.
//!
//! The output of the first step that has not ended is written immediately. The output of the steps after it waits in files. So sections do
//! not overlap, and no other output comes between the lines of a secret. Masking could not recognize such a secret.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::log::{Log, Stream};
use crate::style;

/// Maximum size of the waiting output of one step in bytes. Further output is dropped, with a warning.
const MAX_WAITING_BYTES: u64 = 256 * 1024 * 1024;
/// Size in bytes of the header of a record in the file: the kind and the length of its content.
const HEADER_BYTES: usize = 5;

/// Logs of steps that run at the same time.
pub(super) struct Turns {
    inner: Arc<dyn Log>,
    /// Directory for the files with waiting output.
    temp_dir: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// First step that has not ended. Its output is written immediately.
    current: usize,
    steps: Vec<Waiting>,
}

/// Output of a step that waits.
#[derive(Default)]
struct Waiting {
    file: Option<File>,
    bytes: u64,
    has_ended: bool,
}

/// Log of one of the steps.
struct TurnLog {
    turns: Arc<Turns>,
    step: usize,
}

/// Record in the file of a step that waits.
#[derive(Clone, Copy)]
enum Record<'r> {
    Write(Stream, &'r [u8]),
    EndLines,
}

impl Turns {
    /// Creates the logs of this number of steps. Their output is written to `inner`.
    pub(super) fn new(inner: Arc<dyn Log>, temp_dir: PathBuf, steps: usize) -> Arc<Self> {
        let steps = std::iter::repeat_with(Waiting::default).take(steps).collect();
        Arc::new(Self { inner, temp_dir, state: Mutex::new(State { current: 0, steps }) })
    }

    /// Returns the log of a step.
    pub(super) fn log(self: &Arc<Self>, step: usize) -> Arc<dyn Log> {
        Arc::new(TurnLog { turns: Arc::clone(self), step })
    }

    /// Ends the output of a step, and writes the output of other steps that waited for this. Must be called for every step.
    pub(super) fn end(&self, step: usize) {
        let mut state = self.state.lock();
        if let Some(step) = state.steps.get_mut(step) {
            step.has_ended = true;
        }
        while state.steps.get(state.current).is_some_and(|step| step.has_ended) {
            state.current += 1;
            let next = state.current;
            let Some(file) = state.steps.get_mut(next).and_then(|step| step.file.take()) else { continue };
            if let Err(error) = self.replay(file) {
                self.warn(&format!(
                    "failed to read the output of a parallel step: {error}; the log lacks a part of it"
                ));
            }
        }
    }

    fn add(&self, step: usize, record: Record<'_>) {
        let mut state = self.state.lock();
        let current = state.current;
        let Some(waiting) = state.steps.get_mut(step).filter(|_| step > current) else {
            return self.write(record);
        };
        if let Err(error) = waiting.add(record, &self.temp_dir) {
            // A record may be incomplete, so nothing is written after it.
            waiting.bytes = u64::MAX;
            self.warn(&format!("failed to store the output of a parallel step: {error}; the log lacks a part of it"));
        }
    }

    fn write(&self, record: Record<'_>) {
        match record {
            Record::Write(stream, bytes) => self.inner.write(stream, bytes),
            Record::EndLines => self.inner.end_lines(),
        }
    }

    fn replay(&self, mut file: File) -> io::Result<()> {
        file.rewind()?;
        let mut file = io::BufReader::new(file);
        let mut bytes = Vec::new();
        let mut header = [0; HEADER_BYTES];
        while file.read_exact(&mut header).is_ok() {
            let [kind, length @ ..] = header;
            bytes.clear();
            let length = u64::from(u32::from_le_bytes(length));
            if file.by_ref().take(length).read_to_end(&mut bytes)? as u64 != length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.write(match kind {
                0 => Record::Write(Stream::Runner, &bytes),
                1 => Record::Write(Stream::Output, &bytes),
                _ => Record::EndLines,
            });
        }
        Ok(())
    }

    fn warn(&self, message: &str) {
        self.inner.write(Stream::Runner, style::warning(message).as_bytes());
    }
}

impl Waiting {
    fn add(&mut self, record: Record<'_>, temp_dir: &std::path::Path) -> io::Result<()> {
        if self.bytes > MAX_WAITING_BYTES {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            // The file has no name, so no job can change it, and it is removed in any case.
            None => self.file.insert(tempfile::tempfile_in(temp_dir)?),
        };
        let (kind, bytes) = match record {
            Record::Write(Stream::Runner, bytes) => (0, bytes),
            Record::Write(Stream::Output, bytes) => (1, bytes),
            Record::EndLines => (2, &[][..]),
        };
        let mut add = |kind: u8, bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
            self.bytes += bytes.len() as u64;
            // One call, so that a failure does not separate header and content.
            file.write_all(&[&[kind], &length.to_le_bytes()[..], bytes].concat())
        };
        add(kind, bytes)?;
        if self.bytes > MAX_WAITING_BYTES {
            let megabytes = MAX_WAITING_BYTES / 1024 / 1024;
            let message =
                format!("the step wrote more than {megabytes} MiB while it waited for its turn; the rest is dropped");
            self.file.as_mut().map_or(Ok(()), |file| {
                let text = style::warning(&message);
                let length = u32::try_from(text.len()).map_err(io::Error::other)?;
                file.write_all(&[&[0], &length.to_le_bytes()[..], text.as_bytes()].concat())
            })?;
        }
        Ok(())
    }
}

impl Log for TurnLog {
    fn write(&self, stream: Stream, bytes: &[u8]) {
        self.turns.add(self.step, Record::Write(stream, bytes));
    }

    fn end_lines(&self) {
        self.turns.add(self.step, Record::EndLines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct MemoryLog(Mutex<String>);

    impl Log for MemoryLog {
        fn write(&self, _: Stream, bytes: &[u8]) {
            self.0.lock().push_str(&String::from_utf8_lossy(bytes));
        }

        fn end_lines(&self) {
            self.0.lock().push('|');
        }
    }

    #[test]
    fn output_arrives_in_the_order_of_the_steps_and_the_first_step_is_not_delayed() {
        let memory = Arc::new(MemoryLog::default());
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Arc::<MemoryLog>::clone(&memory), dir.path().to_owned(), 3);
        let [first, second, third] = [0, 1, 2].map(|step| turns.log(step));
        third.write(Stream::Output, b"third\n");
        second.write(Stream::Output, b"sec");
        first.write(Stream::Output, b"first\n");
        assert_eq!(*memory.0.lock(), "first\n");
        second.write(Stream::Runner, b"ond");
        second.end_lines();
        turns.end(2);
        assert_eq!(*memory.0.lock(), "first\n");
        turns.end(0);
        assert_eq!(*memory.0.lock(), "first\nsecond|");
        second.write(Stream::Output, b"live");
        assert_eq!(*memory.0.lock(), "first\nsecond|live");
        turns.end(1);
        assert_eq!(*memory.0.lock(), "first\nsecond|livethird\n");
    }
}
