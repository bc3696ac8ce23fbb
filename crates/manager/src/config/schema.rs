//! Every section and key that config.toml may hold, as data: kind, default, effect of a change, and whether Muster acts on it.
//!
//! The data is in `schema/*.txt`, one line for each key:
//!
//! ```text
//! [table] or [[array of tables]] | reload | status
//! key | kind [unit] | default | meaning | what differs from the table's: live, jobs, restart, acted, not: reason, secret
//!
//! [table] like other.table       (the same keys and tables below; the status is that of the table around it)
//! ```
//!
//! Source of the facts: the reference runner's public documentation and source, release 19.4.

use std::collections::BTreeMap;
use std::sync::LazyLock;

const FILES: [&str; 5] = [
    include_str!("schema/global.txt"),
    include_str!("schema/runner.txt"),
    include_str!("schema/docker.txt"),
    include_str!("schema/machines.txt"),
    include_str!("schema/kubernetes.txt"),
];

/// What a key's value has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Str,
    /// An integer.
    Int,
    /// `true` or `false`.
    Bool,
    /// A number; an integer is taken too.
    Float,
    /// A duration in Go's syntax (`1h30m`); an integer is read as nanoseconds, as the reference does.
    Duration,
    /// A date with time.
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
    /// A table that is passed on as it is.
    Any,
}

impl Kind {
    const NAMES: [(&'static str, Kind, &'static str); 16] = [
        ("str", Kind::Str, "a string"),
        ("int", Kind::Int, "an integer"),
        ("bool", Kind::Bool, "true or false"),
        ("float", Kind::Float, "a number"),
        ("dur", Kind::Duration, "a duration such as \"90s\" or \"1h30m\""),
        ("datetime", Kind::Datetime, "a date with time"),
        ("regex", Kind::Regex, "a string with a regular expression"),
        ("list", Kind::List, "a list of strings"),
        ("list-int", Kind::ListInt, "a list of integers"),
        ("list-float", Kind::ListFloat, "a list of numbers"),
        ("str-or-list", Kind::StrOrList, "a string or a list of strings"),
        ("map", Kind::Map, "a table of strings"),
        ("map-bool", Kind::MapBool, "a table of true and false"),
        ("map-int", Kind::MapInt, "a table of integers"),
        ("map-list", Kind::MapList, "a table of lists of strings"),
        ("any", Kind::Any, "a table"),
    ];

    fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, ..)| *known == name).map(|(_, kind, _)| *kind)
    }

    /// The kind in words, with its article.
    #[must_use]
    pub fn words(self) -> &'static str {
        Self::NAMES.iter().find(|(_, kind, _)| *kind == self).map_or("", |(.., words)| words)
    }
}

/// When a changed value is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// At once, after the reload.
    Live,
    /// By jobs that start after the reload.
    Jobs,
    /// After a restart only.
    Restart,
}

impl Reload {
    /// `live`, `next job` or `restart`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Jobs => "next job",
            Self::Restart => "restart",
        }
    }
}

/// Whether Muster acts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It does.
    Acted,
    /// It does not, for this reason.
    Not(&'static str),
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name, as it is written.
    pub name: &'static str,
    /// What its value has to be.
    pub kind: Kind,
    /// Unit of a number, or empty.
    pub unit: &'static str,
    /// The value without the key, in words, or empty.
    pub default: &'static str,
    /// What it is for.
    pub meaning: &'static str,
    /// When a change is used.
    pub reload: Reload,
    /// Whether Muster acts on it.
    pub status: Status,
    /// The value is never shown.
    pub secret: bool,
}

/// One table, or array of tables.
#[derive(Debug, Clone)]
pub struct TableSchema {
    /// Its full name, such as `runners.docker`; empty for the top.
    pub path: String,
    /// `[[...]]`.
    pub array: bool,
    /// When a change is used, unless the key says otherwise.
    pub reload: Reload,
    /// Whether Muster acts on it, unless the key says otherwise.
    pub status: Status,
    /// Its keys, in the order of the documentation.
    pub keys: Vec<Key>,
}

/// What a name in a table stands for.
#[derive(Debug, Clone, Copy)]
pub enum Entry {
    /// A value.
    Key(&'static Key),
    /// A table below.
    Table(&'static TableSchema),
}

impl Entry {
    /// The name as it is written.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Key(key) => key.name,
            Self::Table(table) => last(&table.path),
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

/// The schema.
#[must_use]
pub fn schema() -> &'static Schema {
    &SCHEMA
}

impl Schema {
    fn empty() -> Self {
        Self { tables: Vec::new(), index: BTreeMap::new() }
    }

    /// All tables, in the order of the documentation.
    #[must_use]
    pub fn tables(&self) -> &[TableSchema] {
        &self.tables
    }

    /// The table of that full name.
    #[must_use]
    pub fn table(&self, path: &str) -> Option<&TableSchema> {
        self.index.get(path).and_then(|index| self.tables.get(*index))
    }

    /// What is directly in the table of that name.
    pub fn entries(&'static self, path: &str) -> impl Iterator<Item = Entry> {
        let tables = self.tables.iter().filter({
            let path = path.to_owned();
            move |table| !table.path.is_empty() && parent(&table.path) == path
        });
        let keys = self.table(path).map(|table| table.keys.iter()).into_iter().flatten();
        keys.map(Entry::Key).chain(tables.map(Entry::Table))
    }

    /// What `name` stands for in the table: as it is written, else without regard to upper and lower case.
    #[must_use]
    pub fn find(&'static self, path: &str, name: &str) -> Option<Entry> {
        let exact = self.entries(path).find(|entry| entry.name() == name);
        exact.or_else(|| self.entries(path).find(|entry| entry.name().to_lowercase() == name.to_lowercase()))
    }

    /// Whether some table has a secret of that name: wherever it stands by mistake, its value is not shown.
    #[must_use]
    pub fn is_secret_name(&self, name: &str) -> bool {
        let mut keys = self.tables.iter().flat_map(|table| &table.keys);
        keys.any(|key| key.secret && key.name.eq_ignore_ascii_case(name))
    }

    fn read(mut self, text: &&'static str) -> Self {
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if line.starts_with('[') {
                self.header(line);
            } else if let (Some(table), Some(key)) = (self.tables.last(), key(line, self.tables.last())) {
                let path = table.path.clone();
                self.push_key(&path, key);
            }
        }
        self
    }

    fn push_key(&mut self, path: &str, key: Key) {
        if let Some(table) = self.index.get(path).and_then(|index| self.tables.get_mut(*index)) {
            table.keys.push(key);
        }
    }

    fn header(&mut self, line: &'static str) {
        let (name, rest) = line.rsplit_once(']').unwrap_or((line, ""));
        let array = name.starts_with("[[");
        let path = name.trim_matches(['[', ']']).to_owned();
        if let Some(other) = rest.trim().strip_prefix("like ") {
            let status = self.status_around(&path);
            let prefix = format!("{other}.");
            let alike = |table: &&TableSchema| table.path == other || table.path.starts_with(&prefix);
            for mut copy in self.tables.iter().filter(alike).cloned().collect::<Vec<_>>() {
                let top = copy.path == other;
                copy.path = format!("{path}{}", copy.path.strip_prefix(other).unwrap_or_default());
                (copy.array, copy.status) = (if top { array } else { copy.array }, status);
                for key in &mut copy.keys {
                    key.status = status;
                }
                self.push(copy);
            }
            return;
        }
        let mut table = TableSchema { path, array, reload: Reload::Live, status: Status::Acted, keys: Vec::new() };
        for word in rest.split('|').map(str::trim) {
            apply(word, &mut table.reload, &mut table.status);
        }
        self.push(table);
    }

    fn push(&mut self, table: TableSchema) {
        if !self.index.contains_key(&table.path) {
            self.index.insert(table.path.clone(), self.tables.len());
            self.tables.push(table);
        }
    }

    fn status_around(&self, path: &str) -> Status {
        let mut path = parent(path);
        loop {
            match self.table(path) {
                Some(table) => return table.status,
                None if path.is_empty() => return Status::Acted,
                None => path = parent(path),
            }
        }
    }
}

/// The name of the table around.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(parent, _)| parent)
}

fn last(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, last)| last)
}

/// A word of the schema's lines; none of the known ones is left alone.
fn apply(word: &'static str, reload: &mut Reload, status: &mut Status) -> bool {
    match word {
        "live" => *reload = Reload::Live,
        "jobs" => *reload = Reload::Jobs,
        "restart" => *reload = Reload::Restart,
        "acted" => *status = Status::Acted,
        _ => match word.strip_prefix("not: ") {
            Some(reason) => *status = Status::Not(reason),
            None => return false,
        },
    }
    true
}

fn key(line: &'static str, table: Option<&TableSchema>) -> Option<Key> {
    let table = table?;
    let mut columns = line.split(" |").map(str::trim);
    let name = columns.next()?;
    let (kind, unit) = columns.next().map(|kind| kind.split_once(' ').unwrap_or((kind, "")))?;
    let (default, meaning) = (columns.next()?, columns.next()?);
    let mut key = Key {
        name,
        kind: Kind::parse(kind)?,
        unit,
        default,
        meaning,
        reload: table.reload,
        status: table.status,
        secret: false,
    };
    // A reason may hold commas; it comes last.
    let mut rest = columns.next().unwrap_or_default();
    while !rest.is_empty() {
        let (word, tail) = match rest.split_once(", ") {
            Some((word, tail)) if !word.starts_with("not: ") => (word, tail),
            _ => (rest, ""),
        };
        if word == "secret" {
            key.secret = true;
        } else {
            apply(word, &mut key.reload, &mut key.status);
        }
        rest = tail;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_schema_is_understood() {
        for text in FILES {
            let mut path = String::new();
            for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                if line.starts_with('[') {
                    path = line.rsplit_once(']').unwrap().0.trim_matches(['[', ']']).to_owned();
                    let table = schema().table(&path).unwrap_or_else(|| panic!("{line}"));
                    assert!(path.is_empty() || schema().table(parent(&path)).is_some(), "{line}: no table around it");
                    assert_eq!(table.array, line.starts_with("[["), "{line}");
                    let words = line.rsplit_once(']').unwrap().1;
                    assert!(words.starts_with(" like ") || words.starts_with(" | "), "{line}");
                    for word in words.split(" | ").skip(1) {
                        assert!(apply(word.trim(), &mut Reload::Live, &mut Status::Acted.clone()), "{line}");
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
    fn no_name_stands_for_two_things() {
        for table in schema().tables() {
            let mut names: Vec<_> = schema().entries(&table.path).map(|entry| entry.name().to_lowercase()).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "[{}]", table.path);
        }
    }

    #[test]
    fn names_match_as_written_then_without_regard_to_case() {
        let name = |path, name| schema().find(path, name).map(|entry| entry.name());
        assert_eq!(name("runners", "limit"), Some("limit"));
        assert_eq!(name("runners", "LIMIT"), Some("limit"));
        assert_eq!(name("", "Runners"), Some("runners"));
        assert_eq!(name("runners.machine", "idlecount"), Some("IdleCount"));
        assert_eq!(name("runners", "limits"), None);
        assert_eq!(name("runners.kubernetes.volumes", "nfs"), Some("nfs"));
        let policy = schema().table("runners.kubernetes.autoscaler.policy").unwrap();
        assert!(policy.keys.iter().any(|key| key.name == "idle_count" && matches!(key.status, Status::Not(_))));
    }
}
