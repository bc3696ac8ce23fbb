//! From the parser's markers to spans.

use granit_parser::Marker;

use crate::node::{SourceId, Span};

/// One text, whose markers become spans.
pub(super) struct Positions {
    source: SourceId,
    /// Bytes of the text.
    length: u32,
}

impl Positions {
    pub(super) fn new(source: SourceId, text: &str) -> Self {
        Self { source, length: saturated(text.len()) }
    }

    /// The span between two places of the parser.
    pub(super) fn between(&self, start: &Marker, end: &Marker) -> Span {
        let first = self.offset(start);
        Span {
            source: self.source,
            line: saturated(start.line()),
            column: saturated(start.col()).saturating_add(1),
            start: first,
            end: self.offset(end).max(first),
        }
    }

    /// Returns the span of the parser's span. It begins with the tag, if there is one.
    pub(super) fn span(&self, span: &granit_parser::Span) -> Span {
        self.between(&span.tag_start().unwrap_or(span.start), &span.end)
    }

    /// The span of `length` bytes at a byte offset of `text`. Walks the text: for errors only.
    pub(super) fn at_byte(&self, text: &str, offset: usize, length: usize) -> Span {
        span_at(self.source, text, offset, length)
    }

    /// A text in memory always has byte offsets.
    fn offset(&self, marker: &Marker) -> u32 {
        marker.byte_offset().map_or(self.length, |offset| saturated(offset).min(self.length))
    }
}

/// The span of `length` bytes at a byte offset of `text`. Walks the text.
pub(crate) fn span_at(source: SourceId, text: &str, offset: usize, length: usize) -> Span {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Span {
        source,
        line: saturated(before.matches('\n').count()).saturating_add(1),
        column: saturated(before.get(line_start..).map_or(0, |line| line.chars().count())).saturating_add(1),
        start: saturated(offset),
        end: saturated(offset.saturating_add(length).min(text.len())),
    }
}

/// The span of `length` bytes at a byte offset of `written`, which is the text of `outer`. Walks that text only.
pub(crate) fn span_inside(outer: Span, written: &str, offset: usize, length: usize) -> Span {
    let inner = span_at(outer.source, written, offset, length);
    let column = if inner.line == 1 { outer.column.saturating_add(inner.column - 1) } else { inner.column };
    Span {
        source: outer.source,
        line: outer.line.saturating_add(inner.line - 1),
        column,
        start: outer.start.saturating_add(inner.start),
        end: outer.start.saturating_add(inner.end),
    }
}

/// A count as the spans store it; files are far smaller than 4 GiB.
fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
