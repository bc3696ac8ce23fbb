//! OpenTelemetry: the spans of a job, sent to a collector by OTLP (http/protobuf) when the job has ended.
//!
//! ```text
//! job's result tree --JobSpan--> queue (bounded) --one task--> POST to each destination, a few tries
//! ```
//!
//! An exporter that is down costs spans, never a job: handing spans over does not wait, and what does not fit is counted
//! and dropped. Of an outage there is one warning. Only the messages of OpenTelemetry's library are used: its SDK has
//! nothing to do where spans are made after the fact.

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
pub use tree::{Attribute, Ending, JobSpan, StepSpan};

/// Jobs whose spans wait to be sent.
const QUEUE_MAX: usize = 256;
/// What waits at the end of the process has so long (runner-config 1.11).
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// A job's spans on their way.
struct Parcel {
    job: Arc<JobSpan>,
    destination: Destination,
}

/// Where a job is in a trace, as its server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    /// The trace that the server began.
    pub trace: TraceId,
    /// The server's span.
    pub parent: SpanId,
    /// Where the server wants the job's spans, beside what is configured here.
    pub destinations: Vec<Destination>,
}

/// Makes and sends traces.
pub struct Tracer {
    settings: SpanSettings,
    /// For the counts of what was sent.
    telemetry: Weak<Telemetry>,
    /// There from the first job on whose spans are sent.
    exporter: Mutex<Option<Exporter>>,
}

struct Exporter {
    parcels: mpsc::Sender<Parcel>,
    task: JoinHandle<()>,
    overflowing: bool,
}

impl Tracer {
    pub(crate) fn new(settings: SpanSettings, telemetry: &Weak<Telemetry>) -> Self {
        Self { settings, telemetry: telemetry.clone(), exporter: Mutex::default() }
    }

    /// The place of a job in a trace; none where nothing is to be traced. `identity` says which job it is, the same
    /// again after a restart; nothing of it can be told from the trace's id.
    #[must_use]
    pub fn context(&self, identity: &[&[u8]], requested: Option<&Requested>) -> Option<TraceContext> {
        let wanted = requested.is_some_and(|requested| !requested.destinations.is_empty());
        if self.settings.disabled || (self.settings.destination.is_none() && !wanted) {
            return None;
        }
        let (trace, parent) = match requested {
            Some(requested) => (requested.trace, Some(requested.parent)),
            None => (TraceId::derived(identity), None),
        };
        let span = SpanId::derived(identity);
        let sampled = wanted || self.settings.samples(trace, parent.is_some());
        Some(TraceContext { trace, span, parent, sampled })
    }

    /// Hands over the spans of a job that has ended. Never waits.
    pub fn send(&self, job: JobSpan, requested: Option<&Requested>) {
        if self.settings.disabled || !job.context.sampled {
            return;
        }
        let own = self.settings.destination.as_ref();
        let own = own.filter(|_| self.settings.samples(job.context.trace, job.context.parent.is_some()));
        let job = Arc::new(job);
        let destinations = requested.into_iter().flat_map(|requested| &requested.destinations);
        for destination in own.into_iter().chain(destinations) {
            self.enqueue(Parcel { job: Arc::clone(&job), destination: destination.clone() });
        }
    }

    fn enqueue(&self, parcel: Parcel) {
        let mut exporter = self.exporter.lock();
        let exporter = exporter.get_or_insert_with(|| {
            let (parcels, queue) = mpsc::channel(QUEUE_MAX);
            let task = tokio::spawn(export::run(queue, self.settings.clone(), self.telemetry.clone()));
            Exporter { parcels, task, overflowing: false }
        });
        match exporter.parcels.try_send(parcel) {
            Ok(()) => exporter.overflowing = false,
            Err(mpsc::error::TrySendError::Full(parcel) | mpsc::error::TrySendError::Closed(parcel)) => {
                if let Some(telemetry) = self.telemetry.upgrade() {
                    telemetry.metrics.spans("dropped", parcel.job.spans().len());
                }
                if !std::mem::replace(&mut exporter.overflowing, true) {
                    tracing::warn!("spans are dropped: the collector does not take them as fast as jobs end");
                }
            }
        }
    }

    /// Sends what waits, for a few seconds at most.
    pub async fn flush(&self) {
        let Some(Exporter { parcels, mut task, .. }) = self.exporter.lock().take() else { return };
        drop(parcels);
        if tokio::time::timeout(FLUSH_LIMIT, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("the last spans could not be sent in time");
        }
    }
}
