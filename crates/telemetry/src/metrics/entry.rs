//! The metrics of one `[[runners]]` entry, and of its token.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use tokio::time::Instant;

use super::group::Group;
use crate::names;

/// What tells one `[[runners]]` entry from another in metrics. No secret may stand here.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct EntryLabels {
    /// The token's short form.
    pub runner: String,
    /// The entry's name.
    pub runner_name: String,
    /// The manager's system id.
    pub system_id: String,
}

/// The metrics of one entry. While anyone holds this, its series are exposed.
pub struct EntryMetrics {
    group: Group,
    pub(super) token: Arc<TokenMetrics>,
    pub(super) name: Arc<NameMetrics>,
    pub(super) limit: IntGauge,
    pub(super) jobs: IntGaugeVec,
    pub(super) jobs_total: IntCounter,
    pub(super) job_duration: HistogramVec,
    pub(super) stage_duration: HistogramVec,
    pub(super) queue_duration: HistogramVec,
    pub(super) queue_size: IntGauge,
    pub(super) queue_depth: IntGauge,
    feeds: IntCounter,
    feed_failures: IntCounter,
    pub(super) processing_failures: IntCounterVec,
    health_check_failures: IntCounter,
    handover: Histogram,
    job_cpu: Histogram,
    job_memory: Histogram,
    recovered: IntCounter,
    pub(super) waiting: IntGauge,
    pub(super) unreported: IntGauge,
    trace_bytes: IntCounter,
    trace_waiting: IntGauge,
    report_retries: IntCounter,
}

/// What can keep a job or a request from working out (runner-config 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessingFailure {
    /// No environment was free.
    NoFreeExecutor,
    /// The job failed.
    Job,
    /// Anything else.
    Other,
}

impl ProcessingFailure {
    const ALL: [Self; 3] = [Self::NoFreeExecutor, Self::Job, Self::Other];

    fn label(self) -> &'static str {
        match self {
            Self::NoFreeExecutor => "no_free_executor",
            Self::Job => "job_failure",
            Self::Other => "other",
        }
    }
}

impl EntryMetrics {
    pub(super) fn new(
        registry: &Registry,
        labels: &EntryLabels,
        token: Arc<TokenMetrics>,
        name: Arc<NameMetrics>,
    ) -> Self {
        let fixed =
            [("runner", &*labels.runner), ("runner_name", &*labels.runner_name), ("system_id", &*labels.system_id)];
        let mut group = Group::new(registry, &fixed);
        let entry = Self {
            token,
            name,
            limit: group.gauge(&names::LIMIT),
            jobs: group.gauges(&names::JOBS),
            jobs_total: group.counter(&names::JOBS_TOTAL),
            job_duration: group.histograms(&names::JOB_DURATION),
            stage_duration: group.histograms(&names::JOB_STAGE_DURATION),
            queue_duration: group.histograms(&names::JOB_QUEUE_DURATION),
            queue_size: group.gauge(&names::JOB_QUEUE_SIZE),
            queue_depth: group.gauge(&names::JOB_QUEUE_DEPTH),
            feeds: group.counter(&names::WORKER_FEEDS),
            feed_failures: group.counter(&names::WORKER_FEED_FAILURES),
            processing_failures: group.counters(&names::WORKER_PROCESSING_FAILURES),
            health_check_failures: group.counter(&names::WORKER_HEALTH_CHECK_FAILURES),
            handover: group.histogram(&names::HANDOVER),
            job_cpu: group.histogram(&names::JOB_CPU),
            job_memory: group.histogram(&names::JOB_MEMORY),
            recovered: group.counter(&names::RECOVERED),
            waiting: group.gauge(&names::WAITING),
            unreported: group.gauge(&names::UNREPORTED),
            trace_bytes: group.counter(&names::TRACE_BYTES),
            trace_waiting: group.gauge(&names::TRACE_WAITING),
            report_retries: group.counter(&names::REPORT_RETRIES),
            group,
        };
        // From the first scrape on there is a series whose rise can be seen.
        for failure in ProcessingFailure::ALL {
            entry.processing_failures.with_label_values(&[failure.label()]);
        }
        entry
    }

    pub(super) fn unregister(&mut self) {
        self.group.unregister();
    }

    /// The metrics of the entry's token.
    #[must_use]
    pub fn token(&self) -> &Arc<TokenMetrics> {
        &self.token
    }

    /// The entry's `limit`; 0 is none.
    pub fn set_limit(&self, jobs: usize) {
        self.limit.set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    /// A job request was started.
    pub fn fed(&self) {
        self.feeds.inc();
    }

    /// It was the entry's turn, but it is not healthy.
    pub fn left_out(&self) {
        self.feed_failures.inc();
    }

    /// An answer that counts against the entry's health.
    pub fn unhealthy(&self) {
        self.health_check_failures.inc();
    }

    /// Something did not work out.
    pub fn failed_to_process(&self, failure: ProcessingFailure) {
        self.processing_failures.with_label_values(&[failure.label()]).inc();
    }

    /// An agent took a job so long after it was received.
    pub fn handed_over(&self, after: Duration) {
        self.handover.observe(after.as_secs_f64());
    }

    /// A job used so much, as far as it was counted.
    pub fn job_used(&self, cpu: Option<Duration>, memory_bytes: Option<u64>) {
        if let Some(cpu) = cpu {
            self.job_cpu.observe(cpu.as_secs_f64());
        }
        if let Some(bytes) = memory_bytes {
            self.job_memory.observe(bytes as f64);
        }
    }

    /// A job of an earlier start was taken up.
    pub fn recovered(&self) {
        self.recovered.inc();
    }

    /// An upload of a log or a state failed and is repeated.
    pub fn report_repeated(&self) {
        self.report_retries.inc();
    }

    /// Bytes of a job's log that wait for the server are now so many, and were so many before.
    pub fn trace_waits(&self, before: u64, now: u64) {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.trace_waiting.add(signed(now).saturating_sub(signed(before)));
    }

    /// The server has so many more bytes of a job's log.
    pub fn trace_acknowledged(&self, bytes: u64) {
        self.trace_bytes.inc_by(bytes);
    }
}

/// The metrics that leave the system id out: entries that differ in nothing else share them, as those of a job that was
/// taken under an earlier id do.
pub(super) struct NameMetrics {
    group: Group,
    pub(super) failed_jobs: IntCounterVec,
}

impl NameMetrics {
    pub(super) fn new(registry: &Registry, labels: &EntryLabels) -> Self {
        let mut group = Group::new(registry, &[("runner", &labels.runner), ("runner_name", &labels.runner_name)]);
        Self { failed_jobs: group.counters(&names::FAILED_JOBS), group }
    }

    pub(super) fn unregister(&mut self) {
        self.group.unregister();
    }
}

/// The metrics of one runner token at the server.
pub struct TokenMetrics {
    group: Group,
    requests: IntGauge,
    exceeded: IntCounter,
    hard_limit: IntGauge,
    adaptive_limit: Gauge,
    used_limit: IntGauge,
    statuses: IntCounterVec,
    durations: HistogramVec,
    heartbeat_age: Gauge,
    /// When the server last took something, or from when on it could have.
    heard: Mutex<Instant>,
}

impl TokenMetrics {
    pub(super) fn new(registry: &Registry, labels: &EntryLabels) -> Self {
        let mut group = Group::new(registry, &[("runner", &labels.runner), ("system_id", &labels.system_id)]);
        Self {
            requests: group.gauge(&names::REQUEST_CONCURRENCY),
            exceeded: group.counter(&names::REQUEST_CONCURRENCY_EXCEEDED),
            hard_limit: group.gauge(&names::REQUEST_CONCURRENCY_HARD_LIMIT),
            adaptive_limit: group.float_gauge(&names::REQUEST_CONCURRENCY_ADAPTIVE_LIMIT),
            used_limit: group.gauge(&names::REQUEST_CONCURRENCY_USED_LIMIT),
            statuses: group.counters(&names::API_STATUSES),
            durations: group.histograms(&names::API_DURATION),
            heartbeat_age: group.float_gauge(&names::HEARTBEAT_AGE),
            heard: Mutex::new(Instant::now()),
            group,
        }
    }

    pub(super) fn unregister(&mut self) {
        self.group.unregister();
    }

    /// Before a scrape: what time alone changes.
    pub(super) fn refresh(&self) {
        self.heartbeat_age.set(self.heard.lock().elapsed().as_secs_f64());
    }

    /// A job request is open until the answer is dropped.
    #[must_use]
    pub fn request(self: &Arc<Self>) -> OpenRequest {
        self.requests.inc();
        OpenRequest(Arc::clone(self))
    }

    /// A further request was wanted, and the limit forbade it.
    pub fn request_refused(&self) {
        self.exceeded.inc();
    }

    /// The limits of open requests: configured, wanted by the load, and in force.
    pub fn set_request_limits(&self, hard: usize, adaptive: f64, used: usize) {
        self.hard_limit.set(i64::try_from(hard).unwrap_or(i64::MAX));
        self.adaptive_limit.set(adaptive);
        self.used_limit.set(i64::try_from(used).unwrap_or(i64::MAX));
    }

    /// A call to the server ended. `endpoint` and `method` are of a fixed few; no status is no answer.
    pub fn called(&self, endpoint: &str, method: &str, status: Option<u16>, took: Duration) {
        if matches!(status, Some(200..300)) {
            // Job requests, logs and states are what a server knows by that its runner lives.
            *self.heard.lock() = Instant::now();
        }
        let method = method.to_ascii_lowercase();
        let text = status.map_or_else(|| "-1".to_owned(), |status| status.to_string());
        self.statuses.with_label_values(&[endpoint, &text, &method]).inc();
        let class = match status {
            Some(status @ 100..600) => format!("{}xx", status / 100),
            _ => "unknown".to_owned(),
        };
        self.durations.with_label_values(&[endpoint, &class, &method]).observe(took.as_secs_f64());
    }
}

/// A job request on its way.
pub struct OpenRequest(Arc<TokenMetrics>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.requests.dec();
    }
}
