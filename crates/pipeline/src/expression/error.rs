//! What can be wrong with an expression.

use std::ops::Range;

use crate::regexp::RegexpError;

use super::MAX_TOKENS;

/// An expression that cannot be parsed or evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct ExpressionError {
    /// What is wrong.
    pub kind: ExpressionErrorKind,
    /// Where it is: a byte offset into the expression's text.
    pub offset: usize,
    /// What to write instead, for the usual slips.
    pub help: Option<String>,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionErrorKind {
    /// Nothing that the language knows begins here.
    #[error("invalid expression syntax: unknown lexeme `{0}`")]
    UnknownLexeme(String),
    /// More than [`MAX_TOKENS`].
    #[error("invalid expression syntax: more than {MAX_TOKENS} tokens")]
    TooManyTokens,
    /// There is nothing.
    #[error("invalid expression syntax: the expression is empty")]
    Empty,
    /// A known token where it cannot be.
    #[error("invalid expression syntax: unexpected `{0}`")]
    Unexpected(String),
    /// The text ends where a value has to follow.
    #[error("invalid expression syntax: a value is missing at the end")]
    MissingValue,
    /// A parenthesis without its partner.
    #[error("invalid expression syntax: `(` is never closed")]
    Unclosed,
    /// A pattern literal that is not RE2.
    #[error("invalid expression syntax: {0}")]
    Regexp(RegexpError),
    /// The value of a variable looks like `/pattern/` and is not RE2; seen when evaluating.
    #[error("the value compared with is no pattern: {0}")]
    ValueIsNoRegexp(RegexpError),
}

impl ExpressionError {
    pub(super) fn new(kind: ExpressionErrorKind, offset: usize) -> Self {
        Self { kind, offset, help: None }
    }

    /// Returns the wrong bytes of the expression's text. The range is empty if something is missing at its start.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let length = match &self.kind {
            ExpressionErrorKind::UnknownLexeme(text) | ExpressionErrorKind::Unexpected(text) => text.len(),
            ExpressionErrorKind::Empty | ExpressionErrorKind::MissingValue | ExpressionErrorKind::TooManyTokens => 0,
            ExpressionErrorKind::Unclosed | ExpressionErrorKind::Regexp(_) => 1,
            ExpressionErrorKind::ValueIsNoRegexp(_) => 2,
        };
        self.offset..self.offset + length
    }

    pub(super) fn with_help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }
}
