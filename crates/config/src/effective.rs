//! The effective values and their origins, for `verify-config`.

use std::fmt;

use muster_job::GoDuration;

use super::facts::HostFacts;
use super::load::Config;
use super::problem::shown_name;
use super::runners::Runner;
use super::schema::{Entry, Key, KeySupport, schema};
use super::tree::{Node, Table, Value};
use super::walk::has_secret;

/// Environment variables that override keys of the file when the manager starts.
const OVERRIDES: [(&str, &str); 3] =
    [("listen_address", "LISTEN_ADDRESS"), ("log_level", "LOG_LEVEL"), ("log_format", "LOG_FORMAT")];

/// Origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The file, at this line.
    File(usize),
    /// The file, at this line. The value there refers to environment variables.
    Reference(usize),
    /// An environment variable.
    Environment(&'static str),
    /// The default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(line) => write!(f, "line {line}"),
            Self::Reference(line) => write!(f, "line {line}, from the environment"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value that Muster uses.
#[derive(Debug, Clone)]
pub struct Effective {
    /// Full name of the key, such as `runners.docker.image`.
    pub key: String,
    /// Index of the `[[runners]]` entry. `None` means a global key.
    pub runner: Option<usize>,
    /// Value as text. A secret is masked.
    pub value: String,
    /// Origin of the value.
    pub origin: Origin,
    /// Reason why the key has no effect in Muster. `None` if it has an effect.
    pub without_effect: Option<&'static str>,
}

/// Returns all values of the file, and the defaults of the keys that Muster supports.
#[must_use]
pub fn effective(config: &Config, facts: &HostFacts) -> Vec<Effective> {
    let mut values = Values { config, found: Vec::new() };
    values.add_table(&config.tree, "", None);
    for (key, variable) in OVERRIDES {
        let Some(text) = facts.env.get(variable).filter(|text| !text.is_empty()) else { continue };
        values.found.retain(|value| value.key != key);
        values.push(key.to_owned(), None, shown_name(text), Origin::Environment(variable), None);
    }
    for runner in &config.runners {
        values.add_table(&runner.table, "runners", Some(runner));
    }
    values.found
}

struct Values<'a> {
    config: &'a Config,
    found: Vec<Effective>,
}

impl Values<'_> {
    fn add_table(&mut self, table: &Table, path: &str, runner: Option<&Runner>) {
        for entry in schema().entries(path) {
            let full = if path.is_empty() { entry.name().to_owned() } else { format!("{path}.{}", entry.name()) };
            match (entry, table.node(entry.name())) {
                (Entry::Key(key), node) => self.add_key(key, full, node, runner),
                // The values of runners are added after those of the global section.
                _ if full == "runners" => {}
                (Entry::Table(inner), Some(Node { value: Value::Tables(tables), .. })) => {
                    for table in tables {
                        self.add_table(table, &inner.path, runner);
                    }
                }
                (Entry::Table(inner), Some(Node { value: Value::Table(table), .. })) => {
                    self.add_table(table, &inner.path, runner)
                }
                (Entry::Table(inner), _) if !inner.array && inner.status == KeySupport::Supported => {
                    self.add_table(&Table::default(), &inner.path, runner);
                }
                _ => {}
            }
        }
    }

    fn add_key(&mut self, key: &Key, full: String, node: Option<&Node>, runner: Option<&Runner>) {
        let without_effect = match key.status {
            KeySupport::Unsupported(reason) => Some(reason),
            KeySupport::Supported => None,
        };
        let Some(node) = node else {
            if without_effect.is_none() && !key.default.is_empty() {
                let value = with_unit(key.default, key.unit);
                self.push(full, runner, value, Origin::Default, None);
            }
            return;
        };
        let line = self.config.line(node.span.start);
        let runner_of_url = runner.filter(|_| full == "runners.url");
        let (value, origin) = match (key.secret, runner_of_url) {
            (true, _) if full == "runners.token" && runner.is_some_and(|runner| runner.token_is_reference) => {
                ("[masked]".to_owned(), Origin::Reference(line))
            }
            (true, _) => (masked(&node.value), Origin::File(line)),
            (false, Some(runner)) if node.value != Value::Str(runner.url.clone()) => {
                (masked_or_quoted_url(&runner.url), Origin::Reference(line))
            }
            _ => (with_unit(&shown(&node.value), key.unit), Origin::File(line)),
        };
        self.push(full, runner, value, origin, without_effect);
    }

    fn push(
        &mut self,
        key: String,
        runner: Option<&Runner>,
        value: String,
        origin: Origin,
        without_effect: Option<&'static str>,
    ) {
        self.found.push(Effective { key, runner: runner.map(|runner| runner.index), value, origin, without_effect });
    }
}

fn with_unit(value: &str, unit: &str) -> String {
    let number = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    if number && !unit.is_empty() { format!("{value} {unit}") } else { value.to_owned() }
}

/// Masks a secret, except an empty text. Each entry of a list is masked separately, so the length remains visible.
fn masked(value: &Value) -> String {
    match value {
        Value::Str(text) if text.is_empty() => "\"\"".to_owned(),
        Value::List(list) => format!("[{}]", vec!["[masked]"; list.len()].join(", ")),
        _ => "[masked]".to_owned(),
    }
}

/// Masks a URL that may contain a password.
fn masked_or_quoted_url(url: &str) -> String {
    if url.contains('@') { "[masked]".to_owned() } else { quoted(url) }
}

fn quoted(text: &str) -> String {
    const MAX_LENGTH: usize = 200;
    if has_secret(text) {
        return "[masked]".to_owned();
    }
    let short: String = text.chars().take(MAX_LENGTH).collect();
    let more = if text.chars().nth(MAX_LENGTH).is_some() { "…" } else { "" };
    format!("{short:?}{more}")
}

fn shown(value: &Value) -> String {
    let joined = |parts: Vec<String>, open: char, close: char| format!("{open}{}{close}", parts.join(", "));
    match value {
        Value::Str(text) => quoted(text),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        Value::Duration(GoDuration::NonNegative(duration)) => format!("{duration:?}"),
        Value::Duration(GoDuration::Negative) => "negative".to_owned(),
        Value::Datetime(time) => time.to_string(),
        Value::List(list) => joined(list.iter().map(|node| shown(&node.value)).collect(), '[', ']'),
        Value::Table(table) => {
            let value = |name: &str, node: &Node| {
                if schema().is_secret_name(name) { "[masked]".to_owned() } else { shown(&node.value) }
            };
            let entry = |(name, node): (&str, &Node)| format!("{} = {}", shown_name(name), value(name, node));
            joined(table.entries().map(entry).collect(), '{', '}')
        }
        Value::Tables(tables) => format!("{} entries", tables.len()),
        Value::Any(_) => "[masked]".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn values_have_origins_and_masked_secrets() {
        let text = "concurrent = 4\n\n[[runners]]\nname = \"a\"\nurl = \"https://${HOST}/\"\ntoken = \"$TOKEN\"\nlimit = 2\n\
                    environment = [\"PASSWORD=hidden\"]\nunhealthy_interval = \"90s\"\n[runners.docker]\nimage = \"alpine\"\nisolation = \"process\"\n";
        let env = [
            ("TOKEN", "glrt-hidden"),
            ("HOST", "g.example"),
            ("LOG_LEVEL", "debug"),
            ("LISTEN_ADDRESS", "127.0.0.1:9252"),
        ];
        let facts = HostFacts {
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..HostFacts::default()
        };
        let found = effective(&parse(text, &facts).config.unwrap(), &facts);
        let output = |key: &str| {
            let value = found.iter().find(|value| value.key == key).unwrap_or_else(|| panic!("{key}"));
            format!("{} ({})", value.value, value.origin)
        };
        assert_eq!(output("concurrent"), "4 (line 1)");
        assert_eq!(output("check_interval"), "3 s (default)");
        assert_eq!(output("log_level"), "debug (environment LOG_LEVEL)");
        assert_eq!(output("listen_address"), "127.0.0.1:9252 (environment LISTEN_ADDRESS)");
        assert_eq!(output("runners.url"), "\"https://g.example/\" (line 5, from the environment)");
        assert_eq!(output("runners.token"), "[masked] (line 6, from the environment)");
        assert_eq!(output("runners.limit"), "2 jobs (line 7)");
        assert_eq!(output("runners.environment"), "[[masked]] (line 8)");
        assert_eq!(output("runners.unhealthy_interval"), "90s (line 9)");
        assert_eq!(output("runners.request_concurrency"), "1 (default)");
        assert!(found.iter().all(|value| !value.value.contains("hidden")));
        assert_eq!(output("runners.docker.image"), "\"alpine\" (line 11)");
        let isolation = found.iter().find(|value| value.key == "runners.docker.isolation").unwrap();
        assert!(isolation.without_effect.is_some() && isolation.runner == Some(0));
    }
}
