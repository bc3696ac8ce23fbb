//! From the parser's markers to spans.

use granit_parser::Marker;

use crate::node::{SourceId, Span};
use crate::source_map::{saturated, span_at};

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
