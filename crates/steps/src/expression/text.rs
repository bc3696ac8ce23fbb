//! Values as text: strings as they are, other values as compact JSON (docs/spec/steps.md, section 3.1).

use serde_json::Value;

/// Returns a value as text.
#[must_use]
pub fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => json(other),
    }
}

fn json(value: &Value) -> String {
    match value {
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), go_number),
        Value::String(text) => go_string(text),
        Value::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(",")),
        Value::Object(object) => {
            let mut entries: Vec<_> = object.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries.into_iter().map(|(key, value)| format!("{}:{}", go_string(key), json(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Quotes a string as Go's JSON encoder does, which also escapes characters that are special in HTML.
fn go_string(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    quoted
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// Formats a number as Go's JSON encoder does: with an exponent below 1e-6 and from 1e21.
fn go_number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if (1e-6..1e21).contains(&value.abs()) {
        return format!("{value}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !exponent.starts_with('-') => format!("{digits}e+{exponent}"),
        _ => text,
    }
}
