//! The text of a configuration, with its secrets.

use std::ops::Range;

use super::schema::{Kind, schema};

/// Maximum number of characters shown of a line.
const MAX_SHOWN_CHARS: usize = 100;
/// Number of bytes examined on each side of an offset to find these characters.
const WINDOW: usize = 4 * MAX_SHOWN_CHARS;
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

    /// Returns line and column in characters, both from 1.
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

    /// Returns the location of a range. Its text ends with the range and the closing brackets and quotes after it,
    /// because a comment after them may contain a secret.
    pub(super) fn location_of(&self, span: &Range<usize>) -> ProblemLocation {
        let start = self.char_start(span.start.min(self.text.len()));
        let (line, column) = self.position(start);
        let end = self.char_start(span.end.clamp(start, self.line_end(line).max(start)));
        // A line can be as long as the file, so only a part is examined.
        let first = self.char_start(start.saturating_sub(WINDOW)).max(self.line_start(line));
        let mut before = self.masked(first..start);
        let marked = self.masked(start..self.char_start(end.min(start + WINDOW)));
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

    /// Returns the location of a range in invalid TOML, where it is unknown which parts are secret.
    ///
    /// Shows only names of the schema, and values of plain keys that are as short as a number, a boolean or a duration.
    pub(super) fn redacted_location(&self, span: &Range<usize>) -> ProblemLocation {
        let at = self.char_start(span.start.min(self.text.len()));
        let (line, column) = self.position(at);
        let shown = self.text.get(self.line_start(line)..self.line_end(line)).unwrap_or_default();
        // A comment may contain a secret.
        let shown = shown.split('#').next().unwrap_or_default().trim_end();
        let is_schema_header = |text: &str| text.trim().trim_matches(['[', ']']).split('.').all(is_schema_name);
        let text = match shown.split_once('=') {
            Some((name, value)) if is_plain_key(name.trim()) && is_plain_value(value) => escaped(shown),
            Some((name, _)) if is_schema_name(name.trim()) => format!("{}= {MASK}", escaped(name)),
            None if shown.trim_start().starts_with('[') && is_schema_header(shown) => escaped(shown),
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

    fn char_start(&self, mut at: usize) -> usize {
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

fn is_schema_name(name: &str) -> bool {
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

/// Returns whether a text could be a mistyped number, boolean or duration. Tokens are longer.
fn is_plain_value(text: &str) -> bool {
    const MAX_PLAIN_CHARS: usize = 16;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "+-._:\"' ".contains(c);
    text.trim().len() <= MAX_PLAIN_CHARS && text.chars().all(is_allowed)
}

/// Replaces control characters. A tab becomes one space, so that marks stay aligned.
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
