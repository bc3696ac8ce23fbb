//! Log of steps that run at the same time: the log of the job gets their output step by step, in the order of the list.
//!
//! The output of the first step that has not ended is written immediately. Later steps write to files. Thus sections do
//! not overlap, and the masker finds secrets, because no other output interrupts them.
//!
//! ```text
//! waiting: output goes to a file
//!    | its turn comes
//!    v
//! current and replayed: output still goes to the file, which is copied to the log
//!    | end of the file, or no file
//!    v
//! current and not replayed: output goes to the log
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::log::{Log, Stream};
use crate::style;

/// Maximum size of a step's waiting output in bytes. Further output is dropped. The file may be larger, because output
/// that was copied stays in it.
const MAX_WAITING_BYTES: u64 = 256 * 1024 * 1024;
/// Size in bytes of a record's header: kind and length of the content.
const HEADER_BYTES: usize = 5;
const PIECE_BYTES: usize = 64 * 1024;

pub(super) struct Turns {
    inner: Arc<dyn Log>,
    temp_dir: PathBuf,
    state: Mutex<State>,
}

struct State {
    /// First step whose output is not completely written.
    current: usize,
    /// Whether a task copies the file of `current` to the log. If not, output of `current` is written immediately.
    is_replayed: bool,
    steps: Vec<WaitingOutput>,
}

#[derive(Default)]
struct WaitingOutput {
    file: Option<File>,
    /// Size of the file in bytes.
    written: u64,
    /// Number of bytes that were copied from the file to the log.
    read: u64,
    is_full: bool,
    has_ended: bool,
}

struct TurnLog {
    turns: Arc<Turns>,
    step: usize,
}

#[derive(Clone, Copy)]
enum Record<'r> {
    Write(Stream, &'r [u8]),
    EndLines,
}

impl Turns {
    pub(super) fn new(inner: Arc<dyn Log>, temp_dir: PathBuf, steps: usize) -> Arc<Self> {
        let steps = std::iter::repeat_with(WaitingOutput::default).take(steps).collect();
        Arc::new(Self { inner, temp_dir, state: Mutex::new(State { current: 0, is_replayed: false, steps }) })
    }

    pub(super) fn log(self: &Arc<Self>, step: usize) -> Arc<dyn Log> {
        Arc::new(TurnLog { turns: Arc::clone(self), step })
    }

    /// Ends the output of a step, and writes the waiting output of the next steps, unless another call writes it. Must
    /// be called for every step.
    ///
    /// Yields after each piece, so that other jobs are not blocked.
    pub(super) async fn end(&self, step: usize) {
        let mut is_replaying = self.state.lock().end(step);
        while is_replaying {
            let piece = {
                let mut state = self.state.lock();
                let piece = state.next_piece();
                is_replaying = state.is_replayed;
                piece
            };
            match piece {
                Ok(piece) => self.write_records(&piece),
                Err(error) => self.warn(&format!(
                    "failed to read the output of a parallel step: {error}; the log lacks a part of it"
                )),
            }
            tokio::task::yield_now().await;
        }
    }

    fn add(&self, step: usize, record: Record<'_>) {
        let mut state = self.state.lock();
        let State { current, is_replayed, .. } = *state;
        let waiting = state.steps.get_mut(step).filter(|_| step > current || (step == current && is_replayed));
        let Some(waiting) = waiting else { return self.write(record) };
        if let Err(error) = waiting.add(record, &self.temp_dir) {
            // A record may be incomplete, so no record may follow it.
            waiting.is_full = true;
            self.warn(&format!("failed to store the output of a parallel step: {error}; the log lacks a part of it"));
        }
    }

    fn write(&self, record: Record<'_>) {
        match record {
            Record::Write(stream, bytes) => self.inner.write(stream, bytes),
            Record::EndLines => self.inner.end_lines(),
        }
    }

    fn write_records(&self, mut piece: &[u8]) {
        while let Some((kind, content, rest)) = split_record(piece) {
            self.write(match kind {
                0 => Record::Write(Stream::Runner, content),
                1 => Record::Write(Stream::Output, content),
                _ => Record::EndLines,
            });
            piece = rest;
        }
    }

    fn warn(&self, message: &str) {
        self.inner.write(Stream::Runner, style::warning(message).as_bytes());
    }
}

impl State {
    /// Ends the output of a step. Returns whether the caller must copy the next step's file to the log.
    fn end(&mut self, step: usize) -> bool {
        if let Some(step) = self.steps.get_mut(step) {
            step.has_ended = true;
        }
        if self.is_replayed {
            return false;
        }
        self.advance();
        self.is_replayed
    }

    fn advance(&mut self) {
        while !self.is_replayed && self.steps.get(self.current).is_some_and(|step| step.has_ended) {
            self.current += 1;
            self.is_replayed = self.steps.get(self.current).is_some_and(|step| step.file.is_some());
        }
    }

    /// Returns the next records of the file that is copied. Empty at its end, after which output is written
    /// immediately.
    fn next_piece(&mut self) -> io::Result<Vec<u8>> {
        let Some(step) = self.steps.get_mut(self.current) else { return Ok(Vec::new()) };
        let piece = step.next_piece();
        if !matches!(&piece, Ok(records) if !records.is_empty()) {
            step.file = None;
            self.is_replayed = false;
            self.advance();
        }
        piece
    }
}

impl WaitingOutput {
    fn add(&mut self, record: Record<'_>, temp_dir: &Path) -> io::Result<()> {
        if self.is_full {
            return Ok(());
        }
        let (kind, bytes) = match record {
            Record::Write(Stream::Runner, bytes) => (0, bytes),
            Record::Write(Stream::Output, bytes) => (1, bytes),
            Record::EndLines => (2, &[][..]),
        };
        self.append(kind, bytes, temp_dir)?;
        if self.written - self.read <= MAX_WAITING_BYTES {
            return Ok(());
        }
        self.is_full = true;
        let megabytes = MAX_WAITING_BYTES / 1024 / 1024;
        let message = format!(
            "the step wrote more than {megabytes} MiB that the log has not shown yet; its further output is dropped until the log has caught up"
        );
        self.append(0, style::warning(&message).as_bytes(), temp_dir)
    }

    fn append(&mut self, kind: u8, bytes: &[u8], temp_dir: &Path) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            // An unnamed file: no job can change it, and it is always removed.
            None => self.file.insert(tempfile::tempfile_in(temp_dir)?),
        };
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        // One write, so that a failure does not separate header and content.
        let record = [&[kind], &length.to_le_bytes()[..], bytes].concat();
        file.write_all(&record)?;
        self.written += record.len() as u64;
        Ok(())
    }

    fn next_piece(&mut self) -> io::Result<Vec<u8>> {
        let Some(file) = &self.file else { return Ok(Vec::new()) };
        let left = usize::try_from(self.written - self.read).unwrap_or(usize::MAX);
        let mut piece = vec![0; left.min(PIECE_BYTES)];
        file.read_exact_at(&mut piece, self.read)?;
        let mut rest = &piece[..];
        while let Some((_, _, next)) = split_record(rest) {
            rest = next;
        }
        let (mut complete, header) = (piece.len() - rest.len(), rest.first_chunk());
        if let (0, Some(header)) = (complete, header) {
            // The first record is larger than a piece.
            complete = HEADER_BYTES + content_length(*header);
            piece.resize(complete.min(left), 0);
            file.read_exact_at(&mut piece, self.read)?;
        }
        piece.truncate(complete);
        self.read += piece.len() as u64;
        Ok(piece)
    }
}

fn content_length([_, length @ ..]: [u8; HEADER_BYTES]) -> usize {
    usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX)
}

/// Returns kind and content of the first record, and the bytes after it. `None` means that the record is incomplete.
fn split_record(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let (content, rest) = rest.split_at_checked(content_length(*header))?;
    Some((header[0], content, rest))
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

    #[tokio::test]
    async fn output_arrives_in_the_order_of_the_steps_and_the_first_step_is_not_delayed() {
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
        turns.end(2).await;
        assert_eq!(*memory.0.lock(), "first\n");
        turns.end(0).await;
        assert_eq!(*memory.0.lock(), "first\nsecond|");
        second.write(Stream::Output, b"live");
        assert_eq!(*memory.0.lock(), "first\nsecond|live");
        turns.end(1).await;
        assert_eq!(*memory.0.lock(), "first\nsecond|livethird\n");
    }

    #[tokio::test]
    async fn much_waiting_output_does_not_block_other_tasks_and_keeps_its_order() {
        const LINES: usize = 200_000;
        let memory = Arc::new(MemoryLog::default());
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Arc::<MemoryLog>::clone(&memory), dir.path().to_owned(), 3);
        let [second, third] = [1, 2].map(|step| turns.log(step));
        let expected: String = (0..LINES).map(|number| format!("{number}\n")).collect();
        second.write(Stream::Output, expected.as_bytes());
        for number in 0..LINES {
            second.write(Stream::Output, format!("{number}\n").as_bytes());
        }
        third.write(Stream::Output, b"third\n");
        let others = async {
            let mut polls_of_other_task = 0;
            while !memory.0.lock().ends_with("third\n") {
                match polls_of_other_task {
                    ..10 => second.write(Stream::Output, format!("later {polls_of_other_task}\n").as_bytes()),
                    10 => turns.end(1).await,
                    _ => {}
                }
                polls_of_other_task += 1;
                tokio::task::yield_now().await;
            }
            polls_of_other_task
        };
        let ((), polls_of_other_task) = tokio::join!(turns.end(0), others);
        assert!(polls_of_other_task > 20, "{polls_of_other_task} polls while several megabytes were written");
        let later: String = (0..10).map(|number| format!("later {number}\n")).collect();
        assert!(*memory.0.lock() == format!("{expected}{expected}{later}third\n"), "the order or the content differs");
    }
}
