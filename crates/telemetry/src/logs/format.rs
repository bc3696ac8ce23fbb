//! The log formats, which are gitlab-runner's (docs/spec/runner-config.md, section 1.11).

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::str::FromStr;

use serde_json::{Map, Value as Json};
use time::format_description::well_known::Rfc3339;

use super::filter::Level;
use super::record::{Record, Value};
use super::sink::Sink;

/// Minimum width of level and message in the format `runner`.
const MESSAGE_COLUMNS: usize = 50;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Human-readable: the padded message, then the fields.
    #[default]
    Runner,
    /// `key=value` pairs in logfmt.
    Text,
    /// A JSON object per line.
    Json,
}

/// Error for text that is not the name of a format.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a valid log format; use one of: runner, text, json")]
pub struct FormatError(String);

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        match text {
            "runner" => Ok(Self::Runner),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(FormatError(text.to_owned())),
        }
    }
}

/// When lines of the format `runner` are colored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// Always, like gitlab-runner.
    Always,
    /// If standard error is a terminal and `NO_COLOR` is not set.
    Auto,
    /// Never.
    Never,
}

impl Color {
    pub(super) fn is_on(self, sink: &Sink) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let is_disabled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                sink.is_stderr() && std::io::stderr().is_terminal() && !is_disabled
            }
        }
    }
}

impl Format {
    /// Formats a record as a line, including its end.
    pub(super) fn line(self, record: &Record, color: bool) -> String {
        match self {
            Self::Runner => runner(record, color),
            Self::Text => text(record),
            Self::Json => json(record),
        }
    }
}

fn runner(record: &Record, color: bool) -> String {
    let (start, prefix) = match record.level {
        Level::Panic => ("\x1b[31;1m", "PANIC: "),
        Level::Fatal => ("\x1b[31;1m", "FATAL: "),
        Level::Error => ("\x1b[31;1m", "ERROR: "),
        Level::Warning => ("\x1b[0;33m", "WARNING: "),
        Level::Debug => ("\x1b[37;1m", ""),
        Level::Info | Level::Trace => ("", ""),
    };
    let (start, reset) = if color { (start, "\x1b[0;m") } else { ("", "") };
    let (message, width) = (one_line(&record.message), MESSAGE_COLUMNS - prefix.len());
    let mut line = format!("{start}{prefix}{message:<width$}{reset} ");
    for (name, value) in &record.fields {
        // Writing to a string cannot fail.
        let _ = write!(line, " {start}{name}{reset}={}", one_line(&value.to_string()));
    }
    line.push('\n');
    line
}

fn text(record: &Record) -> String {
    let mut line =
        format!("time={} level={} msg={}", quoted(&time(record)), record.level.name(), quoted(&record.message));
    for (name, value) in &record.fields {
        let _ = write!(line, " {}={}", field_name(name), quoted(&value.to_string()));
    }
    line.push('\n');
    line
}

fn json(record: &Record) -> String {
    let mut object = Map::new();
    for (name, value) in &record.fields {
        let value = match value {
            Value::Text(text) => Json::from(text.as_str()),
            Value::Bool(value) => Json::from(*value),
            Value::Signed(value) => Json::from(*value),
            Value::Unsigned(value) => Json::from(*value),
            Value::Float(value) => Json::from(*value),
        };
        object.insert(field_name(name).into_owned(), value);
    }
    object.insert("level".to_owned(), Json::from(record.level.name()));
    object.insert("msg".to_owned(), Json::from(record.message.as_str()));
    object.insert("time".to_owned(), Json::from(time(record)));
    object.sort_keys();
    let mut line = Json::Object(object).to_string();
    line.push('\n');
    line
}

fn time(record: &Record) -> String {
    record.time.format(&Rfc3339).unwrap_or_default()
}

/// Returns the name of a field, prefixed if it would replace one of the record's own fields.
fn field_name(name: &str) -> Cow<'_, str> {
    match name {
        "time" | "level" | "msg" => Cow::Owned(format!("fields.{name}")),
        name => Cow::Borrowed(name),
    }
}

/// Formats a logfmt value, in quotes if it contains special characters.
fn quoted(text: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if text.chars().all(plain) { Cow::Borrowed(text) } else { Cow::Owned(Json::from(text).to_string()) }
}

/// Escapes control characters, so that text from elsewhere cannot start a new line or change colors.
fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect())
}
