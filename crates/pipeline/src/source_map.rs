//! The texts of a configuration, and byte offsets in them as spans.

use std::sync::Arc;

use crate::node::{SourceId, Span};

/// The texts that were read. Resolves the [`SourceId`] of a [`Span`].
#[derive(Debug, Clone, Default)]
pub struct SourceMap {
    sources: Vec<Source>,
}

/// A text with its name.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name for messages, such as a path or a URL.
    pub name: Arc<str>,
    /// The text as written, before the interpolation of inputs.
    pub text: Arc<str>,
}

impl SourceMap {
    /// Adds a text and returns its ID.
    pub fn add(&mut self, name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> SourceId {
        let id = SourceId(u32::try_from(self.sources.len()).unwrap_or(u32::MAX));
        self.sources.push(Source { name: name.into(), text: text.into() });
        id
    }

    /// Returns the text with this ID.
    #[must_use]
    pub fn get(&self, id: SourceId) -> Option<&Source> {
        self.sources.get(usize::try_from(id.0).ok()?)
    }

    /// Returns all texts in the order in which they were read.
    ///
    /// The first text is the root file or, for a child pipeline, the first entry of `trigger:include`.
    #[must_use]
    pub fn all(&self) -> &[Source] {
        &self.sources
    }
}

/// Returns the span of the `length` bytes at `offset`. Takes time linear in `offset`.
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

/// Returns the span of a part of `outer`. `written` is the source text of `outer`, and `offset` is an offset in it.
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

/// Converts a count of bytes, lines or columns. No count reaches `u32::MAX`, because files are far smaller than 4 GiB.
pub(crate) fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
