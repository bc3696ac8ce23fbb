//! The coverage of a job, from its trace (docs/spec/pipeline-yaml.md, section 1.2, `coverage`).
//!
//! Invariants: no trace and no expression causes a panic, and the memory use does not depend on the size of the trace.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::sync::LazyLock;

use muster_pipeline::regexp;
use regex::Regex;

/// Length of the timestamp at the start of each line of a trace with timestamps, in bytes.
const TIMESTAMP_LEN: usize = 32;
const CHUNK: u64 = 64 * 1024;
/// Length in bytes up to which a whole line is searched. A longer line may be cut off at its start.
const MAX_LINE: usize = 64 * 1024;

/// Matches section markers, and escape sequences for colors and cursor movements.
#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static CONTROL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"section_(?:start|end):\d+:[^\r\n]*?(?:\r|$)|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)",
    )
    .expect("the pattern is invalid")
});

/// Matches the timestamp of a line: time, stream, kind, and `+` if the line continues an earlier one.
///
/// See docs/spec/runner-api.md, section 3.5.
#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static TIMESTAMP: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ([0-9a-f]{2}[OE])(\+| )").expect("the pattern is invalid")
});

#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\d+(?:\.\d+)?").expect("the pattern is invalid"));

/// Returns the coverage in percent that `expression` (without its slashes) finds in a trace.
///
/// The last match of a line counts: the first number in the last group that matched, or in the whole match if no group did. The last line
/// of the trace with such a number is used. `None` if there is no such line, or if the expression is not valid RE2.
#[must_use]
pub fn find(expression: &str, trace: &str) -> Option<f64> {
    // Reading from memory cannot fail.
    find_in(expression, Cursor::new(trace)).unwrap_or_default()
}

/// Like [`find`], but reads a file, from its end back to the line that matches.
///
/// # Errors
/// Errors of reading.
pub fn find_in(expression: &str, trace: impl Read + Seek) -> io::Result<Option<f64>> {
    let Ok(regex) = regexp::compile(expression) else { return Ok(None) };
    let mut lines = LinesFromEnd::open(trace)?;
    let mut partial = PartialLines::default();
    while let Some(line) = lines.next()? {
        let Some(line) = partial.join(&line) else { continue };
        if let Some(found) = number(&regex, &CONTROL.replace_all(&line, "")) {
            return Ok(Some(found));
        }
    }
    // Search also the lines whose start is missing from the trace.
    let mut continuations = partial.0.into_values().rev();
    Ok(continuations.find_map(|text| number(&regex, &CONTROL.replace_all(&text, ""))))
}

fn number(regex: &Regex, line: &str) -> Option<f64> {
    let captures = regex.captures_iter(line).last()?;
    let fragment = captures.iter().skip(1).flatten().last().or_else(|| captures.get(0))?;
    NUMBER.find(fragment.as_str())?.as_str().parse().ok()
}

/// Continuations of lines whose start was not read yet, by stream.
///
/// There are at most 512 streams: a name is two hexadecimal digits, and `O` or `E`.
#[derive(Default)]
struct PartialLines(BTreeMap<String, String>);

impl PartialLines {
    /// Adds the next line, counted from the end. Returns a complete line without its timestamp, or `None` for a
    /// continuation.
    fn join<'a>(&mut self, line: &'a str) -> Option<Cow<'a, str>> {
        let Some((_, [stream, flag])) = TIMESTAMP.captures(line).map(|captures| captures.extract()) else {
            return Some(Cow::Borrowed(line));
        };
        let text = line.get(TIMESTAMP_LEN..).unwrap_or_default();
        let rest = self.0.remove(stream);
        if flag == "+" {
            let mut joined = text.to_owned() + rest.as_deref().unwrap_or_default();
            truncate_front(&mut joined);
            self.0.insert(stream.to_owned(), joined);
            return None;
        }
        Some(rest.map_or(Cow::Borrowed(text), |rest| Cow::Owned(text.to_owned() + &rest)))
    }
}

fn truncate_front(text: &mut String) {
    if let Some(excess) = text.len().checked_sub(MAX_LINE) {
        let from = (excess..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text.drain(..from);
    }
}

/// The lines of a file, last line first. A line that is longer than [`MAX_LINE`] may be cut off at its start.
struct LinesFromEnd<T> {
    file: T,
    /// Number of bytes at the start of the file that were not read yet.
    unread: u64,
    /// Bytes that were read and not returned. They end with the line that is returned next.
    buffer: Vec<u8>,
    /// Number of bytes at the start of `buffer` that may contain a line break. The rest contains no line break.
    unsearched: usize,
    /// Whether `buffer` ends within a long line whose end was already returned. The rest of this line is skipped.
    in_long_line: bool,
    at_end: bool,
}

impl<T: Read + Seek> LinesFromEnd<T> {
    fn open(mut file: T) -> io::Result<Self> {
        let unread = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, unread, buffer: Vec::new(), unsearched: 0, in_long_line: false, at_end: false })
    }

    fn next(&mut self) -> io::Result<Option<String>> {
        while !self.at_end {
            let end = self.buffer.iter().take(self.unsearched).rposition(|byte| *byte == b'\n');
            let line = if let Some(end) = end {
                let line = self.buffer.split_off(end + 1);
                self.buffer.truncate(end);
                self.unsearched = end;
                line
            } else if self.unread == 0 {
                self.at_end = true;
                std::mem::take(&mut self.buffer)
            } else if self.buffer.len() > MAX_LINE {
                let line = std::mem::take(&mut self.buffer);
                self.unsearched = 0;
                if !std::mem::replace(&mut self.in_long_line, true) {
                    return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
                }
                continue;
            } else {
                self.read_before()?;
                continue;
            };
            if !std::mem::take(&mut self.in_long_line) {
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
        }
        Ok(None)
    }

    /// Reads the bytes before those in `buffer`.
    fn read_before(&mut self) -> io::Result<()> {
        let size = self.unread.min(CHUNK);
        self.unread -= size;
        self.file.seek(SeekFrom::Start(self.unread))?;
        let mut bytes = Vec::new();
        self.file.by_ref().take(size).read_to_end(&mut bytes)?;
        self.unsearched = bytes.len();
        bytes.append(&mut self.buffer);
        self.buffer = bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_the_last_match_of_the_last_matching_line() {
        let trace = "coverage: 12.5% of 3\ncoverage: 50% coverage: 071.25%\nno number: coverage: %\nend\n";
        assert_eq!(find(r"coverage: \d+(?:\.\d+)?%", trace), Some(71.25));
        assert_eq!(find("coverage: .*", trace), Some(50.0));
        assert_eq!(find(r"TOTAL \d+", trace), None);
        assert_eq!(find("(", trace), None);
        assert_eq!(find("", ""), None);
    }

    #[test]
    fn coverage_is_the_number_in_the_last_group() {
        assert_eq!(find(r"TOTAL\s+\d+\s+(\d+)%", "TOTAL 120 87%"), Some(87.0));
    }

    #[test]
    fn timestamps_markers_and_colors_are_not_searched() {
        let trace = "2026-11-21T09:32:20.888012Z 00O section_start:1:step_script\r\u{1b}[0KRunning\n\
                     2026-11-21T09:32:20.888012Z 01O \u{1b}[32mLines: \n\
                     2026-11-21T09:32:20.888012Z 01E noise\n\
                     2026-11-21T09:32:20.888012Z 01O+ 93.5\u{1b}[0m%\n";
        assert_eq!(find(r"^Lines:\s+93\.5%$", trace), Some(93.5));
        assert_eq!(find("^Running$", "section_start:1:x[collapsed=true]\r\u{1b}[0KRunning 1"), None);
        assert_eq!(find("^Running 1$", "section_start:1:x[collapsed=true]\r\u{1b}[0KRunning 1"), Some(1.0));
    }

    struct CountingReader<'a>(Cursor<&'a [u8]>, &'a mut usize);

    impl Read for CountingReader<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(into)?;
            *self.1 += read;
            Ok(read)
        }
    }

    impl Seek for CountingReader<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn lines_are_complete_when_chunks_end_within_them() {
        let chunk = usize::try_from(CHUNK).expect("the size does not fit");
        for shift in [chunk - 12, chunk - 11, chunk - 6, chunk - 5, chunk - 1, chunk, chunk + 1, 3 * chunk - 6] {
            // A chunk ends within the line with the number.
            let trace = format!("cov 7%\nä\ncov 12.5%\n{}\n", "x\n".repeat(shift / 2) + &"y".repeat(shift % 2));
            assert_eq!(find(r"^cov \d+\.\d%$", &trace), Some(12.5), "{shift}");
            assert_eq!(find(r"^cov \d+%$", &trace), Some(7.0), "{shift}");
        }
    }

    #[test]
    fn lines_before_the_match_are_not_read() {
        let mut read = 0;
        let trace = "noise\n".repeat(50_000) + "cov 50%\n";
        let reader = CountingReader(Cursor::new(trace.as_bytes()), &mut read);
        assert_eq!(find_in("cov", reader).expect("failed to read"), None, "a match without a number must be ignored");
        assert_eq!(read, trace.len(), "the whole file must be read if nothing is found");
        read = 0;
        let reader = CountingReader(Cursor::new(trace.as_bytes()), &mut read);
        assert_eq!(find_in(r"cov \d+", reader).expect("failed to read"), Some(50.0));
        assert_eq!(read, usize::try_from(CHUNK).expect("the size does not fit"));
    }

    #[test]
    fn only_the_end_of_a_very_long_line_is_searched() {
        let long = "cov 1% ".repeat(40_000);
        let trace = format!("first: cov 3%\n{long}cov 2%");
        assert_eq!(find(r"cov \d%", &trace), Some(2.0));
        assert_eq!(find(r"^first: cov \d%$", &trace), Some(3.0));
        let stamp = |flag: char| format!("2026-11-21T09:32:20.888012Z 01O{flag}");
        let pieces: String = (0..1000).map(|_| format!("{}{}\n", stamp('+'), "z".repeat(1000))).collect();
        let trace = format!("{}cov\n{}begin\n{pieces}{} 93.5%\n", stamp(' '), stamp(' '), stamp('+'));
        assert_eq!(find(r"z 93\.5%$", &trace), Some(93.5));
        let mut lines = LinesFromEnd::open(Cursor::new(&trace)).expect("failed to open");
        let (mut partial, mut max_buffered) = (PartialLines::default(), 0);
        while let Some(line) = lines.next().expect("failed to read") {
            partial.join(&line);
            max_buffered = max_buffered.max(partial.0.values().map(String::len).sum::<usize>() + lines.buffer.len());
        }
        assert!(max_buffered <= 4 * MAX_LINE, "{max_buffered}");
    }
}
