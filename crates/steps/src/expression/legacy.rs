//! Expressions of step-runner 0.11.0, whose language is the predecessor of Moa: lookups of dotted paths
//! (docs/spec/steps.md, section 3.1).

use serde_json::Value;

use super::template::Part;
use super::{ExpressionError, Scope};
use crate::value::Kind;

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

const MAPS: [&str; 4] = ["env", "inputs", "job", "steps"];
const ROOTS: [&str; 8] = ["env", "export_file", "inputs", "job", "output_file", "step_dir", "steps", "work_dir"];

/// Splits a text into literals and expressions. An expression ends at the `}}` that closes its own `${{`.
pub(super) fn parts(text: &str) -> Result<Vec<Part>, ExpressionError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(start) = next_token(rest) {
        let (literal, tail) = rest.split_at(start);
        if !tail.starts_with(OPEN) {
            return Err(ExpressionError::ExtraClose(rest.to_owned()));
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
        }
        let end = end_of_expression(tail).ok_or_else(|| ExpressionError::NotClosed(tail.to_owned()))?;
        let (expression, after) = tail.split_at(end);
        let inner = expression.strip_prefix(OPEN).and_then(|text| text.strip_suffix(CLOSE)).unwrap_or_default();
        parts.push(Part::Expression(inner.to_owned()));
        rest = after;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(Part::Literal(rest.to_owned()));
    }
    Ok(parts)
}

fn next_token(text: &str) -> Option<usize> {
    [OPEN, CLOSE].iter().filter_map(|token| text.find(token)).min()
}

/// Returns the length of the expression at the start of `text`. `None` means that the expression is not closed.
fn end_of_expression(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    loop {
        let tail = text.get(at..)?;
        let start = next_token(tail)?;
        let is_open = tail.get(start..)?.starts_with(OPEN);
        depth = if is_open { depth + 1 } else { depth - 1 };
        at += start + if is_open { OPEN.len() } else { CLOSE.len() };
        if depth == 0 {
            return Some(at);
        }
    }
}

pub(super) fn evaluate(text: &str, scope: &Scope) -> Result<Value, ExpressionError> {
    let expression = text.trim();
    let not_found =
        |piece: &str| ExpressionError::NotFound { expression: expression.to_owned(), piece: piece.to_owned() };
    let pieces: Vec<&str> = expression.split('.').collect();
    if let [root, ..] = pieces.as_slice()
        && !ROOTS.contains(root)
    {
        return Err(not_found(root));
    }
    if let ["steps", _, field, ..] = pieces.as_slice()
        && *field != "outputs"
    {
        return Err(not_found(field));
    }
    let mut value = scope.values();
    for piece in &pieces {
        value = match value {
            Value::Object(object) => object.get(*piece).ok_or_else(|| not_found(piece))?,
            Value::Array(_) => {
                return Err(ExpressionError::NotMap { expression: expression.to_owned(), piece: (*piece).to_owned() });
            }
            other => {
                let kind = Kind::from_value(other).map_or("null", Kind::name);
                return Err(ExpressionError::NotSupported { expression: expression.to_owned(), kind });
            }
        };
    }
    match pieces.as_slice() {
        [root] if MAPS.contains(root) => Err(ExpressionError::WholeMap(expression.to_owned())),
        ["steps", _] | ["steps", _, _] => Err(ExpressionError::WholeMap(expression.to_owned())),
        _ => Ok(value.clone()),
    }
}
