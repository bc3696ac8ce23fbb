//! Errors of expressions.

use std::ops::Range;

use crate::regexp::RegexpError;

use super::MAX_TOKENS;

/// Reason why an expression cannot be parsed or evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct ExpressionError {
    /// Kind of the error.
    pub kind: ExpressionErrorKind,
    /// Position of the error: a byte offset into the text of the expression.
    pub offset: usize,
    /// How to fix the error, for common mistakes.
    pub help: Option<String>,
}

/// Kind of an error in an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionErrorKind {
    /// The text at the position does not start a token.
    #[error("invalid expression syntax: unknown lexeme `{0}`")]
    UnknownLexeme(String),
    /// The expression has more than [`MAX_TOKENS`] tokens.
    #[error("invalid expression syntax: more than {MAX_TOKENS} tokens")]
    TooManyTokens,
    /// The expression is empty.
    #[error("invalid expression syntax: the expression is empty")]
    Empty,
    /// A token occurs where it is not allowed.
    #[error("invalid expression syntax: unexpected `{0}`")]
    Unexpected(String),
    /// The expression ends where a value is required.
    #[error("invalid expression syntax: missing value at the end")]
    MissingValue,
    /// A parenthesis is not closed.
    #[error("invalid expression syntax: unclosed `(`")]
    Unclosed,
    /// A pattern literal is not valid in RE2, or is too large.
    #[error("invalid expression syntax: {0}")]
    Regexp(RegexpError),
    /// A value has the form `/pattern/`, but the pattern is not valid in RE2 or is too large. Detected during
    /// evaluation.
    #[error("the value on the right side is not a valid pattern: {0}")]
    InvalidPatternValue(RegexpError),
}

impl ExpressionError {
    pub(super) fn new(kind: ExpressionErrorKind, offset: usize) -> Self {
        Self { kind, offset, help: None }
    }

    /// Returns the range of the invalid bytes in the expression's text. The range is empty if something is missing at that
    /// position, or if the expression has too many tokens.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let length = match &self.kind {
            ExpressionErrorKind::UnknownLexeme(text) | ExpressionErrorKind::Unexpected(text) => text.len(),
            ExpressionErrorKind::Empty | ExpressionErrorKind::MissingValue | ExpressionErrorKind::TooManyTokens => 0,
            // The opening `(` or `/`.
            ExpressionErrorKind::Unclosed | ExpressionErrorKind::Regexp(_) => 1,
            // The operator `=~` or `!~`.
            ExpressionErrorKind::InvalidPatternValue(_) => 2,
        };
        self.offset..self.offset + length
    }

    pub(super) fn with_help(mut self, help: impl Into<Option<String>>) -> Self {
        self.help = help.into();
        self
    }
}
