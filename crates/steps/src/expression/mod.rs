//! Expressions of step files, `${{ ... }}`, in two dialects (docs/spec/steps.md, section 3). The current dialect is the
//! language Moa and the lookups of its predecessor. The legacy dialect has only these lookups.
//!
//! Values are JSON values, and numbers are doubles.

mod eval;
mod legacy;
mod lexer;
mod parser;
mod template;
mod text;

use serde_json::Value;

pub(crate) use eval::truthy;
pub use text::to_text;

/// Maximum number of strings inside each other that contain expressions.
const MAX_STRING_DEPTH: usize = 16;

/// Dialect of step files and their expressions (docs/spec/steps.md, section 0.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// Dialect "functions" of gitlab-runner 19, with the language Moa.
    #[default]
    Current,
    /// Dialect "steps" of step-runner 0.11.0.
    Legacy,
}

/// Values that expressions can read, and the dialect of the expressions.
#[derive(Debug, Clone, PartialEq)]
pub struct Scope {
    dialect: Dialect,
    values: Value,
}

impl Scope {
    /// Returns a scope with the names and values of the object `values`.
    #[must_use]
    pub fn new(dialect: Dialect, values: Value) -> Self {
        Self { dialect, values }
    }

    /// Returns the dialect of the expressions.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn values(&self) -> &Value {
        &self.values
    }
}

/// Error of an expression, with messages like those of GitLab's step-runner.
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
    /// The expression reads an attribute or element that does not exist.
    #[error("evaluating expression failed at \"{access}\": {kind} not found")]
    Missing {
        /// Access in the expression: `.name` or `[index]`.
        access: String,
        /// `attribute` or `element`.
        kind: &'static str,
    },
    /// Legacy dialect: a `}}` does not close an expression.
    #[error("the \"{0}\" has extra '}}}}'; write the braces with a space between them")]
    ExtraClose(String),
    /// Legacy dialect: there is no value of this name.
    #[error("{expression}: the \"{piece}\" was not found")]
    NotFound {
        /// The expression.
        expression: String,
        /// Part of the expression that was not found.
        piece: String,
    },
    /// Legacy dialect: a value that is not a mapping has no fields.
    #[error("{expression}: \"{kind}\" is not supported; only a struct has fields")]
    NotSupported {
        /// The expression.
        expression: String,
        /// Type of the value.
        kind: &'static str,
    },
    /// Legacy dialect: an array has no fields.
    #[error("{expression}: the value is not map to get \"{piece}\" key")]
    NotMap {
        /// The expression.
        expression: String,
        /// Name of the field.
        piece: String,
    },
    /// Legacy dialect: the expression reads a whole map.
    #[error("{0}: invalid type: a map; name one of its values")]
    WholeMap(String),
}

/// Evaluates the expression `text`, without its `${{ }}`.
///
/// # Errors
/// The expression could not be parsed or evaluated.
pub fn evaluate(text: &str, scope: &Scope) -> Result<Value, ExpressionError> {
    evaluate_within(text, scope, 0)
}

/// Evaluates an expression inside `depth` strings of other expressions.
fn evaluate_within(text: &str, scope: &Scope, depth: usize) -> Result<Value, ExpressionError> {
    if scope.dialect == Dialect::Legacy {
        return legacy::evaluate(text, scope);
    }
    if depth > MAX_STRING_DEPTH {
        return Err(ExpressionError::Eval(format!(
            "expressions are nested inside more than {MAX_STRING_DEPTH} strings"
        )));
    }
    let result = parser::parse(text).and_then(|node| eval::eval(&node, scope, depth));
    match result {
        Ok(value) => Ok(value),
        // Names like `foo-bar` are invalid in Moa, but valid in its predecessor.
        Err(error) => lookup_dotted_path(text, scope).ok_or(error),
    }
}

/// Looks up a dotted path, as Moa's predecessor does. Unlike in Moa, names may contain `-`.
fn lookup_dotted_path(text: &str, scope: &Scope) -> Option<Value> {
    let text = text.trim();
    if text.contains(['"', '\'', '[', ']', '(', ')', '{', '}', '|', '&']) {
        return None;
    }
    text.split('.').try_fold(scope.values(), |value, piece| value.as_object()?.get(piece)).cloned()
}

#[cfg(test)]
mod tests;
