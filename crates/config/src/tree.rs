//! A configuration with resolved names and checked kinds.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use muster_job::GoDuration;
use time::OffsetDateTime;

use super::problem::shown_name;
use super::schema::{Entry, schema};

/// A value and its location.
#[derive(Debug, Clone)]
pub struct Node {
    /// Value of the kind that the schema requires.
    pub value: Value,
    /// Byte range of the value.
    pub span: Range<usize>,
    /// Byte range of the key. For an element of a list, the range of the value.
    pub key: Range<usize>,
}

/// A value, possibly secret. `Debug` prints only the length of text.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// A string.
    Str(String),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A duration.
    Duration(GoDuration),
    /// A date and time.
    Datetime(OffsetDateTime),
    /// A list.
    List(Vec<Node>),
    /// A table, or a map.
    Table(Table),
    /// An array of tables.
    Tables(Vec<Table>),
    /// A value that is passed on unchanged, as text.
    Any(String),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(text) | Self::Any(text) => write!(f, "text of {} bytes", text.len()),
            Self::Int(number) => write!(f, "{number}"),
            Self::Float(number) => write!(f, "{number}"),
            Self::Bool(truth) => write!(f, "{truth}"),
            Self::Duration(duration) => write!(f, "{duration:?}"),
            Self::Datetime(time) => write!(f, "{time}"),
            Self::List(list) => f.debug_list().entries(list).finish(),
            Self::Table(table) => table.fmt(f),
            Self::Tables(tables) => f.debug_list().entries(tables).finish(),
        }
    }
}

/// Compares the values, and not the locations.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A table. Its entries have the names of the schema, whatever their spelling in the file is.
#[derive(Clone, Default)]
pub struct Table {
    /// Byte range of its header or its braces.
    pub header: Range<usize>,
    entries: Vec<(String, Node)>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries.iter().map(|(name, node)| (shown_name(name), &node.value));
        f.debug_map().entries(entries).finish()
    }
}

impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        let sorted = |table: &Self| {
            let mut entries: Vec<_> = table.entries.clone();
            entries.sort_by(|(one, _), (other, _)| one.cmp(other));
            entries
        };
        sorted(self) == sorted(other)
    }
}

impl Table {
    pub(super) fn new(header: Range<usize>) -> Self {
        Self { header, entries: Vec::new() }
    }

    pub(super) fn push(&mut self, name: &str, node: Node) {
        self.entries.push((name.to_owned(), node));
    }

    /// Returns all entries, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.entries.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// Returns the node with this name. `a.b` descends into tables.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        if let Some((_, node)) = self.entries.iter().find(|(known, _)| known == name) {
            return Some(node);
        }
        let (first, rest) = name.split_once('.')?;
        self.table(first)?.node(rest)
    }

    /// Returns a string. Empty counts as not set.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<&str> {
        match &self.node(name)?.value {
            Value::Str(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// Returns an integer.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.node(name)?.value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    /// Returns a boolean.
    #[must_use]
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.node(name)?.value {
            Value::Bool(truth) => Some(truth),
            _ => None,
        }
    }

    /// Returns a duration with its sign.
    #[must_use]
    pub fn duration(&self, name: &str) -> Option<GoDuration> {
        match self.node(name)?.value {
            Value::Duration(duration) => Some(duration),
            _ => None,
        }
    }

    /// Returns a duration above 0. Any other counts as not set.
    #[must_use]
    pub fn time(&self, name: &str) -> Option<Duration> {
        match self.duration(name)? {
            GoDuration::NonNegative(duration) if !duration.is_zero() => Some(duration),
            _ => None,
        }
    }

    /// Returns a date and time.
    #[must_use]
    pub fn datetime(&self, name: &str) -> Option<OffsetDateTime> {
        match self.node(name)?.value {
            Value::Datetime(time) => Some(time),
            _ => None,
        }
    }

    /// Returns the elements of a list. A single string is a list with one element.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Node] {
        match self.node(name) {
            Some(Node { value: Value::List(list), .. }) => list,
            Some(node @ Node { value: Value::Str(_), .. }) => std::slice::from_ref(node),
            _ => &[],
        }
    }

    /// Returns the strings of a list with their nodes.
    pub fn strings(&self, name: &str) -> impl Iterator<Item = (&str, &Node)> {
        self.list(name).iter().filter_map(|node| match &node.value {
            Value::Str(text) => Some((text.as_str(), node)),
            _ => None,
        })
    }

    /// Returns a table in this table.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Table> {
        match &self.node(name)?.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Returns a number.
    #[must_use]
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.node(name)?.value {
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the range of the value, or of its table's header if it is not set.
    pub(super) fn span_of(&self, name: &str) -> Range<usize> {
        if let Some(node) = self.node(name) {
            return node.span.clone();
        }
        let enclosing = name.rsplit_once('.').and_then(|(table_name, _)| self.table(table_name));
        enclosing.map_or_else(|| self.header.clone(), |table| table.header.clone())
    }

    /// Returns the tables of an array of tables.
    #[must_use]
    pub fn tables(&self, name: &str) -> &[Table] {
        match self.node(name).map(|node| &node.value) {
            Some(Value::Tables(tables)) => tables,
            _ => &[],
        }
    }
}

/// Visits everything that is set, with full name and schema entry: a table before its entries.
pub(super) fn visit<'a>(table: &'a Table, path: &str, visit_one: &mut dyn FnMut(&str, Entry, &'a Node)) {
    for (name, node) in table.entries() {
        let Some(entry) = schema().find(path, name) else { continue };
        let full = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        visit_one(&full, entry, node);
        match (&entry, &node.value) {
            (Entry::Table(_), Value::Table(below)) => visit(below, &full, visit_one),
            (Entry::Table(_), Value::Tables(tables)) => tables.iter().for_each(|below| visit(below, &full, visit_one)),
            _ => {}
        }
    }
}

/// Converts a TOML table to JSON, the format in which plugins and steps receive it.
pub(super) fn json(text: &str) -> serde_json::Value {
    let inline = text.trim_start().starts_with('{');
    let document = if inline { format!("table = {}", text.trim()) } else { text.to_owned() };
    let Ok(mut table) = document.parse::<toml::Table>() else { return serde_json::Value::Null };
    let table = if inline { table.remove("table") } else { Some(toml::Value::Table(table)) };
    serde_json::to_value(table).unwrap_or_default()
}
