//! A tree and variables to a value, with GitLab's rules of truth.

use std::cell::RefCell;

use regex::Regex;

use super::error::{ExpressionError, ExpressionErrorKind};
use super::parser::{Node, Operator};
use crate::patterns::Patterns;
use crate::regexp;

/// What a part of an expression stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A variable that is not defined, an input without a value, or `null`.
    Null,
    /// Any text, also the empty one.
    Text(String),
    /// `true`, `false`, or the outcome of a comparison.
    Bool(bool),
}

impl Value {
    /// Whether an expression of this value holds: null, false and blank text do not.
    #[must_use]
    pub fn holds_as_condition(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Text(text) => !text.trim_matches(|char: char| char.is_ascii_whitespace()).is_empty(),
        }
    }

    /// Whether `&&` goes on to its right side, and `||` does not: here even the empty text counts as true, as in GitLab.
    fn is_truthy(&self) -> bool {
        !matches!(self, Self::Null | Self::Bool(false))
    }

    /// As text; null has none.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Null => None,
            Self::Text(text) => Some(text),
            Self::Bool(true) => Some("true"),
            Self::Bool(false) => Some("false"),
        }
    }
}

/// Where names get their values.
pub(super) struct Lookup<'a> {
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    pub(super) input: &'a dyn Fn(&str) -> Value,
    /// Patterns that are values.
    pub(super) patterns: RefCell<&'a mut Patterns>,
}

/// The value of `node`. `&&` and `||` give the value of the side that decided.
pub(super) fn value_of(node: &Node, lookup: &Lookup<'_>) -> Result<Value, ExpressionError> {
    match node {
        Node::Null => Ok(Value::Null),
        Node::Bool(value) => Ok(Value::Bool(*value)),
        Node::Text(text) => Ok(Value::Text(text.clone())),
        // A pattern that stands alone is a value like any other, and not null.
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

/// `left =~ right`: null on the left is empty text, null on the right never matches.
fn matches(left: &Value, right: &Node, offset: usize, lookup: &Lookup<'_>) -> Result<bool, ExpressionError> {
    let text = left.text().unwrap_or_default();
    if let Node::Pattern(regex) = right {
        return Ok(regex.is_match(text));
    }
    let right = value_of(right, lookup)?;
    let Some(right) = right.text() else { return Ok(false) };
    match regexp::split_literal(right) {
        Some((pattern, flags)) => Ok(compile_value(pattern, flags, offset, lookup)?.is_match(text)),
        // GitLab's quirk: what is no pattern is searched for the left side.
        None => Ok(right.contains(text)),
    }
}

fn compile_value(pattern: &str, flags: &str, offset: usize, lookup: &Lookup<'_>) -> Result<Regex, ExpressionError> {
    lookup.patterns.borrow_mut().compile(&pattern.replace("\\/", "/"), flags).map_err(|error| {
        let help = error.help.map(str::to_owned);
        ExpressionError::new(ExpressionErrorKind::ValueIsNoRegexp(error), offset).with_help(help)
    })
}
