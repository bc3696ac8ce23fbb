//! Converts TOML to the tree: resolves names by the schema, checks kinds, and reports unknown names.

use std::ops::Range;

use muster_job::GoDuration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use toml_edit::{Item, TableLike, Value as Toml};

use super::problem::{Problem, Problems, contains_token, shown_name};
use super::schema::{Entry, Key, Kind, schema};
use super::tree::{Node, Table, Value};
use super::unknown;

#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) problems: Problems,
    /// Byte ranges that must not be shown.
    pub(super) secrets: Vec<Range<usize>>,
    /// Whether every problem makes the configuration unusable, so that no key is merely ignored.
    pub(super) strict: bool,
}

struct Name<'a> {
    text: &'a str,
    span: Range<usize>,
}

impl Walk {
    /// Converts a TOML table to a table of the tree, whose entries have the names of the schema.
    pub(super) fn table(&mut self, path: &str, table: &dyn TableLike, header: Range<usize>) -> Table {
        let mut tree = Table::new(header);
        // Exact names come first, so that another spelling of a name never overrides it.
        let exact = |name: &str| schema().find(path, name).is_some_and(|entry| entry.name() == name);
        let (exact_names, other_names): (Vec<_>, Vec<_>) =
            table.iter().map(|(name, _)| name).partition(|name| exact(name));
        for name in exact_names.into_iter().chain(other_names) {
            let Some((key, item)) = table.get_key_value(name) else { continue };
            let span = key.span().or_else(|| item.span()).unwrap_or_else(|| tree.header.clone());
            let name = Name { text: name, span };
            match schema().find(path, name.text) {
                Some(entry) if tree.node(entry.name()).is_some() => {
                    self.hide(item);
                    let ignored = if self.strict { "" } else { "ignored, because it is " };
                    let (name_text, entry) = (shown_name(name.text), entry.name());
                    let message = format!("`{name_text}` is {ignored}the same key as `{entry}`, which is also set");
                    self.problems.add(Problem::new("C010", message).at(&name.span).help("remove one of the two"));
                }
                Some(Entry::Key(known)) => self.add_key(path, known, &name, item, &mut tree),
                Some(Entry::Table(known)) => self.add_nested(&known.path, known.array, &name, item, &mut tree),
                None => {
                    self.hide(item);
                    if shown_name(name.text).contains("[masked]") {
                        self.secrets.push(name.span.clone());
                    }
                    unknown::report(&mut self.problems, path, name.text, &name.span, self.strict);
                }
            }
        }
        tree
    }

    fn add_nested(&mut self, path: &str, is_array: bool, name: &Name<'_>, item: &Item, tree: &mut Table) {
        let span = item.span().unwrap_or_else(|| name.span.clone());
        let last = path.rsplit_once('.').map_or(path, |(_, last)| last);
        let tables: Option<Vec<Table>> = match item {
            Item::ArrayOfTables(tables) => Some(
                tables
                    .iter()
                    .map(|table| self.table(path, table, table.span().unwrap_or_else(|| span.clone())))
                    .collect(),
            ),
            Item::Value(Toml::Array(list)) if list.iter().all(Toml::is_inline_table) => {
                let inline = list.iter().filter_map(Toml::as_inline_table);
                Some(
                    inline.map(|table| self.table(path, table, table.span().unwrap_or_else(|| span.clone()))).collect(),
                )
            }
            _ => None,
        };
        let value = match (is_array, tables, item.as_table_like()) {
            (true, Some(tables), _) => Value::Tables(tables),
            // As in gitlab-runner, a table may stand for an array with one table.
            (true, None, Some(table)) => Value::Tables(vec![self.table(path, table, span.clone())]),
            (false, None, Some(table)) => Value::Table(self.table(path, table, span.clone())),
            (true, ..) => return self.report_wrong_kind(path, &name.span, "an array of tables", kind_of(item), item),
            (false, ..) => return self.report_wrong_kind(path, &name.span, "a table", kind_of(item), item),
        };
        tree.push(last, Node { value, span, key: name.span.clone() });
    }

    fn add_key(&mut self, path: &str, known: &'static Key, name: &Name<'_>, item: &Item, tree: &mut Table) {
        let span = item.span().unwrap_or_else(|| name.span.clone());
        if known.secret || is_secret(known.name, item) {
            self.hide(item);
        }
        let full = if path.is_empty() { known.name.to_owned() } else { format!("{path}.{}", known.name) };
        let value = match known.kind {
            Kind::Any => match item.as_table_like() {
                Some(_) => Ok(Value::Any(full_text(item))),
                None => Err(kind_of(item)),
            },
            Kind::Map | Kind::MapBool | Kind::MapInt | Kind::MapList => {
                return self.add_map(&full, known, name, item, tree);
            }
            kind => match item.as_value() {
                Some(value) => convert(kind, value, &span),
                None => Err(kind_of(item)),
            },
        };
        match value {
            Ok(value) => {
                self.warn_about_nanoseconds(&full, known.kind, item, &span);
                tree.push(known.name, Node { value, span, key: name.span.clone() });
            }
            Err(found) => self.report_wrong_kind(&full, &span, known.kind.description(), found, item),
        }
    }

    fn add_map(&mut self, path: &str, known: &'static Key, name: &Name<'_>, item: &Item, tree: &mut Table) {
        let Some(map) = item.as_table_like() else {
            return self.report_wrong_kind(path, &name.span, known.kind.description(), kind_of(item), item);
        };
        let kind = match known.kind {
            Kind::MapBool => Kind::Bool,
            Kind::MapInt => Kind::Int,
            Kind::MapList => Kind::List,
            _ => Kind::Str,
        };
        let mut table = Table::new(item.span().unwrap_or_else(|| name.span.clone()));
        for (name, item) in map.iter() {
            if is_secret(name, item) {
                self.hide(item);
            }
            let span = item.span().unwrap_or_else(|| table.header.clone());
            let key = map.get_key_value(name).and_then(|(key, _)| key.span()).unwrap_or_else(|| span.clone());
            match item.as_value().ok_or_else(|| kind_of(item)).and_then(|value| convert(kind, value, &span)) {
                Ok(value) => table.push(name, Node { value, span, key }),
                Err(found) => self.report_wrong_kind(
                    &format!("{path}.{}", shown_name(name)),
                    &span,
                    kind.description(),
                    found,
                    item,
                ),
            }
        }
        let span = table.header.clone();
        tree.push(known.name, Node { value: Value::Table(table), span, key: name.span.clone() });
    }

    /// Check C013. Zero needs no unit.
    fn warn_about_nanoseconds(&mut self, path: &str, kind: Kind, item: &Item, span: &Range<usize>) {
        if let (Kind::Duration, Some(number)) = (kind, item.as_integer())
            && number != 0
        {
            let message = format!("`{path} = {number}` is {number} nanoseconds");
            self.problems
                .add(Problem::new("C013", message).at(span).help(format!("write a string such as \"{number}s\"")));
        }
    }

    /// Check C014.
    fn report_wrong_kind(&mut self, path: &str, span: &Range<usize>, wanted: &str, found: &str, item: &Item) {
        // Hide the value, because a part of it may be a secret that was pasted there.
        self.hide(item);
        let message = format!("`{path}` needs {wanted}, found {found}");
        let problem = Problem::new("C014", message).at(span);
        let problem = match (wanted, item.as_str()) {
            (wanted, Some(text)) if wanted.contains("duration") => match duration_hint(text) {
                Some(hint) => problem.help(hint),
                None => problem.help("units are ns, us, ms, s, m and h, without spaces"),
            },
            (wanted, Some(_)) if wanted.contains("integer") || wanted.contains("true") => {
                problem.help("remove the quotes")
            }
            _ => problem,
        };
        self.problems.add(problem);
    }

    fn hide(&mut self, item: &Item) {
        let mut pending = vec![item.clone()];
        while let Some(item) = pending.pop() {
            match (&item, item.as_table_like()) {
                (Item::Value(value), None) => self.secrets.extend(value.span()),
                (Item::ArrayOfTables(tables), _) => {
                    pending.extend(tables.iter().map(|table| Item::Table(table.clone())))
                }
                (_, Some(table)) => {
                    self.secrets.extend(item.as_inline_table().and_then(toml_edit::InlineTable::span));
                    pending.extend(table.iter().map(|(_, item)| item.clone()));
                }
                _ => {}
            }
        }
    }
}

/// Returns whether a value looks like a secret, or has the name of a secret of any table.
fn is_secret(name: &str, item: &Item) -> bool {
    schema().is_secret_name(name) || item.as_str().is_some_and(has_secret)
}

/// Returns whether the text contains a token, or a URL with credentials.
#[must_use]
pub fn has_secret(text: &str) -> bool {
    (text.contains('@') && text.contains("://")) || contains_token(text)
}

/// Returns a description of the kind of an item for messages, such as `a string`.
fn kind_of(item: &Item) -> &'static str {
    match item {
        Item::None => "nothing",
        Item::Table(_) => "a table",
        Item::ArrayOfTables(_) => "an array of tables",
        Item::Value(value) => kind_of_value(value),
    }
}

fn kind_of_value(value: &Toml) -> &'static str {
    match value {
        Toml::String(_) => "a string",
        Toml::Integer(_) => "an integer",
        Toml::Float(_) => "a number with a fraction",
        Toml::Boolean(_) => "true or false",
        Toml::Datetime(_) => "a date",
        Toml::Array(_) => "a list",
        Toml::InlineTable(_) => "a table",
    }
}

fn convert(kind: Kind, value: &Toml, span: &Range<usize>) -> Result<Value, &'static str> {
    let list = |kind: Kind| match value {
        Toml::Array(list) => {
            let node = |element: &Toml| {
                let span = element.span().unwrap_or_else(|| span.clone());
                let value = convert(kind, element, &span).map_err(|found| match found {
                    "a string" => "a list with a string",
                    "an integer" => "a list with an integer",
                    _ => "a list with something else",
                })?;
                Ok(Node { value, key: span.clone(), span })
            };
            list.iter().map(node).collect::<Result<_, _>>().map(Value::List)
        }
        other => Err(kind_of_value(other)),
    };
    match (kind, value) {
        (Kind::Str | Kind::Regex | Kind::StrOrList, Toml::String(text)) => Ok(Value::Str(text.value().clone())),
        (Kind::Int, Toml::Integer(number)) => Ok(Value::Int(*number.value())),
        (Kind::Bool, Toml::Boolean(truth)) => Ok(Value::Bool(*truth.value())),
        (Kind::Float, Toml::Float(number)) => Ok(Value::Float(*number.value())),
        #[expect(clippy::cast_precision_loss, reason = "a factor, which gitlab-runner rounds the same way")]
        (Kind::Float, Toml::Integer(number)) => Ok(Value::Float(*number.value() as f64)),
        (Kind::Duration, Toml::Integer(number)) => Ok(Value::Duration(nanoseconds(*number.value()))),
        (Kind::Duration, Toml::String(text)) => {
            GoDuration::parse(text.value()).map(Value::Duration).ok_or("text that is not a valid duration")
        }
        (Kind::Datetime, Toml::Datetime(time)) => {
            datetime(&time.value().to_string()).ok_or("a date without time or zone")
        }
        (Kind::Datetime, Toml::String(time)) => datetime(time.value()).ok_or("text that is not a valid date and time"),
        (Kind::List | Kind::StrOrList, _) => list(Kind::Str),
        (Kind::ListInt, _) => list(Kind::Int),
        (Kind::ListFloat, _) => list(Kind::Float),
        (_, other) => Err(kind_of_value(other)),
    }
}

/// Parses a date. Go's zero time, which means "not set", is not treated specially.
fn datetime(text: &str) -> Option<Value> {
    OffsetDateTime::parse(text, &Rfc3339).ok().map(Value::Datetime)
}

fn nanoseconds(number: i64) -> GoDuration {
    match u64::try_from(number) {
        Ok(number) => GoDuration::NonNegative(std::time::Duration::from_nanos(number)),
        Err(_) => GoDuration::Negative,
    }
}

/// Returns a hint for a unit that Go does not have.
fn duration_hint(text: &str) -> Option<String> {
    let plain: String = text.to_lowercase().split_whitespace().collect();
    let units = [
        ("seconds", "s"),
        ("second", "s"),
        ("secs", "s"),
        ("sec", "s"),
        ("minutes", "m"),
        ("minute", "m"),
        ("mins", "m"),
        ("min", "m"),
        ("hours", "h"),
        ("hour", "h"),
    ];
    let short = units.iter().fold(plain, |text, (long, short)| text.replace(long, short));
    [short.clone(), format!("{short}s")]
        .into_iter()
        .find(|text| text.len() < 20 && GoDuration::parse(text).is_some())
        .map(|text| format!("did you mean \"{text}\"?"))
}

/// Returns the text of a table, including nested tables with separate headers.
fn full_text(item: &Item) -> String {
    let Some(table) = item.as_table() else { return item.to_string() };
    let mut document = toml_edit::DocumentMut::new();
    *document.as_table_mut() = table.clone();
    document.to_string()
}
