//! A YAML value that remembers where it was written.

use std::sync::Arc;

/// Which text a [`Span`] points into: an index of [`crate::source_map::SourceMap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// A place in a source text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The text.
    pub source: SourceId,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// Byte offset of the first byte.
    pub start: u32,
    /// Byte offset after the last byte.
    pub end: u32,
}

/// A value and its place. Cheap to clone: merging, `extends` and aliases share subtrees.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it was written.
    pub span: Span,
}

/// A YAML value, after resolution of YAML 1.1 scalars as Ruby's Psych does it (pipeline-yaml 2.2).
#[derive(Debug, Clone)]
pub enum Value {
    /// `~`, `null` or nothing.
    Null,
    /// `true`, `yes`, `on`, ...
    Bool(bool),
    /// Decimal, octal (`010` is 8), hexadecimal, binary, base 60 (`12:30` is 45000).
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    String(Arc<str>),
    /// A list.
    List(Arc<Vec<Node>>),
    /// A map, in written order.
    Map(Arc<Map>),
    /// `!reference [a, b]`, not yet resolved.
    Reference(Arc<Vec<String>>),
}

/// A map in written order; keys are text. A repeated key has replaced the earlier one in its place.
#[derive(Debug, Clone, Default)]
pub struct Map {
    entries: indexmap::IndexMap<Arc<str>, Entry>,
}

/// One entry of a [`Map`].
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where the key was written.
    pub key_span: Span,
    /// The value.
    pub node: Node,
}

impl Map {
    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries.get(key).map(|entry| &entry.node)
    }

    /// The entry of `key`.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Adds or replaces; a replaced entry keeps its place in the order.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, key_span: Span, node: Node) -> Option<Entry> {
        self.entries.insert(key.into(), Entry { key_span, node })
    }

    /// Takes an entry out, keeping the order of the others.
    pub fn remove(&mut self, key: &str) -> Option<Entry> {
        self.entries.shift_remove(key)
    }

    /// The entries in written order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Entry)> {
        self.entries.iter()
    }

    /// The keys in written order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.entries.keys()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Node {
    /// A node at `span`.
    #[must_use]
    pub fn new(value: Value, span: Span) -> Self {
        Self { value, span }
    }

    /// The text, if it is text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The map, if it is one.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The list, if it is one.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Node]> {
        match &self.value {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    /// Whether it is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The text form of a scalar, as GitLab turns numbers and booleans into variable values; `None` for null,
    /// lists, maps and references.
    #[must_use]
    pub fn scalar_text(&self) -> Option<String> {
        match &self.value {
            Value::Bool(value) => Some(value.to_string()),
            Value::Int(value) => Some(value.to_string()),
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e16 => Some(format!("{value:.1}")),
            Value::Float(value) => Some(value.to_string()),
            Value::String(text) => Some(text.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) | Value::Reference(_) => None,
        }
    }

    /// What it is, for a message: "a list", "a map", "text", ...
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
