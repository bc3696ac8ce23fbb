//! Lines `::add-mask::VALUE`, with which a job adds values to mask (`proxy_exec`; docs/spec/job-execution.md, section
//! 1.10).

use std::borrow::Cow;

use memchr::{memchr, memmem};

/// Prefix of a line that adds a value.
pub(super) const COMMAND: &str = "::add-mask::";
const MAX_LINE_BYTES: usize = 64 * 1024;
const MAX_VALUES: usize = 1000;
const MAX_TOTAL_BYTES: usize = 256 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Output without lines that add values.
    Text(Cow<'a, [u8]>),
    /// Value that a line adds.
    Value(String),
    /// Reason why a value is not masked. The line must not be printed.
    Rejected(&'static str),
}

/// Finds lines that add values, in output that arrives in pieces of any size.
#[derive(Debug)]
pub(super) struct AddedMasks {
    line: Line,
    values: usize,
    bytes: usize,
}

/// State of the current line.
#[derive(Debug)]
enum Line {
    /// The line until now, which may add a value.
    Candidate(Vec<u8>),
    Other,
    /// The line is too long, and its rest is dropped.
    Rejected,
}

impl AddedMasks {
    pub(super) fn new() -> Self {
        Self { line: Line::Candidate(Vec::new()), values: 0, bytes: 0 }
    }

    /// Processes output, and returns its parts. An incomplete line may be held back.
    pub(super) fn push<'a>(&mut self, mut bytes: &'a [u8]) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        while !bytes.is_empty() {
            let end = match &self.line {
                Line::Candidate(line) if line.is_empty() && !may_add(bytes) => {
                    self.line = Line::Other;
                    continue;
                }
                Line::Other => next_candidate(bytes),
                Line::Candidate(_) | Line::Rejected => memchr(b'\n', bytes).map_or(bytes.len(), |index| index + 1),
            };
            let (piece, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
            bytes = rest;
            parts.extend(self.push_piece(piece));
            if piece.ends_with(b"\n") {
                self.line = Line::Candidate(Vec::new());
            }
        }
        parts
    }

    /// Returns the part that was held back, as a complete line.
    pub(super) fn finish(&mut self) -> Option<Part<'static>> {
        let Line::Candidate(line) = std::mem::replace(&mut self.line, Line::Candidate(Vec::new())) else { return None };
        match line.strip_prefix(COMMAND.as_bytes()) {
            Some(value) => Some(self.value(value)),
            None => (!line.is_empty()).then_some(Part::Text(line.into())),
        }
    }

    /// Adds a piece of the current line. Returns the part that can be written.
    ///
    /// The piece does not continue after the end of the line. Only in [`Line::Other`], lines that add no value may
    /// follow.
    fn push_piece<'a>(&mut self, piece: &'a [u8]) -> Option<Part<'a>> {
        let line = match &mut self.line {
            Line::Candidate(line) => line,
            Line::Other => return Some(Part::Text(piece.into())),
            Line::Rejected => return None,
        };
        line.extend_from_slice(piece);
        if line.len() > MAX_LINE_BYTES && line.starts_with(COMMAND.as_bytes()) {
            self.line = Line::Rejected;
            return Some(Part::Rejected("it is longer than 64 KiB"));
        }
        if line.starts_with(COMMAND.as_bytes()) {
            return if line.ends_with(b"\n") { self.finish() } else { None };
        }
        if may_add(line) {
            return None;
        }
        let text = std::mem::take(line);
        self.line = Line::Other;
        Some(Part::Text(text.into()))
    }

    fn value(&mut self, value: &[u8]) -> Part<'static> {
        if self.values == MAX_VALUES {
            return Part::Rejected("the job has added 1000 values already");
        }
        let value = value.trim_ascii();
        if self.bytes + value.len() > MAX_TOTAL_BYTES {
            return Part::Rejected("the values that the job has added are longer than 256 KiB together");
        }
        self.values += 1;
        self.bytes += value.len();
        Part::Value(String::from_utf8_lossy(value).into_owned())
    }
}

/// Returns whether a line with this beginning may add a value.
fn may_add(start: &[u8]) -> bool {
    start.starts_with(COMMAND.as_bytes()) || COMMAND.as_bytes().starts_with(start)
}

/// Returns the position of the next line that may add a value. `bytes` start inside a line that adds none.
fn next_candidate(bytes: &[u8]) -> usize {
    let breaks = memmem::find_iter(bytes, b"\n:").map(|index| index + 1);
    let mut candidates = breaks.filter(|start| bytes.get(*start..).is_some_and(may_add));
    candidates.next().unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the values, and the text with `<>` for each line that adds one.
    fn run(pieces: &[&[u8]]) -> (Vec<String>, String) {
        let (mut added, mut values, mut text) = (AddedMasks::new(), Vec::new(), Vec::new());
        let mut take = |part: Part<'_>| match part {
            Part::Text(bytes) => text.extend_from_slice(&bytes),
            Part::Value(value) => {
                values.push(value);
                text.extend_from_slice(b"<>");
            }
            Part::Rejected(reason) => text.extend_from_slice(format!("({reason})").as_bytes()),
        };
        for piece in pieces {
            added.push(piece).into_iter().for_each(&mut take);
        }
        added.finish().into_iter().for_each(take);
        (values, String::from_utf8(text).unwrap())
    }

    #[test]
    fn only_lines_that_begin_with_the_command_add_values() {
        let (values, text) =
            run(&[b"a\n::add-mask::one\r\nb ::add-mask::two\n:\n::\n::add-mask:x\n\n::add-mask:: three four "]);
        assert_eq!(values, ["one", "three four"]);
        assert_eq!(text, "a\n<>b ::add-mask::two\n:\n::\n::add-mask:x\n\n<>");
    }

    #[test]
    fn pieces_can_have_any_size() {
        let whole = b"first\n::add-mask::value\n::add-masc\nlast".as_slice();
        let expected = (vec!["value".to_owned()], "first\n<>::add-masc\nlast".to_owned());
        for size in 1..whole.len() {
            assert_eq!(run(&whole.chunks(size).collect::<Vec<_>>()), expected, "{size}");
        }
    }

    #[test]
    fn values_that_cannot_be_masked_are_not_printed() {
        let long = "x".repeat(MAX_LINE_BYTES);
        let (values, text) = run(&[format!("::add-mask::{long}").as_bytes(), b"more\nafter\n"]);
        assert_eq!((values.len(), text.as_str()), (0, "(it is longer than 64 KiB)after\n"));
        let many = "::add-mask::value\n".repeat(MAX_VALUES + 1);
        let (values, text) = run(&[many.as_bytes()]);
        assert_eq!(values.len(), MAX_VALUES);
        assert!(text.ends_with("<>(the job has added 1000 values already)"), "{text}");
        let large = format!("::add-mask::{}\n", "x".repeat(60 * 1024)).repeat(5);
        let (values, text) = run(&[large.as_bytes()]);
        assert_eq!(values.len(), 4);
        assert!(text.ends_with("<>(the values that the job has added are longer than 256 KiB together)"), "{text}");
    }
}
