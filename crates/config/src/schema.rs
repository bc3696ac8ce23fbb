//! The schema of `config.toml`: kind, default, effect of a change, and support of every section and key.
//!
//! The data is in `schema/*.txt`, one line for each key:
//!
//! ```text
//! [table] or [[array of tables]] | reload | status
//! key | kind [unit] | default | meaning | overrides: live, jobs, restart, supported, unsupported: reason, secret
//!
//! [table] like other.table       (the same keys and nested tables, with the status of the enclosing table)
//! [table] like other.table without key       (a check rejects the key in this table)
//! ```
//!
//! The data about gitlab-runner's keys comes from its public documentation and source, release 19.4.

mod read;

use std::collections::BTreeMap;
use std::sync::LazyLock;

const FILES: [&str; 5] = [
    include_str!("schema/global.txt"),
    include_str!("schema/runner.txt"),
    include_str!("schema/docker.txt"),
    include_str!("schema/machines.txt"),
    include_str!("schema/kubernetes.txt"),
];

/// Kind of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Str,
    /// An integer.
    Int,
    /// `true` or `false`.
    Bool,
    /// A number. An integer is accepted, too.
    Float,
    /// A duration in Go's syntax (`1h30m`). An integer means nanoseconds, as in gitlab-runner.
    Duration,
    /// A date and time.
    Datetime,
    /// A string with a regular expression.
    Regex,
    /// A list of strings.
    List,
    /// A list of integers.
    ListInt,
    /// A list of numbers.
    ListFloat,
    /// A string, or a list of strings.
    StrOrList,
    /// A table of strings.
    Map,
    /// A table of booleans.
    MapBool,
    /// A table of integers.
    MapInt,
    /// A table of lists of strings.
    MapList,
    /// A table that is passed on unchanged.
    Any,
}

impl Kind {
    const NAMES: [(&'static str, Kind, &'static str); 16] = [
        ("str", Kind::Str, "a string"),
        ("int", Kind::Int, "an integer"),
        ("bool", Kind::Bool, "true or false"),
        ("float", Kind::Float, "a number"),
        ("dur", Kind::Duration, "a duration such as \"90s\" or \"1h30m\""),
        ("datetime", Kind::Datetime, "a date and time"),
        ("regex", Kind::Regex, "a string with a regular expression"),
        ("list", Kind::List, "a list of strings"),
        ("list-int", Kind::ListInt, "a list of integers"),
        ("list-float", Kind::ListFloat, "a list of numbers"),
        ("str-or-list", Kind::StrOrList, "a string or a list of strings"),
        ("map", Kind::Map, "a table of strings"),
        ("map-bool", Kind::MapBool, "a table of booleans"),
        ("map-int", Kind::MapInt, "a table of integers"),
        ("map-list", Kind::MapList, "a table of lists of strings"),
        ("any", Kind::Any, "a table"),
    ];

    fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| *kind)
    }

    /// Returns a description of the kind for messages, such as `a string`.
    #[must_use]
    pub fn description(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind, _)| *kind == self).map_or("", |(.., description)| description)
    }
}

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// Immediately after the reload.
    Live,
    /// For jobs that start after the reload.
    Jobs,
    /// Only after a restart.
    Restart,
}

impl Reload {
    /// Returns `live`, `next job` or `restart`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Jobs => "next job",
            Self::Restart => "restart",
        }
    }
}

/// Whether Muster supports a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySupport {
    /// Muster supports the key.
    Supported,
    /// Muster does not support the key, for this reason.
    Unsupported(&'static str),
}

/// A key of the schema.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name of the key in the file.
    pub name: &'static str,
    /// Kind of the value.
    pub kind: Kind,
    /// Unit of a number. Empty if the value has no unit.
    pub unit: &'static str,
    /// Description of the default. Empty if the key has no default.
    pub default: &'static str,
    /// Purpose of the key.
    pub meaning: &'static str,
    /// When a change takes effect.
    pub reload: Reload,
    /// Whether Muster supports the key.
    pub status: KeySupport,
    /// Whether the value is a secret, which is never shown.
    pub secret: bool,
    /// Whether a check rejects the key in this table, with a better message than for an unknown key. The reference does not list it.
    pub rejected: bool,
}

/// A table, or an array of tables.
#[derive(Debug, Clone)]
pub struct TableSchema {
    /// Full name, such as `runners.docker`. Empty for the top level.
    pub path: String,
    /// Whether the table is an array (`[[...]]`).
    pub array: bool,
    /// When a change takes effect, unless a key overrides it.
    pub reload: Reload,
    /// Whether Muster supports the table, unless a key overrides it.
    pub status: KeySupport,
    /// Keys in the order of the documentation.
    pub keys: Vec<Key>,
}

/// A key, or a table in a table.
#[derive(Debug, Clone, Copy)]
pub enum Entry {
    /// A value.
    Key(&'static Key),
    /// A table in this table.
    Table(&'static TableSchema),
}

impl Entry {
    /// Returns the name in the file.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Key(key) => key.name,
            Self::Table(table) => last_segment(&table.path),
        }
    }
}

/// The whole schema.
#[derive(Debug)]
pub struct Schema {
    tables: Vec<TableSchema>,
    index: BTreeMap<String, usize>,
}

static SCHEMA: LazyLock<Schema> = LazyLock::new(|| FILES.iter().fold(Schema::empty(), Schema::read));

/// Entries by path of their table, and name in lower case.
static NAMES: LazyLock<BTreeMap<(String, String), Entry>> = LazyLock::new(|| {
    let mut names = BTreeMap::new();
    for table in schema().tables() {
        for entry in schema().entries(&table.path) {
            names.insert((table.path.clone(), entry.name().to_lowercase()), entry);
        }
    }
    names
});

/// Returns the schema.
#[must_use]
pub fn schema() -> &'static Schema {
    &SCHEMA
}

impl Schema {
    fn empty() -> Self {
        Self { tables: Vec::new(), index: BTreeMap::new() }
    }

    /// Returns all tables, in the order of the documentation.
    #[must_use]
    pub fn tables(&self) -> &[TableSchema] {
        &self.tables
    }

    /// Returns the table with this full name.
    #[must_use]
    pub fn table(&self, path: &str) -> Option<&TableSchema> {
        self.index.get(path).and_then(|index| self.tables.get(*index))
    }

    /// Returns the direct entries of the table with this full name.
    pub fn entries(&'static self, path: &str) -> impl Iterator<Item = Entry> {
        let tables = self.tables.iter().filter({
            let path = path.to_owned();
            move |table| !table.path.is_empty() && parent(&table.path) == path
        });
        let keys = self.table(path).map(|table| table.keys.iter()).into_iter().flatten();
        keys.map(Entry::Key).chain(tables.map(Entry::Table))
    }

    /// Returns the entry `name` of the table, in upper or lower case.
    #[must_use]
    pub fn find(&'static self, path: &str, name: &str) -> Option<Entry> {
        NAMES.get(&(path.to_owned(), name.to_lowercase())).copied()
    }

    /// Returns whether some table has a secret with this name. Its value is not shown, even in a wrong table.
    #[must_use]
    pub fn is_secret_name(&self, name: &str) -> bool {
        let mut keys = self.tables.iter().flat_map(|table| &table.keys);
        keys.any(|key| key.secret && key.name.eq_ignore_ascii_case(name))
    }
}

pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

fn last_segment(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, last)| last)
}

#[cfg(test)]
mod tests {
    use super::read::apply_word;
    use super::*;

    #[test]
    fn every_schema_line_is_parsed() {
        for text in FILES {
            let mut path = String::new();
            for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                if line.starts_with('[') {
                    path = line.rsplit_once(']').unwrap().0.trim_matches(['[', ']']).to_owned();
                    let table = schema().table(&path).unwrap_or_else(|| panic!("{line}"));
                    assert!(path.is_empty() || schema().table(parent(&path)).is_some(), "{line}: no parent table");
                    assert_eq!(table.array, line.starts_with("[["), "{line}");
                    let words = line.rsplit_once(']').unwrap().1;
                    assert!(words.starts_with(" like ") || words.starts_with(" | "), "{line}");
                    for word in words.split(" | ").skip(1) {
                        assert!(
                            apply_word(word.trim(), &mut Reload::Live, &mut KeySupport::Supported.clone()),
                            "{line}"
                        );
                    }
                    continue;
                }
                let columns: Vec<_> = line.split(" |").map(str::trim).collect();
                assert!((4..=5).contains(&columns.len()), "{line}");
                let Some(Entry::Key(key)) = schema().find(&path, columns[0]) else { panic!("{line}") };
                assert_eq!(key.name, columns[0]);
                assert!(!key.meaning.is_empty(), "{line}");
            }
        }
    }

    #[test]
    fn names_are_unambiguous() {
        for table in schema().tables() {
            let mut names: Vec<_> = schema().entries(&table.path).map(|entry| entry.name().to_lowercase()).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "[{}]", table.path);
        }
    }

    #[test]
    fn entries_are_found_regardless_of_case() {
        let name = |path, name| schema().find(path, name).map(|entry| entry.name());
        assert_eq!(name("runners", "limit"), Some("limit"));
        assert_eq!(name("runners", "LIMIT"), Some("limit"));
        assert_eq!(name("", "Runners"), Some("runners"));
        assert_eq!(name("runners.machine", "idlecount"), Some("IdleCount"));
        assert_eq!(name("runners", "limits"), None);
        assert_eq!(name("runners.kubernetes.volumes", "nfs"), Some("nfs"));
        let policy = schema().table("runners.kubernetes.autoscaler.policy").unwrap();
        assert!(
            policy.keys.iter().any(|key| key.name == "idle_count" && matches!(key.status, KeySupport::Unsupported(_)))
        );
    }
}
