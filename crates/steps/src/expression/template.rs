//! Expands text with expressions. A single expression keeps the type of its value.

use serde_json::Value;

use super::text::to_text;
use super::{Dialect, ExpressionError, Scope, evaluate_within, legacy};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Literal(String),
    /// Expression, without its `${{ }}`.
    Expression(String),
}

impl Scope {
    /// Expands all strings in a value, except keys of objects.
    ///
    /// # Errors
    /// The first expression that could not be evaluated.
    pub fn expand(&self, value: &Value) -> Result<Value, ExpressionError> {
        match value {
            Value::String(text) => match self.parts(text)?.as_slice() {
                [Part::Expression(expression)] => evaluate_within(expression, self, 0),
                parts => join(parts, self, 0).map(Value::String),
            },
            Value::Array(items) => {
                items.iter().map(|item| self.expand(item)).collect::<Result<_, _>>().map(Value::Array)
            }
            Value::Object(object) => {
                let entry = |(key, value): (&String, &Value)| Ok((key.clone(), self.expand(value)?));
                object.iter().map(entry).collect::<Result<_, _>>().map(Value::Object)
            }
            other => Ok(other.clone()),
        }
    }

    /// Expands a text. Values other than strings become JSON.
    ///
    /// # Errors
    /// The first expression that could not be evaluated.
    pub fn expand_text(&self, text: &str) -> Result<String, ExpressionError> {
        join(&self.parts(text)?, self, 0)
    }

    fn parts(&self, text: &str) -> Result<Vec<Part>, ExpressionError> {
        match self.dialect() {
            Dialect::Current => parts(text),
            Dialect::Legacy => legacy::parts(text),
        }
    }
}

pub(super) fn join(parts: &[Part], scope: &Scope, depth: usize) -> Result<String, ExpressionError> {
    let mut out = String::new();
    for part in parts {
        match part {
            Part::Literal(text) => out.push_str(text),
            Part::Expression(text) => out.push_str(&to_text(&evaluate_within(text, scope, depth)?)),
        }
    }
    Ok(out)
}

fn parts(text: &str) -> Result<Vec<Part>, ExpressionError> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${{") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('\\') {
            literal.push_str(before);
            literal.push_str("${{");
            rest = from.get(3..).unwrap_or_default();
            continue;
        }
        literal.push_str(before);
        let length = expression_length(from).ok_or_else(|| ExpressionError::NotClosed(from.to_owned()))?;
        if !literal.is_empty() {
            parts.push(Part::Literal(std::mem::take(&mut literal)));
        }
        parts.push(Part::Expression(from.get(3..length - 2).unwrap_or_default().to_owned()));
        rest = from.get(length..).unwrap_or_default();
    }
    literal.push_str(rest);
    if !literal.is_empty() || parts.is_empty() {
        parts.push(Part::Literal(literal));
    }
    Ok(parts)
}

/// Returns the length of the expression at the start of `text`, with its `${{` and `}}`. `None` means that the `}}` is
/// missing.
///
/// A `}}` inside a string or nested braces does not end the expression.
pub(super) fn expression_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut quote = None;
    let mut braces = 0_usize;
    let mut at = 3;
    while let Some(byte) = bytes.get(at) {
        match (quote, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(open), close) if open == *close => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(*byte),
            (None, b'{') => braces += 1,
            (None, b'}') if braces > 0 => braces -= 1,
            (None, b'}') if bytes.get(at + 1) == Some(&b'}') => return Some(at + 2),
            _ => {}
        }
        at += 1;
    }
    None
}
