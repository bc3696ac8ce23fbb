//! Evaluates parsed expressions with GitLab's rules for truth values.

use std::cell::RefCell;

use regex::Regex;

use super::error::{ExpressionError, ExpressionErrorKind};
use super::parser::{Node, Operator};
use crate::patterns::Patterns;
use crate::regexp;

/// Value of a part of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// An undefined variable, an input without a value, or `null`.
    Null,
    /// A text, which may be empty.
    Text(String),
    /// A boolean literal or input, or the result of a comparison.
    Bool(bool),
}

impl Value {
    /// Returns true unless the value is null, false or a blank text.
    #[must_use]
    pub fn meets_condition(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Text(text) => !text.trim_matches(|char: char| char.is_ascii_whitespace()).is_empty(),
        }
    }

    /// Returns true if `&&` and `||` treat this operand as true. As on GitLab, they treat the empty text as true.
    fn is_truthy(&self) -> bool {
        !matches!(self, Self::Null | Self::Bool(false))
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text),
            Self::Bool(true) => Some("true"),
            Self::Bool(false) => Some("false"),
        }
    }
}

pub(super) struct Lookup<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    pub(super) input: &'a dyn Fn(&str) -> Value,
    pub(super) patterns: RefCell<&'a mut Patterns>,
}

/// Evaluates a node. The value of `&&` and `||` is that of the last operand that was evaluated.
pub(super) fn value_of(node: &Node, lookup: &Lookup<'_>) -> Result<Value, ExpressionError> {
    match node {
        Node::Null => Ok(Value::Null),
        Node::Bool(value) => Ok(Value::Bool(*value)),
        Node::Text(text) => Ok(Value::Text(text.clone())),
        // On the right of `=~` or `!~`, a pattern is matched and not evaluated. Elsewhere, a pattern is a text.
        Node::Pattern(regex) => Ok(Value::Text(format!("/{}/", regex.as_str()))),
        Node::Variable(name) => Ok((lookup.variable)(name).map_or(Value::Null, Value::Text)),
        Node::Input(id) => Ok((lookup.input)(id)),
        Node::Binary { operator, offset, left, right } => {
            let value = value_of(left, lookup)?;
            match operator {
                Operator::And if value.is_truthy() => value_of(right, lookup),
                Operator::Or if !value.is_truthy() => value_of(right, lookup),
                Operator::And | Operator::Or => Ok(value),
                Operator::Equal => Ok(Value::Bool(value.text() == value_of(right, lookup)?.text())),
                Operator::NotEqual => Ok(Value::Bool(value.text() != value_of(right, lookup)?.text())),
                Operator::Match => Ok(Value::Bool(matches(&value, right, *offset, lookup)?)),
                Operator::NotMatch => Ok(Value::Bool(!matches(&value, right, *offset, lookup)?)),
            }
        }
    }
}

/// Evaluates `left =~ right`. Null on the left side counts as the empty text. Null on the right side never matches.
fn matches(left: &Value, right: &Node, offset: usize, lookup: &Lookup<'_>) -> Result<bool, ExpressionError> {
    let text = left.text().unwrap_or_default();
    if let Node::Pattern(regex) = right {
        return Ok(regex.is_match(text));
    }
    let right = value_of(right, lookup)?;
    let Some(right) = right.text() else { return Ok(false) };
    match regexp::split_literal(right) {
        Some((pattern, flags)) => Ok(compile_value(pattern, flags, offset, lookup)?.is_match(text)),
        // As on GitLab, a right side that is not a pattern must contain the left side.
        None => Ok(right.contains(text)),
    }
}

fn compile_value(pattern: &str, flags: &str, offset: usize, lookup: &Lookup<'_>) -> Result<Regex, ExpressionError> {
    lookup.patterns.borrow_mut().compile(&pattern.replace("\\/", "/"), flags).map_err(|error| {
        let help = error.help.map(str::to_owned);
        ExpressionError::new(ExpressionErrorKind::InvalidPatternValue(error), offset).with_help(help)
    })
}
