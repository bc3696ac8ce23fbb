//! Checks `ci.toml` before it is deserialized, so that all its problems are reported together, each with its line.

use muster_pipeline::suggest::did_you_mean;
use toml_edit::{Document, Item, TableLike, Value};

/// Kind of value that a key accepts.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    TextList,
    Boolean,
    /// Integer from 0.
    Count,
    /// Integer from 1.
    Limit,
    /// Number above 0.
    Seconds,
    /// Table of strings with any keys.
    StringTable,
    Table(&'static [Field]),
    Tables(&'static [Field]),
}

struct Field {
    name: &'static str,
    shape: Shape,
    is_required: bool,
    /// Whether messages must not show the value.
    is_secret: bool,
}

const fn field(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, is_required: false, is_secret: false }
}

const ROOT: &[Field] = &[
    field("protected", Shape::TextList),
    field("projects", Shape::StringTable),
    field("components", Shape::StringTable),
    field("templates", Shape::Table(TEMPLATES)),
    field("remote", Shape::Table(REMOTE)),
    field("retention", Shape::Table(RETENTION)),
    field("unpack", Shape::Table(UNPACK)),
    field("variables", Shape::Tables(VARIABLES)),
    field("secrets", Shape::Tables(SECRETS)),
];
const TEMPLATES: &[Field] = &[field("directory", Shape::Text), field("url", Shape::Text)];
const REMOTE: &[Field] =
    &[field("offline", Shape::Boolean), field("timeout", Shape::Seconds), field("map", Shape::StringTable)];
const RETENTION: &[Field] =
    &[field("max_days", Shape::Count), field("max_megabytes", Shape::Count), field("min_runs", Shape::Count)];
const UNPACK: &[Field] = &[
    field("max_bytes", Shape::Limit),
    field("max_entries", Shape::Limit),
    field("max_ratio", Shape::Limit),
    field("max_header_bytes", Shape::Limit),
];
const VARIABLES: &[Field] = &[
    Field { is_required: true, ..field("key", Shape::Text) },
    Field { is_secret: true, ..field("value", Shape::Text) },
    field("value-file", Shape::Text),
    field("project", Shape::Text),
    field("masked", Shape::Boolean),
    field("protected", Shape::Boolean),
    field("file", Shape::Boolean),
    field("expand", Shape::Boolean),
    field("environment-scope", Shape::Text),
];
const SECRETS: &[Field] = &[
    Field { is_required: true, ..field("name", Shape::Text) },
    Field { is_required: true, is_secret: true, ..field("value", Shape::Text) },
    field("project", Shape::Text),
];

/// Returns all problems of a file, ordered by line. Invalid TOML has none, because the parser reports it.
pub(super) fn problems(text: &str) -> Vec<String> {
    let Ok(document) = Document::parse(text) else { return Vec::new() };
    let mut check = Check { text, problems: Vec::new() };
    check.check_table(document.as_table(), "", ROOT, 1);
    check.problems.sort_by_key(|(line, _)| *line);
    check.problems.into_iter().map(|(line, message)| format!("line {line}: {message}")).collect()
}

struct Check<'a> {
    text: &'a str,
    problems: Vec<(usize, String)>,
}

impl Check<'_> {
    /// Returns the line in which `span` begins. Returns `parent_line` if there is no span, as for an implicit table.
    fn line_of(&self, span: Option<std::ops::Range<usize>>, parent_line: usize) -> usize {
        let before = span.and_then(|span| self.text.get(..span.start));
        before.map_or(parent_line, |before| 1 + before.matches('\n').count())
    }

    fn check_table(&mut self, table: &dyn TableLike, path: &str, fields: &'static [Field], line: usize) {
        for (name, item) in table.iter() {
            let key_line = self.line_of(table.key(name).and_then(toml_edit::Key::span), line);
            match fields.iter().find(|field| field.name == name) {
                Some(field) => self.check_value(item, &format!("{path}{name}"), field, key_line),
                None => {
                    let known: Vec<&str> = fields.iter().map(|field| field.name).collect();
                    let help = did_you_mean(name, known.iter().copied());
                    let help = help.unwrap_or_else(|| format!("known keys are {}", known.join(", ")));
                    self.problems.push((key_line, format!("unknown key `{path}{name}`; {help}")));
                }
            }
        }
        for field in fields.iter().filter(|field| field.is_required && !table.contains_key(field.name)) {
            self.problems.push((line, format!("missing key `{path}{}`", field.name)));
        }
        if path.starts_with("variables[") && table.contains_key("value") == table.contains_key("value-file") {
            let entry = path.trim_end_matches('.');
            self.problems.push((line, format!("`{entry}` needs either `value` or `value-file`")));
        }
    }

    fn check_value(&mut self, item: &Item, path: &str, field: &Field, line: usize) {
        let line = self.line_of(item.span(), line).max(line);
        let value = item.as_value();
        let is_valid = match field.shape {
            Shape::Text => value.is_some_and(Value::is_str),
            Shape::Boolean => value.is_some_and(Value::is_bool),
            Shape::Count => value.and_then(Value::as_integer).is_some_and(|number| number >= 0),
            Shape::Limit => value.and_then(Value::as_integer).is_some_and(|number| number >= 1),
            Shape::Seconds => {
                let number =
                    value.and_then(|value| value.as_float().or(value.as_integer().map(|number| number as f64)));
                number.is_some_and(|number| number.is_finite() && number > 0.0)
            }
            Shape::TextList => value.and_then(Value::as_array).is_some_and(|list| list.iter().all(Value::is_str)),
            Shape::StringTable => match item.as_table_like() {
                Some(table) => {
                    for (name, item) in table.iter() {
                        let key_line = self.line_of(table.key(name).and_then(toml_edit::Key::span), line);
                        self.check_value(item, &format!("{path}.{name:?}"), &text_field(), key_line);
                    }
                    true
                }
                None => false,
            },
            Shape::Table(fields) => match item.as_table_like() {
                Some(table) => {
                    self.check_table(table, &format!("{path}."), fields, line);
                    true
                }
                None => false,
            },
            Shape::Tables(fields) => self.check_tables(item, path, fields, line),
        };
        if !is_valid {
            let found = match value {
                Some(value) if !field.is_secret => format!("is {}", value.to_string().trim()),
                Some(value) => format!("has the type {}", value.type_name()),
                None => format!("has the type {}", item.type_name()),
            };
            self.problems.push((line, format!("`{path}` {found}; expected {}", field.shape.expectation())));
        }
    }

    /// Returns false if the item is not an array of tables.
    fn check_tables(&mut self, item: &Item, path: &str, fields: &'static [Field], line: usize) -> bool {
        let tables: Vec<(Option<std::ops::Range<usize>>, &dyn TableLike)> = match item {
            Item::ArrayOfTables(tables) => tables.iter().map(|table| (table.span(), table as &dyn TableLike)).collect(),
            Item::Value(Value::Array(list)) if list.iter().all(Value::is_inline_table) => list
                .iter()
                .filter_map(Value::as_inline_table)
                .map(|table| (table.span(), table as &dyn TableLike))
                .collect(),
            _ => return false,
        };
        for (index, (span, table)) in tables.into_iter().enumerate() {
            let line = self.line_of(span, line);
            self.check_table(table, &format!("{path}[{index}]."), fields, line);
        }
        true
    }
}

const fn text_field() -> Field {
    field("", Shape::Text)
}

impl Shape {
    fn expectation(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::TextList => "an array of strings",
            Self::Boolean => "true or false",
            Self::Count => "an integer of at least 0",
            Self::Limit => "an integer of at least 1",
            Self::Seconds => "a number of seconds above 0",
            Self::StringTable => "a table of strings",
            Self::Table(_) => "a table",
            Self::Tables(_) => "an array of tables",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_reported_with_their_lines() {
        let text = "protected = [1]\n[retension]\nmax_days = 1\n[retention]\nmax_days = \"thirty\"\nmin_runs = -1\n[remote]\n\
                    timeout = 0\n[projects]\n\"group/lib\" = true\n[[variables]]\nvalue = 17\nvalue-file = \"x\"\n[[secrets]]\nname = \"A\"\n\
                    value = [\"hidden\"]\n";
        insta::assert_snapshot!(problems(text).join("\n"));
    }

    #[test]
    fn valid_files_have_no_problems() {
        let text = "protected = [\"release/*\"]\nvariables = [{ key = \"A\", value = \"1\" }]\n[remote]\ntimeout = 1.5\nmap = { \"https://x/\" = \"~/x\" }\n\
                    [unpack]\nmax_bytes = 1\n[[secrets]]\nname = \"A\"\nvalue = \"b\"\n";
        assert_eq!(problems(text), Vec::<String>::new());
        assert_eq!(problems(""), Vec::<String>::new());
    }
}
