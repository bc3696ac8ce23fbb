//! Expressions of step files, `${{ ... }}`: the language Moa, with the lookups of its predecessor (docs/spec/steps.md, section 3).
//!
//! Values are JSON values, and numbers are doubles. The parser limits the depth. Evaluation always terminates, because the language
//! has no loops.

mod eval;
mod lexer;
mod parser;
mod template;
mod text;

use serde_json::Value;

pub use template::{expand, expand_text};
pub use text::to_text;

/// Maximum depth of expressions inside strings of other expressions.
const MAX_STRING_DEPTH: usize = 16;

/// Error of an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// A `${{` has no matching `}}`.
    #[error("the \"{0}\" is not closed: ${{{{ ... }}}}")]
    NotClosed(String),
    /// The expression could not be parsed.
    #[error("parser: {message} at {offset}")]
    Syntax {
        /// Description of the problem.
        message: String,
        /// Position of the problem, in bytes from the start of the expression.
        offset: usize,
    },
    /// The expression could not be evaluated.
    #[error("evaluating expression failed: {0}")]
    Eval(String),
}

/// Evaluates the expression `text`, without its `${{ }}`. Names are looked up in `scope`.
///
/// # Errors
/// The expression could not be parsed or evaluated.
pub fn evaluate(text: &str, scope: &Value) -> Result<Value, ExpressionError> {
    evaluate_within(text, scope, 0)
}

/// Evaluates an expression that is inside `depth` strings of other expressions.
fn evaluate_within(text: &str, scope: &Value, depth: usize) -> Result<Value, ExpressionError> {
    if depth > MAX_STRING_DEPTH {
        return Err(ExpressionError::Eval(format!(
            "expressions are nested inside more than {MAX_STRING_DEPTH} strings"
        )));
    }
    let result = parser::parse(text).and_then(|node| eval::eval(&node, scope, depth));
    match result {
        Ok(value) => Ok(value),
        // Names like `foo-bar` are invalid in Moa, but were valid in its predecessor.
        Err(error) => lookup_dotted_path(text, scope).ok_or(error),
    }
}

/// Looks up a dotted path by its parts, as the predecessor of Moa does. Unlike in Moa, names may contain `-`.
fn lookup_dotted_path(text: &str, scope: &Value) -> Option<Value> {
    let text = text.trim();
    if text.contains(['"', '\'', '[', ']', '(', ')', '{', '}', '|', '&']) {
        return None;
    }
    text.split('.').try_fold(scope, |value, piece| value.as_object()?.get(piece)).cloned()
}

#[cfg(test)]
mod tests;
