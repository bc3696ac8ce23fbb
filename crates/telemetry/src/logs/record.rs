//! Log records and their fields.

use std::borrow::Cow;
use std::fmt;

use time::OffsetDateTime;
use tracing::field::{Field, Visit};

use super::filter::Level;

/// Name of the field that marks an error as fatal. The process exits after such an error.
const FATAL: &str = "fatal";

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Bool(value) => value.fmt(f),
            Self::Signed(value) => value.fmt(f),
            Self::Unsigned(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
        }
    }
}

/// Fields of a span or a record, in the order in which they were recorded. The last value of a name counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    pub(super) message: String,
    pub(super) fatal: bool,
    pub(super) list: Vec<(Cow<'static, str>, Value)>,
}

impl Fields {
    pub(super) fn set(&mut self, name: impl Into<Cow<'static, str>>, value: Value) {
        let name = name.into();
        match self.list.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.list.push((name, value)),
        }
    }

    fn set_text(&mut self, name: &'static str, text: String) {
        // A raw identifier such as `r#type` names the field `type`.
        match name.strip_prefix("r#").unwrap_or(name) {
            "message" => self.message = text,
            name => self.set(name, Value::Text(text)),
        }
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            FATAL => self.fatal = value,
            name => self.set(name, Value::Bool(value)),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), Value::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), Value::Unsigned(value));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        match i64::try_from(value) {
            Ok(value) => self.record_i64(field, value),
            Err(_) => self.set_text(field.name(), value.to_string()),
        }
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        match u64::try_from(value) {
            Ok(value) => self.record_u64(field, value),
            Err(_) => self.set_text(field.name(), value.to_string()),
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), Value::Float(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set_text(field.name(), value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.set_text(field.name(), muster_job::error_chain(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set_text(field.name(), format!("{value:?}"));
    }
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) time: OffsetDateTime,
    pub(super) level: Level,
    pub(super) message: String,
    /// Fields, sorted by name.
    pub(super) fields: Vec<(Cow<'static, str>, Value)>,
}
