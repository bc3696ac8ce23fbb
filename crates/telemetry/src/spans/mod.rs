//! Traces: the spans of a job, sent to OpenTelemetry collectors with OTLP (http/protobuf) after the job has ended.
//!
//! ```text
//! result tree of job -- JobSpan --> bounded queue -- one task --> POST to each destination, with retries
//! ```
//!
//! A failed collector never affects jobs: spans that do not fit into the queue are counted and dropped. OpenTelemetry's
//! SDK is not used, because it records spans while they are open, but here all times are known only at the end of the
//! job.

mod context;
mod export;
mod settings;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Telemetry;

pub use context::{SpanId, TraceContext, TraceId};
pub use settings::{Destination, SpanSettings};
pub use tree::{Attribute, JobSpan, SpanOutcome, StepSpan};

/// Maximum number of queued items. An item is the spans of one job for one destination.
const MAX_QUEUED_ITEMS: usize = 256;
/// Maximum time to send the queued spans when the process ends (docs/spec/runner-config.md, section 1.11).
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

struct ExportItem {
    job: Arc<JobSpan>,
    destination: Destination,
}

/// Trace context that the coordinator sent with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedTrace {
    /// ID of the coordinator's trace.
    pub trace: TraceId,
    /// ID of the coordinator's span.
    pub parent: SpanId,
    /// Destinations for the job's spans, in addition to the configured one.
    pub destinations: Vec<Destination>,
}

/// Creates trace contexts of jobs and exports their spans.
pub struct Tracer {
    settings: SpanSettings,
    /// Used to count spans.
    telemetry: Weak<Telemetry>,
    /// `None` before the first export, and after a flush.
    export_task: Mutex<Option<ExportTask>>,
}

struct ExportTask {
    items: mpsc::Sender<ExportItem>,
    task: JoinHandle<()>,
    /// Whether the queue was full at the last attempt to add an item. An overflow is logged once.
    overflowing: bool,
}

impl Tracer {
    pub(crate) fn new(settings: SpanSettings, telemetry: &Weak<Telemetry>) -> Self {
        Self { settings, telemetry: telemetry.clone(), export_task: Mutex::default() }
    }

    /// Returns the position of a job in a trace. `None` means that tracing is disabled, or that the
    /// spans of the job have no destination.
    ///
    /// `identity` identifies the job across restarts of the manager. The trace ID does not reveal it.
    #[must_use]
    pub fn context(&self, identity: &[&[u8]], requested: Option<&RequestedTrace>) -> Option<TraceContext> {
        let has_requested_destination = requested.is_some_and(|requested| !requested.destinations.is_empty());
        if self.settings.disabled || (self.settings.destination.is_none() && !has_requested_destination) {
            return None;
        }
        let (trace, parent) = match requested {
            Some(requested) => (requested.trace, Some(requested.parent)),
            None => (TraceId::derived(identity), None),
        };
        let span = SpanId::derived(identity);
        let sampled = has_requested_destination || self.settings.samples(trace, parent.is_some());
        Some(TraceContext { trace, span, parent, sampled })
    }

    /// Queues the spans of a job that has ended. Never waits.
    pub fn send(&self, job: JobSpan, requested: Option<&RequestedTrace>) {
        if self.settings.disabled || !job.context.sampled {
            return;
        }
        let configured = self.settings.destination.as_ref();
        let configured = configured.filter(|_| self.settings.samples(job.context.trace, job.context.parent.is_some()));
        let job = Arc::new(job);
        let destinations = requested.into_iter().flat_map(|requested| &requested.destinations);
        for destination in configured.into_iter().chain(destinations) {
            self.enqueue(ExportItem { job: Arc::clone(&job), destination: destination.clone() });
        }
    }

    fn enqueue(&self, item: ExportItem) {
        let mut export_task = self.export_task.lock();
        let export_task = export_task.get_or_insert_with(|| {
            let (items, queue) = mpsc::channel(MAX_QUEUED_ITEMS);
            let task = tokio::spawn(export::run(queue, self.settings.clone(), self.telemetry.clone()));
            ExportTask { items, task, overflowing: false }
        });
        match export_task.items.try_send(item) {
            Ok(()) => export_task.overflowing = false,
            Err(mpsc::error::TrySendError::Full(item) | mpsc::error::TrySendError::Closed(item)) => {
                if let Some(telemetry) = self.telemetry.upgrade() {
                    telemetry.metrics.record_spans("dropped", item.job.spans().len());
                }
                if !std::mem::replace(&mut export_task.overflowing, true) {
                    tracing::warn!("export queue full, dropping spans");
                }
            }
        }
    }

    /// Sends the queued spans, for a few seconds at most.
    pub async fn flush(&self) {
        let Some(ExportTask { items, mut task, .. }) = self.export_task.lock().take() else { return };
        drop(items);
        if tokio::time::timeout(FLUSH_TIMEOUT, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("failed to export the last spans in time");
        }
    }
}
