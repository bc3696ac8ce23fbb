//! Errors and warnings that point at the line.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::node::Span;
use crate::source_map::SourceMap;
use crate::sub_span::SubSpan;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The pipeline is created all the same.
    Warning,
    /// There is no pipeline.
    Error,
}

/// One finding: what is wrong, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in GitLab's terms where it has a message: ``a config contains unknown keys: `colour` ``.
    pub message: String,
    /// Where; none only where the whole configuration is meant and no text was read.
    pub span: Option<Span>,
    /// Other places that matter, each with what they are: "extended from here".
    pub related: Vec<(Span, String)>,
    /// What to do: "did you mean `coverage`?".
    pub help: Option<String>,
    /// What of the text at `span` is meant, until the sources are at hand.
    pub(crate) sub_span: Option<Box<SubSpan>>,
}

impl Diagnostic {
    /// An error at `span`.
    #[must_use]
    pub fn error(span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: message.into(),
            span: span.into(),
            related: Vec::new(),
            help: None,
            sub_span: None,
        }
    }

    /// A warning at `span`.
    #[must_use]
    pub fn warning(span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    /// With what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Narrows the diagnostic to the bytes `range` of `text`, the value of the scalar at the span. The span itself is
    /// narrowed by [`Self::narrow`], once the sources are available.
    pub(crate) fn inside(mut self, text: &Arc<str>, range: Range<usize>) -> Self {
        self.sub_span = Some(Box::new(SubSpan { text: text.clone(), offset: range.start, length: range.len() }));
        self
    }

    /// Makes the span as narrow as it can be.
    pub(crate) fn narrow(&mut self, sources: &SourceMap) {
        if let Some((sub_span, span)) = self.sub_span.take().zip(self.span) {
            self.span = sub_span.find(span, sources).or(Some(span));
        }
    }

    /// With another place.
    #[must_use]
    pub fn related(mut self, span: Span, label: impl Into<String>) -> Self {
        self.related.push((span, label.into()));
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A text of a configuration, cut where it is absurdly long.
pub(crate) fn shortened(text: &str, longest_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(longest_chars) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
    }
}
