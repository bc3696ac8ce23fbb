//! Errors and warnings with their position in the configuration.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::node::Span;
use crate::source_map::SourceMap;
use crate::sub_span::SubSpan;

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The pipeline can be created despite the problem.
    Warning,
    /// No pipeline is created.
    Error,
}

/// An error or warning: what is wrong, where it is, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Severity.
    pub severity: Severity,
    /// What is wrong. Uses GitLab's wording if GitLab has a message: ``a config contains unknown keys: `colour` ``.
    pub message: String,
    /// Position of the problem. `None` means that the problem has no position in a text.
    pub span: Option<Span>,
    /// Related positions with a label each, such as "extended from here".
    pub related: Vec<(Span, String)>,
    /// How to fix the problem, such as "did you mean `coverage`?".
    pub help: Option<String>,
    /// Part of the scalar at `span` that the problem concerns. Resolved by [`Self::narrow`].
    pub(crate) sub_span: Option<Box<SubSpan>>,
}

impl Diagnostic {
    /// Creates an error at `span`.
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

    /// Creates a warning at `span`.
    #[must_use]
    pub fn warning(span: impl Into<Option<Span>>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(span, message) }
    }

    /// Adds a hint on how to fix the problem.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Restricts the problem to the bytes `range` of `text`, the value of the scalar at the span.
    pub(crate) fn inside(mut self, text: &Arc<str>, range: Range<usize>) -> Self {
        self.sub_span = Some(Box::new(SubSpan { text: text.clone(), offset: range.start, length: range.len() }));
        self
    }

    pub(crate) fn narrow(&mut self, sources: &SourceMap) {
        if let Some((sub_span, span)) = self.sub_span.take().zip(self.span) {
            self.span = sub_span.find(span, sources).or(Some(span));
        }
    }

    /// Adds a related position.
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

/// Truncates a text that has more than `max_chars` characters, and adds `...` to it.
pub(crate) fn shortened(text: &str, max_chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max_chars) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
    }
}
