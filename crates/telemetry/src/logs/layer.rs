//! The `tracing` layer: collects the fields of spans and events into records, formats them and writes them to the sink.

use std::sync::Arc;

use parking_lot::RwLock;
use time::OffsetDateTime;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record as SpanRecord};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::LogState;
use super::filter::{Filter, Level};
use super::format::{Color, Format};
use super::record::{Fields, Record, Value};
use super::sink::Sink;

/// Layer that writes log records. Clones share the same log.
#[derive(Clone)]
pub struct LogLayer(Arc<Inner>);

struct Inner {
    state: Arc<LogState>,
    filter: RwLock<Filter>,
    format: RwLock<Format>,
    color: bool,
    sink: Sink,
}

impl LogLayer {
    pub(super) fn new(filter: Filter, format: Format, color: Color, sink: Sink) -> Self {
        let color = color.is_on(&sink);
        let (filter, format) = (RwLock::new(filter), RwLock::new(format));
        Self(Arc::new(Inner { state: Arc::default(), filter, format, color, sink }))
    }

    pub(super) fn state(&self) -> &Arc<LogState> {
        &self.0.state
    }

    pub(super) fn level(&self) -> Level {
        self.0.filter.read().level
    }

    pub(super) fn set_filter(&self, filter: Filter) {
        *self.0.filter.write() = filter;
        // `tracing` caches which call sites are enabled.
        tracing::callsite::rebuild_interest_cache();
    }

    pub(super) fn set_format(&self, format: Format) {
        *self.0.format.write() = format;
    }

    fn is_enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Fields of Muster's spans are part of every record inside them, so the filter does not apply to these spans.
        // Only `max_level_hint` can disable them.
        (metadata.is_span() && metadata.target().starts_with("muster")) || self.0.filter.read().is_enabled(metadata)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.is_enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        // At least info, because that is the level of the spans of jobs.
        Some(self.0.filter.read().max_level().max(LevelFilter::INFO))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().replace(fields);
    }

    fn on_record(&self, id: &Id, values: &SpanRecord<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        if let Some((builds, max)) = self.0.state.builds() {
            fields.set("builds", Value::Signed(builds));
            fields.set("max_builds", Value::Signed(max));
        }
        for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(known) = span.extensions().get::<Fields>() {
                for (name, value) in &known.list {
                    fields.set(name.clone(), value.clone());
                }
            }
        }
        event.record(&mut fields);
        let level = match Level::from_tracing(*event.metadata().level()) {
            Level::Error if fields.fatal => Level::Fatal,
            level => level,
        };
        if level <= Level::Warning {
            self.0.state.errors().with_label_values(&[level.name()]).inc();
        }
        if level > self.0.filter.read().level {
            return;
        }
        fields.list.sort_by(|(one, _), (other, _)| one.cmp(other));
        let record = Record { time: OffsetDateTime::now_utc(), level, message: fields.message, fields: fields.list };
        let line = self.0.format.read().line(&record, self.0.color);
        if event.metadata().target() == super::UNREDACTED_TARGET {
            return self.0.sink.write(level, &line);
        }
        self.0.sink.write(level, &super::scrub(&line));
    }
}
