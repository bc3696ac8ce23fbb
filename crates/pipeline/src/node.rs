//! YAML values with their position in the source.

use std::sync::Arc;

/// ID of the text that a [`Span`] points into. Index in a [`crate::source_map::SourceMap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// Range of a source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// ID of the text.
    pub source: SourceId,
    /// Line of the first byte, starting at 1.
    pub line: u32,
    /// Column of the first byte in characters, starting at 1.
    pub column: u32,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

/// A value with its position. Cheap to clone, so that merging, `extends` and aliases can share subtrees.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Position in the source.
    pub span: Span,
}

/// A YAML value. Scalars of YAML 1.1 are resolved as in Ruby's Psych (docs/spec/pipeline-yaml.md, section 2.2).
#[derive(Debug, Clone)]
pub enum Value {
    /// `~`, `null` or an empty value.
    Null,
    /// `true`, `yes`, `on`, ...
    Bool(bool),
    /// An integer: decimal, octal (`010` is 8), hexadecimal, binary, or base 60 (`12:30` is 45000).
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string.
    String(Arc<str>),
    /// A list.
    List(Arc<Vec<Node>>),
    /// A map in the order in which it was written.
    Map(Arc<Map>),
    /// An unresolved `!reference [a, b]`.
    Reference(Arc<Vec<String>>),
}

/// A map with string keys, in the order in which it was written. A repeated key replaces the earlier value.
#[derive(Debug, Clone, Default)]
pub struct Map {
    entries: indexmap::IndexMap<Arc<str>, Entry>,
}

/// An entry of a [`Map`].
#[derive(Debug, Clone)]
pub struct Entry {
    /// Position of the key.
    pub key_span: Span,
    /// The value.
    pub node: Node,
}

impl Map {
    /// Returns the value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries.get(key).map(|entry| &entry.node)
    }

    /// Returns the entry of `key`.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Adds or replaces an entry. A new entry comes last, and a replacement takes the position of the replaced entry.
    ///
    /// Returns the replaced entry.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, key_span: Span, node: Node) -> Option<Entry> {
        self.entries.insert(key.into(), Entry { key_span, node })
    }

    /// Removes an entry and keeps the order of the others.
    pub fn remove(&mut self, key: &str) -> Option<Entry> {
        self.entries.shift_remove(key)
    }

    /// Returns the entries in written order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.entries.iter()
    }

    /// Returns the keys in written order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.keys()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the map has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Node {
    /// Creates a node at `span`.
    #[must_use]
    pub fn new(value: Value, span: Span) -> Self {
        Self { value, span }
    }

    /// Returns the string, if the value is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the map, if the value is a map.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Returns the list, if the value is a list.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// Returns true if the value is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Returns the text to which GitLab converts a scalar that is the value of a variable. Returns `None` for null, lists,
    /// maps and references.
    #[must_use]
    pub fn scalar_text(&self) -> Option<String> {
        match &self.value {
            Value::Bool(value) => Some(value.to_string()),
            Value::Int(value) => Some(value.to_string()),
            Value::Float(value) => Some(float_text(*value)),
            Value::String(text) => Some(text.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) | Value::Reference(_) => None,
        }
    }

    /// Returns the type of the value for messages, such as "a list".
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::String(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Reference(_) => "a !reference",
        }
    }
}

/// Formats a number as Ruby does: `1.0`, `1.0e+20`, `1.5e-07`, `Infinity`.
fn float_text(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if value.is_nan() || value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        return if value.fract() == 0.0 { format!("{value:.1}") } else { value.to_string() };
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let point = if digits.contains('.') { "" } else { ".0" };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}{point}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_ruby() {
        for (value, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1500.0, "1500.0"),
            (2.5, "2.5"),
            (0.0001, "0.0001"),
            (0.00001, "1.0e-05"),
            (-1.25e-7, "-1.25e-07"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1.0e+16"),
            (-1.5e20, "-1.5e+20"),
            (1e100, "1.0e+100"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(float_text(value), text);
        }
    }
}
