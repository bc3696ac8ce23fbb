//! Evaluation of a parsed expression (docs/spec/steps.md, section 3.2).

use std::cmp::Ordering;

use serde_json::{Map, Number, Value};

use super::parser::Node;
use super::template;
use super::text::to_text;
use super::{ExpressionError, Scope};

fn error(message: impl Into<String>) -> ExpressionError {
    ExpressionError::Eval(message.into())
}

/// Evaluates `node`. `depth` is the number of strings with expressions around `node`.
pub(super) fn eval(node: &Node, scope: &Scope, depth: usize) -> Result<Value, ExpressionError> {
    match node {
        Node::Null => Ok(Value::Null),
        Node::Bool(value) => Ok(Value::Bool(*value)),
        Node::Number(value) => number(*value),
        Node::Text(parts) => template::join(parts, scope, depth + 1).map(Value::String),
        Node::Name(name) => attribute(scope.values(), name),
        Node::Array(items) => {
            items.iter().map(|item| eval(item, scope, depth)).collect::<Result<_, _>>().map(Value::Array)
        }
        Node::Object(entries) => object(entries, scope, depth),
        Node::Attribute(object, name) => attribute(&eval(object, scope, depth)?, name),
        Node::Index(value, index) => element(&eval(value, scope, depth)?, &eval(index, scope, depth)?),
        Node::Call(name, arguments) => {
            let arguments: Vec<Value> =
                arguments.iter().map(|item| eval(item, scope, depth)).collect::<Result<_, _>>()?;
            call(name, &arguments)
        }
        Node::Unary(operator, operand) => unary(operator, &eval(operand, scope, depth)?),
        // On the left of `||`, a missing value counts as false.
        Node::Binary("||", left, right) => match eval(left, scope, depth) {
            Ok(value) if truthy(&value) => Ok(value),
            Ok(_) | Err(ExpressionError::Missing { .. }) => eval(right, scope, depth),
            Err(error) => Err(error),
        },
        Node::Binary("&&", left, right) => {
            let value = eval(left, scope, depth)?;
            if truthy(&value) { eval(right, scope, depth) } else { Ok(value) }
        }
        Node::Binary(operator, left, right) => {
            binary(operator, &eval(left, scope, depth)?, &eval(right, scope, depth)?)
        }
    }
}

fn missing(access: String, kind: &'static str) -> ExpressionError {
    ExpressionError::Missing { access, kind }
}

fn number(value: f64) -> Result<Value, ExpressionError> {
    Number::from_f64(value).map(Value::Number).ok_or_else(|| error("the result is not a finite number"))
}

fn object(entries: &[(Node, Node)], scope: &Scope, depth: usize) -> Result<Value, ExpressionError> {
    let mut object = Map::new();
    for (key, value) in entries {
        let Value::String(key) = eval(key, scope, depth)? else { return Err(error("a key must be a string")) };
        object.insert(key, eval(value, scope, depth)?);
    }
    Ok(Value::Object(object))
}

fn attribute(value: &Value, name: &str) -> Result<Value, ExpressionError> {
    match value {
        Value::Object(object) => object.get(name).cloned().ok_or_else(|| missing(format!(".{name}"), "attribute")),
        other => Err(error(format!("at \".{name}\": {} has no attributes", kind(other).1))),
    }
}

fn element(value: &Value, index: &Value) -> Result<Value, ExpressionError> {
    match (value, index) {
        (Value::Object(_), Value::String(name)) => attribute(value, name),
        (Value::Array(items), Value::Number(index)) => {
            let position = index.as_f64().filter(|index| index.fract() == 0.0 && *index >= 0.0);
            let found = items.iter().enumerate().find(|(index, _)| Some(*index as f64) == position);
            found.map(|(_, item)| item.clone()).ok_or_else(|| missing(format!("[{index}]"), "element"))
        }
        (value, index) => Err(error(format!("{} cannot be indexed by {}", kind(value).1, kind(index).1))),
    }
}

fn call(name: &str, arguments: &[Value]) -> Result<Value, ExpressionError> {
    let [argument] = arguments else { return Err(error(format!("{name}() takes one argument"))) };
    match name {
        "str" if argument.is_null() => Ok(Value::String("<null>".to_owned())),
        "str" => Ok(Value::String(to_text(argument))),
        "bool" => Ok(Value::Bool(truthy(argument))),
        "num" => match argument {
            Value::Number(_) => Ok(argument.clone()),
            Value::String(text) => text
                .trim()
                .parse::<f64>()
                .ok()
                .and_then(Number::from_f64)
                .map(Value::Number)
                .ok_or_else(|| error(format!("num(): {text:?} is not a number"))),
            other => Err(error(format!("num() takes a string, not {}", kind(other).1))),
        },
        _ => Err(error(format!("function {name:?} not found; the functions are str(), num() and bool()"))),
    }
}

fn unary(operator: &str, operand: &Value) -> Result<Value, ExpressionError> {
    match (operator, operand.as_f64()) {
        ("!", _) => Ok(Value::Bool(!truthy(operand))),
        ("-", Some(value)) => number(-value),
        ("+", Some(value)) => number(value),
        _ => Err(error(format!("`{operator}` takes a number, not {}", kind(operand).1))),
    }
}

fn binary(operator: &str, left: &Value, right: &Value) -> Result<Value, ExpressionError> {
    let order = || compare(left, right);
    match operator {
        "==" => return Ok(Value::Bool(order() == Ordering::Equal)),
        "!=" => return Ok(Value::Bool(order() != Ordering::Equal)),
        "<" => return Ok(Value::Bool(order() == Ordering::Less)),
        "<=" => return Ok(Value::Bool(order() != Ordering::Greater)),
        ">" => return Ok(Value::Bool(order() == Ordering::Greater)),
        ">=" => return Ok(Value::Bool(order() != Ordering::Less)),
        _ => {}
    }
    match (operator, left, right) {
        ("+", Value::String(a), Value::String(b)) => return Ok(Value::String(format!("{a}{b}"))),
        ("/" | "%", _, right) if right.as_f64() == Some(0.0) => return Err(error("division by zero")),
        _ => {}
    }
    let (Some(a), Some(b)) = (left.as_f64(), right.as_f64()) else {
        return Err(error(format!("`{operator}` cannot be applied to {} and {}", kind(left).1, kind(right).1)));
    };
    number(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        _ => a % b,
    })
}

pub(crate) fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(value) => value.as_f64() != Some(0.0),
        Value::String(value) => !value.is_empty(),
        Value::Array(value) => !value.is_empty(),
        Value::Object(value) => !value.is_empty(),
    }
}

/// Returns the rank of a value's kind in comparisons, and the name of the kind with an article.
fn kind(value: &Value) -> (u8, &'static str) {
    match value {
        Value::Null => (0, "null"),
        Value::Bool(_) => (1, "a boolean"),
        Value::Number(_) => (2, "a number"),
        Value::String(_) => (3, "a string"),
        Value::Array(_) => (4, "an array"),
        Value::Object(_) => (5, "an object"),
    }
}

/// Compares two values. Values of different kinds are ordered by kind.
fn compare(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => {
            // JSON numbers are never NaN. -0 equals 0.
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal)
        }
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Array(a), Value::Array(b)) => {
            let items = a.iter().zip(b).map(|(a, b)| compare(a, b));
            items.into_iter().find(|order| order.is_ne()).unwrap_or(a.len().cmp(&b.len()))
        }
        (Value::Object(a), Value::Object(b)) => compare_objects(a, b),
        (a, b) => kind(a).0.cmp(&kind(b).0),
    }
}

fn compare_objects(a: &Map<String, Value>, b: &Map<String, Value>) -> Ordering {
    let sorted = |object: &Map<String, Value>| {
        let mut entries: Vec<(String, Value)> =
            object.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        entries.sort_by(|x, y| x.0.cmp(&y.0));
        entries
    };
    let (a, b) = (sorted(a), sorted(b));
    let keys = || a.iter().map(|(key, _)| key).cmp(b.iter().map(|(key, _)| key));
    let values = || a.iter().zip(&b).map(|(x, y)| compare(&x.1, &y.1)).find(|order| order.is_ne());
    a.len().cmp(&b.len()).then_with(keys).then_with(|| values().unwrap_or(Ordering::Equal))
}
