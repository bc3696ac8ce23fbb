//! The language of `rules:if`, `only:variables` and `spec:inputs:rules` (pipeline-yaml 3.1).
//!
//! ```text
//! expr    := and { "||" and }
//! and     := cmp { "&&" cmp }
//! cmp     := prim { ("==" | "!=" | "=~" | "!~") prim }
//! prim    := "(" expr ")" | $NAME | "text" | 'text' | /pattern/flags | null | true | false | $[[ inputs.id ]]
//! ```
//! An expression is parsed once ([`parse`]) and evaluated against any set of variables ([`Expression::evaluate`]).
//!
//! Invariants: no text makes it panic; an expression has at most [`MAX_TOKENS`] tokens, so nesting and time are bounded;
//! values are compared as they are stored, a `$NAME` inside a value is never expanded.

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

/// The most tokens that an expression may have.
pub const MAX_TOKENS: usize = 99;

/// A parsed expression.
#[derive(Debug, Clone)]
pub struct Expression {
    root: Node,
}

/// Parses a `rules:if`.
///
/// # Errors
/// [`ExpressionError`] with the place in `text` and, for the usual slips, what to write instead.
pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
    parse_within(text, &mut Patterns::default())
}

/// Parses the `if` of `spec:inputs:rules`, which may also use `$[[ inputs.id ]]`.
///
/// # Errors
/// As [`parse`].
pub fn parse_input_rule(text: &str) -> Result<Expression, ExpressionError> {
    parse_input_rule_within(text, &mut Patterns::default())
}

/// As [`parse`], within a budget.
pub(crate) fn parse_within(text: &str, patterns: &mut Patterns) -> Result<Expression, ExpressionError> {
    parse_in(text, Mode::Variables, patterns)
}

/// As [`parse_input_rule`], within a budget.
pub(crate) fn parse_input_rule_within(text: &str, patterns: &mut Patterns) -> Result<Expression, ExpressionError> {
    parse_in(text, Mode::Inputs, patterns)
}

fn parse_in(text: &str, mode: Mode, patterns: &mut Patterns) -> Result<Expression, ExpressionError> {
    let tokens = lexer::tokens(text, mode, patterns)?;
    let root = parser::parse(&tokens, text.len())?;
    Ok(Expression { root })
}

impl Expression {
    /// Whether the expression holds. `variable` gives the stored value of a variable, `None` where it is not defined.
    ///
    /// # Errors
    /// [`ExpressionErrorKind::ValueIsNoRegexp`] where `=~` or `!~` has a value of the form `/.../` on its right that
    /// does not compile. GitLab takes such an expression as false, without a word: do the same, and warn.
    pub fn evaluate(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<bool, ExpressionError> {
        self.evaluate_with_inputs(variable, &|_| Value::Null)
    }

    /// As [`Expression::evaluate`], for an expression from [`parse_input_rule`]: `input` gives the value of an input.
    ///
    /// # Errors
    /// As [`Expression::evaluate`].
    pub fn evaluate_with_inputs(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        input: &dyn Fn(&str) -> Value,
    ) -> Result<bool, ExpressionError> {
        self.evaluate_within(variable, input, &mut Patterns::default())
    }

    /// As [`Expression::evaluate_with_inputs`], within a budget.
    pub(crate) fn evaluate_within(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        input: &dyn Fn(&str) -> Value,
        patterns: &mut Patterns,
    ) -> Result<bool, ExpressionError> {
        let lookup = evaluate::Lookup { variable, input, patterns: patterns.into() };
        Ok(evaluate::value_of(&self.root, &lookup)?.holds_as_condition())
    }

    /// The names of the variables that the expression looks at, each once, in order of appearance.
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

    /// The ids of the inputs that the expression looks at, each once, in order of appearance.
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
