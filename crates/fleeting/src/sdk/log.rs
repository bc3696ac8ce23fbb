//! Writes `tracing` events as lines of JSON to stderr, in the format that hosts parse.
//! See docs/spec/fleeting.md, section 1.8.

use std::fmt;

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Libraries whose events below warnings are not logged.
const LIBRARIES: [&str; 6] = ["h2", "hyper", "hyper_util", "russh", "tonic", "tower"];

/// Logs the events of this process to stderr. The host filters by level.
pub(super) fn init() {
    let library_levels = LIBRARIES.map(|library| (library, LevelFilter::WARN));
    let filter = Targets::new().with_default(LevelFilter::DEBUG).with_targets(library_levels);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).event_format(JsonLines);
    // A subscriber that the program has already installed stays active.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
}

struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        writeln!(writer, "{}", json_line(event, OffsetDateTime::now_utc()))
    }
}

fn json_line(event: &Event<'_>, now: OffsetDateTime) -> String {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let level = match *event.metadata().level() {
        Level::TRACE => "trace",
        Level::DEBUG => "debug",
        Level::INFO => "info",
        Level::WARN => "warn",
        Level::ERROR => "error",
    };
    let mut object = Map::new();
    object.insert("@level".to_owned(), level.into());
    object.insert("@message".to_owned(), fields.message.into());
    object.insert("@module".to_owned(), event.metadata().target().into());
    object.insert("@timestamp".to_owned(), format_timestamp(now).into());
    object.extend(fields.other);
    Value::Object(object).to_string()
}

/// Formats a timestamp with exactly six fractional digits.
/// With any other number, the Go host ignores the level.
fn format_timestamp(now: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    now.format(&format).unwrap_or_default()
}

#[derive(Default)]
struct Fields {
    message: String,
    other: Map<String, Value>,
}

impl Fields {
    fn insert(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => {
                self.other.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.insert(field, super::error_chain(value).into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn timestamp_has_six_fractional_digits() {
        assert_eq!(format_timestamp(datetime!(2026-08-06 10:00:00 UTC)), "2026-08-06T10:00:00.000000Z");
        assert_eq!(format_timestamp(datetime!(2026-08-06 10:00:00.123456789 UTC)), "2026-08-06T10:00:00.123456Z");
    }
}
