//! Prints a configuration as YAML, for `muster ci lint --preview`.

use std::fmt::Write as _;

use crate::node::{Node, Value};

/// Returns the tree as YAML text. Parsing the text yields the same tree.
#[must_use]
pub fn preview(node: &Node) -> String {
    let mut out = String::new();
    match &node.value {
        Value::Map(_) | Value::List(_) => block(&mut out, node, 0),
        _ => {
            out.push_str(&scalar(node));
            out.push('\n');
        }
    }
    out
}

/// Writes a node in block style, beginning on a new line.
fn block(out: &mut String, node: &Node, indent: usize) {
    match &node.value {
        Value::Map(map) if map.is_empty() => line(out, indent, "{}"),
        Value::Map(map) => {
            for (key, entry) in map.iter() {
                pad(out, indent);
                out.push_str(&text(key));
                out.push(':');
                value(out, &entry.node, indent);
            }
        }
        Value::List(list) if list.is_empty() => line(out, indent, "[]"),
        Value::List(list) => {
            for item in list.iter() {
                pad(out, indent);
                out.push('-');
                item_value(out, item, indent);
            }
        }
        _ => line(out, indent, &scalar(node)),
    }
}

/// Writes the value of a map's entry, after the key and the colon.
fn value(out: &mut String, node: &Node, indent: usize) {
    match &node.value {
        Value::Map(map) if !map.is_empty() => {
            out.push('\n');
            block(out, node, indent + 2);
        }
        Value::List(list) if !list.is_empty() => {
            out.push('\n');
            block(out, node, indent + 2);
        }
        Value::String(content) if is_literal(content) => literal(out, content, indent + 2),
        _ => inline(out, node),
    }
}

/// Writes an item of a list, after the dash.
fn item_value(out: &mut String, node: &Node, indent: usize) {
    let mut nested = String::new();
    match &node.value {
        Value::Map(map) if !map.is_empty() => block(&mut nested, node, indent + 2),
        Value::List(list) if !list.is_empty() => block(&mut nested, node, indent + 2),
        Value::String(content) if is_literal(content) => return literal(out, content, indent + 2),
        _ => return inline(out, node),
    }
    // The first nested line follows the dash on the same line.
    out.push(' ');
    out.push_str(nested.trim_start_matches(' '));
}

fn inline(out: &mut String, node: &Node) {
    out.push(' ');
    out.push_str(&match &node.value {
        Value::Map(_) => "{}".to_owned(),
        Value::List(_) => "[]".to_owned(),
        _ => scalar(node),
    });
    out.push('\n');
}

fn line(out: &mut String, indent: usize, content: &str) {
    pad(out, indent);
    out.push_str(content);
    out.push('\n');
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn is_literal(content: &str) -> bool {
    content.contains('\n')
        && !content.starts_with([' ', '\t', '\n'])
        && !content.ends_with("\n\n")
        && content.chars().all(|c| c == '\n' || c == '\t' || !c.is_control())
        && content.lines().all(|line| !line.is_empty() && line.trim_end() == line)
}

fn literal(out: &mut String, content: &str, indent: usize) {
    out.push_str(if content.ends_with('\n') { " |\n" } else { " |-\n" });
    for content_line in content.lines() {
        line(out, indent, content_line);
    }
}

fn scalar(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::String(content) => text(content),
        Value::Reference(path) => {
            format!("!reference [{}]", path.iter().map(|part| text(part)).collect::<Vec<_>>().join(", "))
        }
        Value::Float(value) if value.is_nan() => ".nan".to_owned(),
        Value::Float(value) if value.is_infinite() => if *value > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
        _ => node.scalar_text().unwrap_or_default(),
    }
}

/// Returns a string as a YAML scalar, in quotes if YAML would otherwise read it as another value.
fn text(content: &str) -> String {
    if is_plain(content) { content.to_owned() } else { quoted(content) }
}

fn is_plain(content: &str) -> bool {
    let Some(first) = content.chars().next() else { return false };
    let has_plain_start = first.is_ascii_alphabetic() || matches!(first, '.' | '/' | '$' | '_');
    let has_special = [": ", " #"].iter().any(|mark| content.contains(mark)) || content.ends_with([':', ' ']);
    // YAML 1.1 reads these words and numbers as booleans, null or floats.
    let word = content.to_ascii_lowercase();
    let is_reserved = matches!(word.as_str(), "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null")
        || matches!(word.as_str(), ".inf" | ".nan")
        || content
            .strip_prefix('.')
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| c.is_ascii_digit()));
    has_plain_start
        && !has_special
        && !is_reserved
        && !content.chars().any(|c| c.is_control() || "{}[],&*!|>%@`\"'".contains(c))
}

fn quoted(content: &str) -> String {
    let mut out = String::with_capacity(content.len() + 2);
    out.push('"');
    for c in content.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || c == '\u{feff}' || c == '\u{2028}' || c == '\u{2029}' => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
