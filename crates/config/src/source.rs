//! The text of a configuration: converts byte offsets to lines and columns, and lines to printable text.

use std::ops::Range;

use super::schema::{Kind, schema};

/// Maximum number of characters of a line that are shown.
const MAX_SHOWN_CHARS: usize = 100;
/// Number of bytes on each side of an offset that are examined to find these characters.
const WINDOW: usize = 4 * MAX_SHOWN_CHARS;
/// Text that replaces a secret.
const MASK: &str = "[masked]";

/// Location of a problem, and the line there with masked secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemLocation {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Shown part of the line, without secrets: up to the end of the value, and shortened if it is long.
    pub text: String,
    /// Number of characters of `text` before the marked part.
    pub mark: usize,
    /// Number of characters of the marked part. At least 1.
    pub width: usize,
}

/// The text, and the secrets in it.
#[derive(Debug)]
pub(super) struct Source<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    /// Sorted ranges that do not overlap.
    secrets: Vec<Range<usize>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str, mut secrets: Vec<Range<usize>>) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        secrets.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        secrets.dedup_by(|later, earlier| later.end <= earlier.end);
        Self { text, line_starts, secrets }
    }

    pub(super) fn line_starts(&self) -> Vec<usize> {
        self.line_starts.clone()
    }

    /// Returns line and column, both from 1. The column counts characters.
    pub(super) fn position(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at);
        let start = self.line_start(line);
        (line, self.text.get(start..at).map_or(0, |before| before.chars().count()) + 1)
    }

    fn line_start(&self, line: usize) -> usize {
        self.line_starts.get(line.saturating_sub(1)).copied().unwrap_or_default()
    }

    fn line_end(&self, line: usize) -> usize {
        self.line_starts.get(line).map_or(self.text.len(), |next| next - 1)
    }

    /// Returns the location of a range, with its line up to the end of the range. The rest of the line may be a comment with a secret.
    pub(super) fn location_of(&self, span: &Range<usize>) -> ProblemLocation {
        let start = self.floor(span.start.min(self.text.len()));
        let (line, column) = self.position(start);
        let end = self.floor(span.end.clamp(start, self.line_end(line).max(start)));
        // A line can be as long as the file, so only the part that may be shown is examined.
        let first = self.floor(start.saturating_sub(WINDOW)).max(self.line_start(line));
        let mut before = self.masked(first..start);
        let marked = self.masked(start..self.floor(end.min(start + WINDOW)));
        let mut mark = before.chars().count();
        if mark > MAX_SHOWN_CHARS || first > self.line_start(line) {
            before = format!("…{}", before.chars().skip(mark.saturating_sub(MAX_SHOWN_CHARS / 2)).collect::<String>());
            mark = before.chars().count();
        }
        let length = marked.chars().count();
        let mut text = before;
        text.extend(marked.chars().take(MAX_SHOWN_CHARS));
        if length > MAX_SHOWN_CHARS {
            text.push('…');
        } else {
            // Closing brackets and quotes are not secret, and without them the line itself looks wrong.
            let rest = self.text.get(end..self.line_end(line)).unwrap_or_default();
            let closing: String =
                rest.chars().take_while(|c| matches!(c, ']' | '}' | ' ' | '"')).take(MAX_SHOWN_CHARS).collect();
            text.push_str(closing.trim_end());
        }
        ProblemLocation { line, column, text, mark, width: length.clamp(1, MAX_SHOWN_CHARS) }
    }

    /// Returns the location of a range in a text that is not valid TOML.
    ///
    /// It is unknown which parts are secret, so only names from the schema and short values of plain keys are shown.
    pub(super) fn redacted_location(&self, span: &Range<usize>) -> ProblemLocation {
        const MAX_PLAIN_CHARS: usize = 40;
        let at = self.floor(span.start.min(self.text.len()));
        let (line, column) = self.position(at);
        let shown = self.text.get(self.line_start(line)..self.line_end(line)).unwrap_or_default().trim_end();
        let header = |text: &str| text.trim().trim_matches(['[', ']']).split('.').all(is_name);
        let text = match shown.split_once('=') {
            Some((name, value)) if is_plain_key(name.trim()) && value.chars().count() <= MAX_PLAIN_CHARS => {
                escaped(shown)
            }
            Some((name, _)) if is_name(name.trim()) => format!("{}= {MASK}", escaped(name)),
            None if shown.trim_start().starts_with('[') && header(shown) => escaped(shown),
            None if shown.is_empty() => String::new(),
            _ => MASK.to_owned(),
        };
        let mark = (column - 1).min(text.chars().count());
        ProblemLocation { line, column, text, mark, width: 1 }
    }

    fn masked(&self, range: Range<usize>) -> String {
        let first = self.secrets.partition_point(|secret| secret.end <= range.start);
        let mut text = String::new();
        let mut at = range.start;
        for secret in self.secrets.iter().skip(first).take_while(|secret| secret.start < range.end) {
            text.push_str(&escaped(self.text.get(at..secret.start.max(at)).unwrap_or_default()));
            text.push_str(MASK);
            at = secret.end.clamp(at, range.end);
        }
        text.push_str(&escaped(self.text.get(at..range.end).unwrap_or_default()));
        text
    }

    /// Returns the start of the character at this byte.
    fn floor(&self, mut at: usize) -> usize {
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

/// Returns whether the schema has a key or table with this name.
fn is_name(name: &str) -> bool {
    let mut tables = schema().tables().iter();
    tables.any(|table| {
        table.path.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case(name))
            || table.keys.iter().any(|key| key.name.eq_ignore_ascii_case(name))
    })
}

/// Returns whether all keys with this name have values that may be shown.
fn is_plain_key(name: &str) -> bool {
    let plain = |kind| matches!(kind, Kind::Int | Kind::Bool | Kind::Float | Kind::Duration);
    let mut known = schema().tables().iter().flat_map(|table| &table.keys).filter(|key| key.name == name).peekable();
    known.peek().is_some() && known.all(|key| !key.secret && plain(key.kind))
}

/// Replaces control characters. A tab becomes one space, so that marks stay below what they mark.
fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
