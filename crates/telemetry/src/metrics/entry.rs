//! Metrics of a `[[runners]]` entry, and of its token.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use tokio::time::Instant;

use super::metric_set::MetricSet;
use crate::names;

/// Labels of a `[[runners]]` entry. They must not contain secrets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct EntryLabels {
    /// Short form of the token.
    pub runner: String,
    /// Name of the entry.
    pub runner_name: String,
    /// System ID of the manager.
    pub system_id: String,
}

/// Metrics of a `[[runners]]` entry. The series are exposed while a caller holds a reference to this value.
pub struct EntryMetrics {
    set: MetricSet,
    pub(super) token: Arc<TokenMetrics>,
    pub(super) name_metrics: Arc<NameMetrics>,
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
    dispatch: Histogram,
    job_cpu: Histogram,
    job_memory: Histogram,
    recovered: IntCounter,
    pub(super) waiting: IntGauge,
    pub(super) unreported: IntGauge,
    trace_bytes: IntCounter,
    trace_pending: IntGauge,
    report_retries: IntCounter,
}

/// Reason why a job or a request failed, with gitlab-runner's names (docs/spec/runner-config.md, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessingFailure {
    /// No execution environment was available.
    NoFreeExecutor,
    /// The job failed.
    Job,
    /// Any other reason.
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
        name_metrics: Arc<NameMetrics>,
    ) -> Self {
        let fixed =
            [("runner", &*labels.runner), ("runner_name", &*labels.runner_name), ("system_id", &*labels.system_id)];
        let mut set = MetricSet::new(registry, &fixed);
        let entry = Self {
            token,
            name_metrics,
            limit: set.gauge(&names::LIMIT),
            jobs: set.gauges(&names::JOBS),
            jobs_total: set.counter(&names::JOBS_TOTAL),
            job_duration: set.histograms(&names::JOB_DURATION),
            stage_duration: set.histograms(&names::JOB_STAGE_DURATION),
            queue_duration: set.histograms(&names::JOB_QUEUE_DURATION),
            queue_size: set.gauge(&names::JOB_QUEUE_SIZE),
            queue_depth: set.gauge(&names::JOB_QUEUE_DEPTH),
            feeds: set.counter(&names::WORKER_FEEDS),
            feed_failures: set.counter(&names::WORKER_FEED_FAILURES),
            processing_failures: set.counters(&names::WORKER_PROCESSING_FAILURES),
            health_check_failures: set.counter(&names::WORKER_HEALTH_CHECK_FAILURES),
            dispatch: set.histogram(&names::DISPATCH),
            job_cpu: set.histogram(&names::JOB_CPU),
            job_memory: set.histogram(&names::JOB_MEMORY),
            recovered: set.counter(&names::RECOVERED),
            waiting: set.gauge(&names::WAITING),
            unreported: set.gauge(&names::UNREPORTED),
            trace_bytes: set.counter(&names::TRACE_BYTES),
            trace_pending: set.gauge(&names::TRACE_PENDING),
            report_retries: set.counter(&names::REPORT_RETRIES),
            set,
        };
        // Create the series at 0, so that the rate that Prometheus computes includes the first failure.
        for failure in ProcessingFailure::ALL {
            entry.processing_failures.with_label_values(&[failure.label()]);
        }
        entry
    }

    pub(super) fn unregister(&mut self) {
        self.set.unregister();
    }

    /// Returns the metrics of the entry's token.
    #[must_use]
    pub fn token(&self) -> &Arc<TokenMetrics> {
        &self.token
    }

    /// Sets the entry's `limit`. 0 means no limit.
    pub fn set_limit(&self, jobs: usize) {
        self.limit.set(i64::try_from(jobs).unwrap_or(i64::MAX));
    }

    /// Counts a job request that was started.
    pub fn poll_started(&self) {
        self.feeds.inc();
    }

    /// Counts a period in which the entry requests no jobs, because the coordinator rejected it repeatedly.
    pub fn poll_skipped(&self) {
        self.feed_failures.inc();
    }

    /// Counts a failed job request, which gitlab-runner treats as a failed health check of the entry.
    pub fn health_check_failed(&self) {
        self.health_check_failures.inc();
    }

    /// Counts a job or a request that failed.
    pub fn failed_to_process(&self, failure: ProcessingFailure) {
        self.processing_failures.with_label_values(&[failure.label()]).inc();
    }

    /// Records the time between the receipt of a job and its start on an agent.
    pub fn record_dispatch(&self, duration: Duration) {
        self.dispatch.observe(duration.as_secs_f64());
    }

    /// Records the resource usage of a job. `None` means that a value was not measured.
    pub fn record_job_usage(&self, cpu: Option<Duration>, memory_bytes: Option<u64>) {
        if let Some(cpu) = cpu {
            self.job_cpu.observe(cpu.as_secs_f64());
        }
        if let Some(bytes) = memory_bytes {
            self.job_memory.observe(bytes as f64);
        }
    }

    /// Counts a job of an earlier manager process that was resumed.
    pub fn job_recovered(&self) {
        self.recovered.inc();
    }

    /// Counts an upload of a trace or a status that failed and is retried.
    pub fn report_retried(&self) {
        self.report_retries.inc();
    }

    /// Updates the number of a job's trace bytes that the coordinator has not acknowledged, from `before` to `now`.
    pub fn set_trace_pending(&self, before: u64, now: u64) {
        let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.trace_pending.add(signed(now).saturating_sub(signed(before)));
    }

    /// Counts trace bytes that the coordinator has acknowledged.
    pub fn trace_acknowledged(&self, bytes: u64) {
        self.trace_bytes.inc_by(bytes);
    }
}

/// Metrics without the label `system_id`. Entries that differ only in their system ID share them.
pub(super) struct NameMetrics {
    set: MetricSet,
    pub(super) failed_jobs: IntCounterVec,
}

impl NameMetrics {
    pub(super) fn new(registry: &Registry, labels: &EntryLabels) -> Self {
        let mut set = MetricSet::new(registry, &[("runner", &labels.runner), ("runner_name", &labels.runner_name)]);
        Self { failed_jobs: set.counters(&names::FAILED_JOBS), set }
    }

    pub(super) fn unregister(&mut self) {
        self.set.unregister();
    }
}

/// Metrics of a runner token.
pub struct TokenMetrics {
    set: MetricSet,
    requests: IntGauge,
    exceeded: IntCounter,
    hard_limit: IntGauge,
    adaptive_limit: Gauge,
    used_limit: IntGauge,
    statuses: IntCounterVec,
    durations: HistogramVec,
    last_contact_age: Gauge,
    /// Time of the last successful call to the coordinator, or of the creation of these metrics.
    last_contact: Mutex<Instant>,
}

impl TokenMetrics {
    pub(super) fn new(registry: &Registry, labels: &EntryLabels) -> Self {
        let mut set = MetricSet::new(registry, &[("runner", &labels.runner), ("system_id", &labels.system_id)]);
        Self {
            requests: set.gauge(&names::REQUEST_CONCURRENCY),
            exceeded: set.counter(&names::REQUEST_CONCURRENCY_EXCEEDED),
            hard_limit: set.gauge(&names::REQUEST_CONCURRENCY_HARD_LIMIT),
            adaptive_limit: set.float_gauge(&names::REQUEST_CONCURRENCY_ADAPTIVE_LIMIT),
            used_limit: set.gauge(&names::REQUEST_CONCURRENCY_USED_LIMIT),
            statuses: set.counters(&names::API_STATUSES),
            durations: set.histograms(&names::API_DURATION),
            last_contact_age: set.float_gauge(&names::LAST_CONTACT_AGE),
            last_contact: Mutex::new(Instant::now()),
            set,
        }
    }

    pub(super) fn unregister(&mut self) {
        self.set.unregister();
    }

    /// Updates the gauges that change with time. Called before each scrape.
    pub(super) fn refresh(&self) {
        self.last_contact_age.set(self.last_contact.lock().elapsed().as_secs_f64());
    }

    /// Counts an open job request until the returned guard is dropped.
    #[must_use]
    pub fn count_open_request(self: &Arc<Self>) -> OpenRequest {
        self.requests.inc();
        OpenRequest(Arc::clone(self))
    }

    /// Counts a job request that was not sent because of the limit for open requests.
    pub fn request_prevented(&self) {
        self.exceeded.inc();
    }

    /// Sets the limits for open requests: the configured one, the one that the load requires, and the one in effect.
    pub fn set_request_limits(&self, hard: usize, adaptive: f64, used: usize) {
        self.hard_limit.set(i64::try_from(hard).unwrap_or(i64::MAX));
        self.adaptive_limit.set(adaptive);
        self.used_limit.set(i64::try_from(used).unwrap_or(i64::MAX));
    }

    /// Records a completed call to the coordinator. A `status` of `None` means that there was no response.
    ///
    /// `endpoint` and `method` must come from small fixed sets.
    pub fn record_call(&self, endpoint: &str, method: &str, status: Option<u16>, duration: Duration) {
        if matches!(status, Some(200..300)) {
            *self.last_contact.lock() = Instant::now();
        }
        let method = method.to_ascii_lowercase();
        let text = status.map_or_else(|| "-1".to_owned(), |status| status.to_string());
        self.statuses.with_label_values(&[endpoint, &text, &method]).inc();
        let class = match status {
            Some(status @ 100..600) => format!("{}xx", status / 100),
            _ => "unknown".to_owned(),
        };
        self.durations.with_label_values(&[endpoint, &class, &method]).observe(duration.as_secs_f64());
    }
}

/// Guard of an open job request.
pub struct OpenRequest(Arc<TokenMetrics>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.requests.dec();
    }
}
