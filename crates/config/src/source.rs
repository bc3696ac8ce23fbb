//! The text of a configuration: from bytes to line and column, and lines as they may be shown.

use std::ops::Range;

use super::schema::{Kind, schema};

/// Characters of a line that are shown.
const SHOWN_MAX: usize = 100;
/// Bytes on either side of a place that are looked at for that.
const WINDOW: usize = 4 * SHOWN_MAX;
/// What stands for a secret.
const MASK: &str = "[masked]";

/// Where a problem is, and the line there with secrets masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is shown of the line: up to the end of the value, without secrets, not longer than a terminal's line.
    pub text: String,
    /// Characters of `text` before the marked part.
    pub mark: usize,
    /// Characters of the marked part; at least 1.
    pub width: usize,
}

/// The text with what must not be shown of it.
#[derive(Debug)]
pub(super) struct Source<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    /// Sorted; no two overlap.
    secrets: Vec<Range<usize>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str, mut secrets: Vec<Range<usize>>) -> Self {
        let line_starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        secrets.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
        secrets.dedup_by(|later, kept| later.end <= kept.end);
        Self { text, line_starts, secrets }
    }

    pub(super) fn line_starts(&self) -> Vec<usize> {
        self.line_starts.clone()
    }

    /// Line and column from 1; the column counts characters.
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

    /// The place of a span, with its line up to the end of the span (what follows may be a comment with a secret).
    pub(super) fn place(&self, span: &Range<usize>) -> Place {
        let start = self.floor(span.start.min(self.text.len()));
        let (line, column) = self.position(start);
        let end = self.floor(span.end.clamp(start, self.line_end(line).max(start)));
        // A line can be as long as the file: only what may be shown of it is looked at.
        let first = self.floor(start.saturating_sub(WINDOW)).max(self.line_start(line));
        let mut before = self.masked(first..start);
        let marked = self.masked(start..self.floor(end.min(start + WINDOW)));
        let mut mark = before.chars().count();
        if mark > SHOWN_MAX || first > self.line_start(line) {
            before = format!("…{}", before.chars().skip(mark.saturating_sub(SHOWN_MAX / 2)).collect::<String>());
            mark = before.chars().count();
        }
        let length = marked.chars().count();
        let mut text = before;
        text.extend(marked.chars().take(SHOWN_MAX));
        if length > SHOWN_MAX {
            text.push('…');
        } else {
            // Closing brackets and quotes are no secrets, and without them the line looks like the mistake.
            let rest = self.text.get(end..self.line_end(line)).unwrap_or_default();
            let closing: String =
                rest.chars().take_while(|c| matches!(c, ']' | '}' | ' ' | '"')).take(SHOWN_MAX).collect();
            text.push_str(closing.trim_end());
        }
        Place { line, column, text, mark, width: length.clamp(1, SHOWN_MAX) }
    }

    /// The place in a text that is not TOML: nobody knows what is a secret there, so only names that the schema has and
    /// short values of plain keys are shown.
    pub(super) fn careful_place(&self, span: &Range<usize>) -> Place {
        const PLAIN_MAX: usize = 40;
        let at = self.floor(span.start.min(self.text.len()));
        let (line, column) = self.position(at);
        let shown = self.text.get(self.line_start(line)..self.line_end(line)).unwrap_or_default().trim_end();
        let header = |text: &str| text.trim().trim_matches(['[', ']']).split('.').all(is_name);
        let text = match shown.split_once('=') {
            Some((name, value)) if is_plain_key(name.trim()) && value.chars().count() <= PLAIN_MAX => escaped(shown),
            Some((name, _)) if is_name(name.trim()) => format!("{}= {MASK}", escaped(name)),
            None if shown.trim_start().starts_with('[') && header(shown) => escaped(shown),
            None if shown.is_empty() => String::new(),
            _ => MASK.to_owned(),
        };
        let mark = (column - 1).min(text.chars().count());
        Place { line, column, text, mark, width: 1 }
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

    /// The start of the character at this byte.
    fn floor(&self, mut at: usize) -> usize {
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }
}

/// Whether the schema has a key or table of that name somewhere.
fn is_name(name: &str) -> bool {
    let mut tables = schema().tables().iter();
    tables.any(|table| {
        table.path.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case(name))
            || table.keys.iter().any(|key| key.name.eq_ignore_ascii_case(name))
    })
}

/// Whether it is the name of keys whose values may be shown wherever they are.
fn is_plain_key(name: &str) -> bool {
    let plain = |kind| matches!(kind, Kind::Int | Kind::Bool | Kind::Float | Kind::Duration);
    let mut known = schema().tables().iter().flat_map(|table| &table.keys).filter(|key| key.name == name).peekable();
    known.peek().is_some() && known.all(|key| !key.secret && plain(key.kind))
}

/// Without control characters; a tab is a space, so that marks stay below what they mark.
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
