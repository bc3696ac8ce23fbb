//! Expressions of `rules:if`, `only:variables` and `spec:inputs:rules` (docs/spec/pipeline-yaml.md, section 3.1).
//!
//! ```text
//! expr    := and { "||" and }
//! and     := cmp { "&&" cmp }
//! cmp     := prim { ("==" | "!=" | "=~" | "!~") prim }
//! prim    := "(" expr ")" | $NAME | "text" | 'text' | /pattern/flags | null | true | false | $[[ inputs.id ]]
//! ```
//! An expression has at most [`MAX_TOKENS`] tokens. Values are compared unexpanded: a `$NAME` inside a value has no
//! special meaning.

mod error;
mod evaluate;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;

pub use error::{ExpressionError, ExpressionErrorKind};
pub use evaluate::Value;

use lexer::Mode;
use parser::Node;

use crate::patterns::Patterns;

/// Maximum number of tokens in an expression.
pub const MAX_TOKENS: usize = 99;

/// A parsed expression.
#[derive(Debug, Clone)]
pub struct Expression {
    root: Node,
}

/// Parses an expression of `rules:if` or `only:variables`.
///
/// # Errors
/// Returns [`ExpressionError`] with the position in `text` and, for common mistakes, how to fix them.
pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
    parse_within(text, &mut Patterns::default())
}

/// Parses the `if` of `spec:inputs:rules`, which may also use `$[[ inputs.id ]]`.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_input_rule(text: &str) -> Result<Expression, ExpressionError> {
    parse_input_rule_within(text, &mut Patterns::default())
}

/// Same as [`parse`], with a cache and a budget that the caller shares between expressions.
pub(crate) fn parse_within(text: &str, patterns: &mut Patterns) -> Result<Expression, ExpressionError> {
    parse_in(text, Mode::Variables, patterns)
}

/// Same as [`parse_input_rule`], with a cache and a budget that the caller shares between expressions.
pub(crate) fn parse_input_rule_within(text: &str, patterns: &mut Patterns) -> Result<Expression, ExpressionError> {
    parse_in(text, Mode::Inputs, patterns)
}

fn parse_in(text: &str, mode: Mode, patterns: &mut Patterns) -> Result<Expression, ExpressionError> {
    let tokens = lexer::tokens(text, mode, patterns)?;
    let root = parser::parse(&tokens, text.len())?;
    Ok(Expression { root })
}

impl Expression {
    /// Evaluates the expression. `variable` returns the unexpanded value of a variable, or `None` if it is not defined.
    ///
    /// # Errors
    /// Returns [`ExpressionErrorKind::InvalidPatternValue`] if the right side of `=~` or `!~` has a value of the form
    /// `/.../` that does not compile. GitLab evaluates such an expression to false without a message.
    pub fn evaluate(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<bool, ExpressionError> {
        self.evaluate_with_inputs(variable, &|_| Value::Null)
    }

    /// Same as [`Expression::evaluate`], for an expression from [`parse_input_rule`]. `input` returns the value of an
    /// input.
    ///
    /// # Errors
    /// Same as [`Expression::evaluate`].
    pub fn evaluate_with_inputs(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        input: &dyn Fn(&str) -> Value,
    ) -> Result<bool, ExpressionError> {
        self.evaluate_within(variable, input, &mut Patterns::default())
    }

    /// Same as [`Expression::evaluate_with_inputs`], with a cache and a budget for the patterns in values.
    pub(crate) fn evaluate_within(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        input: &dyn Fn(&str) -> Value,
        patterns: &mut Patterns,
    ) -> Result<bool, ExpressionError> {
        let lookup = evaluate::Lookup { variable, input, patterns: patterns.into() };
        Ok(evaluate::value_of(&self.root, &lookup)?.meets_condition())
    }

    /// Returns the names of the variables in the expression, each once, in order of appearance.
    #[must_use]
    pub fn variables(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.walk(&mut |node| {
            if let Node::Variable(name) = node
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        });
        names
    }

    /// Returns the names of the inputs in the expression, each once, in order of appearance.
    #[must_use]
    pub fn inputs(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.root.walk(&mut |node| {
            if let Node::Input(name) = node
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        });
        names
    }
}
