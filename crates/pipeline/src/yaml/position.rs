//! Converts positions of the parser to spans.

use granit_parser::Marker;

use crate::node::{SourceId, Span};
use crate::source_map::{saturated, span_at};

pub(super) struct Positions {
    source: SourceId,
    length: u32,
}

impl Positions {
    pub(super) fn new(source: SourceId, text: &str) -> Self {
        Self { source, length: saturated(text.len()) }
    }

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

    /// Converts a span of the parser. The result begins with the tag, if there is one.
    pub(super) fn span(&self, span: &granit_parser::Span) -> Span {
        self.between(&span.tag_start().unwrap_or(span.start), &span.end)
    }

    /// Returns the span of the `length` bytes at `offset`. Takes linear time, so use it for errors only.
    pub(super) fn at_byte(&self, text: &str, offset: usize, length: usize) -> Span {
        span_at(self.source, text, offset, length)
    }

    /// Returns the byte offset of a marker. In a text in memory, each marker has an offset, so that the default is not
    /// used.
    fn offset(&self, marker: &Marker) -> u32 {
        marker.byte_offset().map_or(self.length, |offset| saturated(offset).min(self.length))
    }
}
