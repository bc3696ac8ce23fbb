//! A configuration with its names resolved and its kinds checked: what all else here reads.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use muster_job::GoDuration;
use time::OffsetDateTime;

use super::problem::shown_name;
use super::schema::{Entry, schema};

/// A value and its place.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value, of the kind that the schema asks for.
    pub value: Value,
    /// Bytes of the value.
    pub span: Range<usize>,
    /// Bytes of the key; of the value for an element of a list.
    pub key: Range<usize>,
}

/// A value. It may be a secret: what is printed of text is its length.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// A string.
    Str(String),
    /// An integer.
    Int(i64),
    /// A number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A duration, with its text.
    Duration(GoDuration),
    /// A date with time.
    Datetime(OffsetDateTime),
    /// A list.
    List(Vec<Node>),
    /// A table, or a map.
    Table(Table),
    /// An array of tables.
    Tables(Vec<Table>),
    /// What is passed on as it is; its text.
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

/// Two nodes are equal if their values are; the place does not count.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A table, with the names of the schema.
#[derive(Clone, Default)]
pub struct Table {
    /// Bytes of its header or braces.
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

    /// Everything in it, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.entries.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// What stands under the name; `a.b` goes through tables.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        if let Some((_, node)) = self.entries.iter().find(|(known, _)| known == name) {
            return Some(node);
        }
        let (first, rest) = name.split_once('.')?;
        self.table(first)?.node(rest)
    }

    /// A string; an empty one counts as none, as it does in the reference.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<&str> {
        match &self.node(name)?.value {
            Value::Str(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// An integer.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.node(name)?.value {
            Value::Int(number) => Some(number),
            _ => None,
        }
    }

    /// A truth value.
    #[must_use]
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.node(name)?.value {
            Value::Bool(truth) => Some(truth),
            _ => None,
        }
    }

    /// A duration with its sign.
    #[must_use]
    pub fn duration(&self, name: &str) -> Option<GoDuration> {
        match self.node(name)?.value {
            Value::Duration(duration) => Some(duration),
            _ => None,
        }
    }

    /// A duration above 0; any other counts as none.
    #[must_use]
    pub fn time(&self, name: &str) -> Option<Duration> {
        match self.duration(name)? {
            GoDuration::Positive(duration) if !duration.is_zero() => Some(duration),
            _ => None,
        }
    }

    /// A date with time.
    #[must_use]
    pub fn datetime(&self, name: &str) -> Option<OffsetDateTime> {
        match self.node(name)?.value {
            Value::Datetime(time) => Some(time),
            _ => None,
        }
    }

    /// The elements of a list; a single string is a list of one.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Node] {
        match self.node(name) {
            Some(Node { value: Value::List(list), .. }) => list,
            Some(node @ Node { value: Value::Str(_), .. }) => std::slice::from_ref(node),
            _ => &[],
        }
    }

    /// The strings of a list, with their places.
    pub fn strings(&self, name: &str) -> impl Iterator<Item = (&str, &Node)> {
        self.list(name).iter().filter_map(|node| match &node.value {
            Value::Str(text) => Some((text.as_str(), node)),
            _ => None,
        })
    }

    /// A table below.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Table> {
        match &self.node(name)?.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// A number.
    #[must_use]
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.node(name)?.value {
            Value::Float(number) => Some(number),
            _ => None,
        }
    }

    /// Bytes of the value under the name, else of the header of the table that it would be in.
    pub(super) fn place(&self, name: &str) -> Range<usize> {
        if let Some(node) = self.node(name) {
            return node.span.clone();
        }
        let around = name.rsplit_once('.').and_then(|(around, _)| self.table(around));
        around.map_or_else(|| self.header.clone(), |around| around.header.clone())
    }

    /// The tables of an array of tables.
    #[must_use]
    pub fn tables(&self, name: &str) -> &[Table] {
        match self.node(name).map(|node| &node.value) {
            Some(Value::Tables(tables)) => tables,
            _ => &[],
        }
    }
}

/// Calls `visit` with the full name, entry of the schema and node of everything that is set, tables first.
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
