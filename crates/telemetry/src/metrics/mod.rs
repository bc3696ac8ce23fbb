//! Metrics in Prometheus' text format 0.0.4, with gitlab-runner's names.
//!
//! OpenMetrics is not offered: there, the gauge `gitlab_runner_jobs` and the counter `gitlab_runner_jobs_total` would
//! be one metric.
//!
//! Cardinality is bounded: the series of a `[[runners]]` entry exist only while the entry or one of its jobs exists,
//! and all other labels have few values or are truncated. No label contains a secret.

mod entry;
mod jobs;
mod metric_set;
mod process;
mod source;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder};

use crate::Build;
use crate::logs::LogState;
use crate::names;
use crate::state::ProcessState;
use metric_set::MetricSet;
use process::ProcessMetrics;

use entry::NameMetrics;
pub use entry::{EntryLabels, EntryMetrics, OpenRequest, ProcessingFailure, TokenMetrics};
pub use jobs::{ExecutionMode, ExecutorStage, JobFacts, JobMetricState, JobRecord};

pub use source::Source;

use jobs::Table;
use source::Sources;

/// Content type of the response to a scrape.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    log: Arc<LogState>,
    table: Arc<Table>,
    /// The lock also serializes scrapes, which update the same gauges.
    entries: Mutex<Entries>,
    concurrent: IntGauge,
    slots: IntGauge,
    slot_operations: IntCounterVec,
    execution_mode: IntCounterVec,
    process_state: IntGaugeVec,
    /// Failed and successful attempts to load the configuration.
    loaded: [IntCounter; 2],
    /// Failed and successful attempts to write the configuration.
    saved: [IntCounter; 2],
    stage: HistogramVec,
    state_writes: HistogramVec,
    interpolations: IntCounter,
    interpolation_failures: IntCounterVec,
    spans: IntCounterVec,
    process: ProcessMetrics,
    sources: Sources,
}

/// Reason why the interpolation of a job's inputs failed (docs/spec/runner-config.md, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFailure {
    /// The value of an input is not valid.
    Parse,
    /// A text refers to an input that the job does not have.
    Evaluation,
    /// The input is sensitive, which is not supported.
    SensitiveUnsupported,
}

impl InputFailure {
    const ALL: [Self; 3] = [Self::Parse, Self::Evaluation, Self::SensitiveUnsupported];

    fn label(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Evaluation => "evaluation",
            Self::SensitiveUnsupported => "sensitive_unsupported",
        }
    }
}

#[derive(Default)]
struct Entries {
    by_labels: HashMap<EntryLabels, Arc<EntryMetrics>>,
    /// Keys are `runner` and `system_id`.
    by_token: HashMap<(String, String), Arc<TokenMetrics>>,
    /// Keys are `runner` and `runner_name`.
    by_name: HashMap<(String, String), Arc<NameMetrics>>,
}

impl Metrics {
    /// Creates the metrics of a process. `log` is the state of its log.
    #[must_use]
    pub fn new(build: &Build, log: &Arc<LogState>) -> Self {
        let registry = Registry::new();
        let mut set = MetricSet::new(&registry, &[]);
        set.register(log.errors().clone());
        let version = set.gauges(&names::VERSION);
        let (os, architecture) = (muster_job::go_os(), muster_job::go_architecture());
        let &Build { name, version: number, revision, branch, built_at } = build;
        // Queries may expect the label `go_version`, although this program contains no Go.
        version.with_label_values(&[name, number, revision, branch, "none", built_at, os, architecture]).set(1);
        let slot_operations = set.counters(&names::WORKER_SLOT_OPERATIONS);
        for operation in ["started", "stopped"] {
            slot_operations.with_label_values(&[operation]);
        }
        let interpolation_failures = set.counters(&names::INPUTS_INTERPOLATION_FAILURES);
        for kind in InputFailure::ALL {
            interpolation_failures.with_label_values(&[kind.label()]);
        }
        Self {
            concurrent: set.gauge(&names::CONCURRENT),
            slots: set.gauge(&names::WORKER_SLOTS),
            slot_operations,
            execution_mode: set.counters(&names::JOB_EXECUTION_MODE),
            process_state: set.gauges(&names::PROCESS_STATE),
            loaded: [set.counter(&names::CONFIGURATION_LOADING_ERROR), set.counter(&names::CONFIGURATION_LOADED)],
            saved: [set.counter(&names::CONFIGURATION_SAVING_ERROR), set.counter(&names::CONFIGURATION_SAVED)],
            stage: set.histograms(&names::STAGE),
            state_writes: set.histograms(&names::STATE_WRITE),
            interpolations: set.counter(&names::INPUTS_INTERPOLATIONS),
            interpolation_failures,
            spans: set.counters(&names::SPANS),
            process: ProcessMetrics::new(&mut set),
            sources: Sources::default(),
            log: Arc::clone(log),
            table: Arc::default(),
            entries: Mutex::default(),
            registry,
        }
    }

    /// Returns the metrics of an entry. Entries with the same labels share them.
    pub fn entry(&self, labels: &EntryLabels) -> Arc<EntryMetrics> {
        let mut entries = self.entries.lock();
        entries.remove_unused();
        let Entries { by_labels, by_token, by_name } = &mut *entries;
        let entry = by_labels.entry(labels.clone()).or_insert_with(|| {
            let token = by_token
                .entry((labels.runner.clone(), labels.system_id.clone()))
                .or_insert_with(|| Arc::new(TokenMetrics::new(&self.registry, labels)));
            let name = by_name
                .entry((labels.runner.clone(), labels.runner_name.clone()))
                .or_insert_with(|| Arc::new(NameMetrics::new(&self.registry, labels)));
            Arc::new(EntryMetrics::new(&self.registry, labels, Arc::clone(token), Arc::clone(name)))
        });
        Arc::clone(entry)
    }

    /// Adds a job of `entry` to the current jobs.
    pub fn job(&self, entry: &Arc<EntryMetrics>, facts: JobFacts) -> JobRecord {
        JobRecord::new(&self.table, entry, &self.log, facts)
    }

    /// Sets the maximum number of concurrent jobs of the process.
    pub fn set_concurrent(&self, jobs: usize) {
        let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
        let before = self.slots.get();
        let operation = if jobs > before { "started" } else { "stopped" };
        self.slot_operations.with_label_values(&[operation]).inc_by(jobs.abs_diff(before));
        self.concurrent.set(jobs);
        self.slots.set(jobs);
        self.log.set_max_builds(jobs);
    }

    /// Counts a started job by its mode and executor.
    pub fn job_started(&self, mode: ExecutionMode, executor: &str) {
        let executor = if executor.is_empty() { "unknown" } else { executor };
        self.execution_mode.with_label_values(&[mode.label(), executor]).inc();
    }

    /// Counts an attempt to load the configuration, by its success.
    pub fn configuration_loaded(&self, succeeded: bool) {
        let [failed, loaded] = &self.loaded;
        if succeeded { loaded } else { failed }.inc();
    }

    /// Counts an attempt of this process to write the configuration, by its success.
    pub fn configuration_saved(&self, succeeded: bool) {
        let [failed, saved] = &self.saved;
        if succeeded { saved } else { failed }.inc();
    }

    /// Records the duration of a build stage. `stage` must come from a small fixed set.
    pub fn record_stage(&self, stage: &str, seconds: f64) {
        self.stage.with_label_values(&[stage]).observe(seconds);
    }

    /// Records the duration of a write to the manager's state.
    pub fn state_written(&self, operation: &str, duration: Duration) {
        self.state_writes.with_label_values(&[operation]).observe(duration.as_secs_f64());
    }

    /// Counts texts of a job in which inputs were interpolated.
    pub fn inputs_interpolated(&self, texts: u64) {
        self.interpolations.inc_by(texts);
    }

    /// Counts a job whose inputs could not be interpolated.
    pub fn inputs_failed(&self, kind: InputFailure) {
        self.interpolation_failures.with_label_values(&[kind.label()]).inc();
    }

    /// Counts spans by result: `exported`, `refused` or `dropped`.
    pub fn record_spans(&self, result: &str, count: usize) {
        self.spans.with_label_values(&[result]).inc_by(count as u64);
    }

    /// Returns the current jobs, one per line (docs/spec/runner-config.md, section 3.1, list version 2).
    #[must_use]
    pub fn list_jobs(&self) -> String {
        self.table.list()
    }

    /// Adds a source of metrics, which is exposed until it is dropped.
    pub fn add_source(&self, source: Weak<dyn Source>) {
        self.sources.add(source);
    }

    /// Returns the response to a scrape. `state` is the current state of the process.
    #[must_use]
    pub fn text(&self, state: ProcessState) -> String {
        let mut entries = self.entries.lock();
        entries.remove_unused();
        self.process.refresh();
        self.process_state.reset();
        self.process_state.with_label_values(&[state.label()]).set(1);
        for entry in entries.by_labels.values() {
            entry.jobs.reset();
            entry.jobs.with_label_values(&["idle", "idle", "idle"]);
            entry.waiting.set(0);
            entry.unreported.set(0);
        }
        entries.by_token.values().for_each(|token| token.refresh());
        self.table.count();
        let mut text = String::new();
        let mut families = self.registry.gather();
        families.extend(self.sources.gather());
        // The encoder returns an error for a family without metrics and writes no further families.
        families.retain(|family| !family.get_metric().is_empty());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        if let Err(error) = TextEncoder::new().encode_utf8(&families, &mut text) {
            tracing::error!(%error, "failed to encode metrics");
        }
        text
    }
}

impl Entries {
    /// Unregisters metrics that no caller refers to anymore.
    fn remove_unused(&mut self) {
        self.by_labels.retain(|_, entry| Arc::get_mut(entry).map(EntryMetrics::unregister).is_none());
        self.by_token.retain(|_, token| Arc::get_mut(token).map(TokenMetrics::unregister).is_none());
        self.by_name.retain(|_, name| Arc::get_mut(name).map(NameMetrics::unregister).is_none());
    }
}
