//! From the parser's places (counted in characters) to spans (counted in bytes).

use saphyr_parser::Marker;

use crate::node::{SourceId, Span};

/// Where each character of a text begins.
pub(super) struct Positions {
    source: SourceId,
    /// Byte offset of each character and of the end; none for ASCII, where both counts are the same.
    offsets: Option<Vec<u32>>,
    length: u32,
}

impl Positions {
    pub(super) fn new(source: SourceId, text: &str) -> Self {
        let length = saturated(text.len());
        let offsets = (!text.is_ascii()).then(|| {
            let mut offsets: Vec<u32> = text.char_indices().map(|(offset, _)| saturated(offset)).collect();
            offsets.push(length);
            offsets
        });
        Self { source, offsets, length }
    }

    /// The span between two places of the parser.
    pub(super) fn between(&self, start: &Marker, end: &Marker) -> Span {
        let first = self.offset(start.index());
        Span {
            source: self.source,
            line: saturated(start.line()),
            column: saturated(start.col()).saturating_add(1),
            start: first,
            end: self.offset(end.index()).max(first),
        }
    }

    /// The span of the parser's span.
    pub(super) fn span(&self, span: &saphyr_parser::Span) -> Span {
        self.between(&span.start, &span.end)
    }

    /// The span of `length` bytes at a byte offset of `text`. Walks the text: for errors only.
    pub(super) fn at_byte(&self, text: &str, offset: usize, length: usize) -> Span {
        span_at(self.source, text, offset, length)
    }

    fn offset(&self, index: usize) -> u32 {
        match &self.offsets {
            None => saturated(index).min(self.length),
            Some(offsets) => offsets.get(index).copied().unwrap_or(self.length),
        }
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
