//! Errors and warnings that point at the line.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::expression::ExpressionError;
use crate::node::{SourceId, Span};
use crate::part::Part;

/// The texts that were read, so that a [`Span`] can be shown.
#[derive(Debug, Clone, Default)]
pub struct SourceMap {
    sources: Vec<Source>,
}

/// One text.
#[derive(Debug, Clone)]
pub struct Source {
    /// The name to show: a path, a URL, a component.
    pub name: Arc<str>,
    /// The text, as it was written (before interpolation).
    pub text: Arc<str>,
}

impl SourceMap {
    /// Adds a text.
    pub fn add(&mut self, name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> SourceId {
        let id = SourceId(u32::try_from(self.sources.len()).unwrap_or(u32::MAX));
        self.sources.push(Source { name: name.into(), text: text.into() });
        id
    }

    /// The text of an id.
    #[must_use]
    pub fn get(&self, id: SourceId) -> Option<&Source> {
        self.sources.get(usize::try_from(id.0).ok()?)
    }

    /// All texts in the order in which they were read; the first is the root file.
    #[must_use]
    pub fn all(&self) -> &[Source] {
        &self.sources
    }
}

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
    pub(crate) part: Option<Box<Part>>,
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
            part: None,
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

    /// At the place in `text`, the scalar at the span, that an error of its expression means.
    pub(crate) fn inside(mut self, text: &Arc<str>, error: &ExpressionError) -> Self {
        self.part = Some(Box::new(Part { text: text.clone(), offset: error.offset, length: error.length() }));
        self
    }

    /// Makes the span as narrow as it can be.
    pub(crate) fn narrow(&mut self, sources: &SourceMap) {
        if let Some((part, span)) = self.part.take().zip(self.span) {
            self.span = part.find(span, sources).or(Some(span));
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
