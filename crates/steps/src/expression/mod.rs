//! The expressions of step files, `${{ ... }}` (steps 3): Moa, with the lookups of the older language.
//!
//! Values are JSON values; numbers are doubles. Parsing is bounded in depth, evaluation ends because the language has
//! no loops.

mod eval;
mod lexer;
mod parser;
mod template;
mod text;

use serde_json::Value;

pub use template::{expand, expand_text};
pub use text::to_text;

/// Maximum number of strings with expressions that are inside each other.
const MAX_STRINGS: usize = 16;

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// `${{` without its `}}`.
    #[error("the \"{0}\" is not closed: ${{{{ ... }}}}")]
    NotClosed(String),
    /// It cannot be read. The offset counts bytes from the start of the expression.
    #[error("parser: {message} at {offset}")]
    Syntax {
        /// What is wrong.
        message: String,
        /// Where.
        offset: usize,
    },
    /// It has no value.
    #[error("evaluating expression failed: {0}")]
    Eval(String),
}

/// The value of the expression `text`, which is given without its `${{ }}`. Names are looked up in `scope`.
///
/// # Errors
/// [`ExpressionError`].
pub fn evaluate(text: &str, scope: &Value) -> Result<Value, ExpressionError> {
    evaluate_within(text, scope, 0)
}

/// [`evaluate`] for an expression within `depth` strings of other expressions.
fn evaluate_within(text: &str, scope: &Value, depth: usize) -> Result<Value, ExpressionError> {
    if depth > MAX_STRINGS {
        return Err(ExpressionError::Eval(format!("expressions are inside more than {MAX_STRINGS} strings")));
    }
    let result = parser::parse(text).and_then(|node| eval::eval(&node, scope, depth));
    match result {
        Ok(value) => Ok(value),
        // Names like `foo-bar` are none in Moa, but were in the language before it.
        Err(error) => legacy(text, scope).ok_or(error),
    }
}

/// A plain dotted path, looked up piece by piece.
fn legacy(text: &str, scope: &Value) -> Option<Value> {
    let text = text.trim();
    if text.contains(['"', '\'', '[', ']', '(', ')', '{', '}', '|', '&']) {
        return None;
    }
    text.split('.').try_fold(scope, |value, piece| value.as_object()?.get(piece)).cloned()
}

#[cfg(test)]
mod tests;
