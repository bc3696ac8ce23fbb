//! Metrics in Prometheus' text format 0.0.4, with GitLab Runner's names.
//!
//! Always that format, whatever a scraper accepts, as GitLab Runner: in OpenMetrics the gauge `gitlab_runner_jobs` and
//! the counter `gitlab_runner_jobs_total` would be one name.
//!
//! Cardinality: the series of a `[[runners]]` entry are there while the entry, or a job of it, is. Every other label is
//! of a fixed few values, or cut to a few bytes. No label holds a secret: runners are named by their short token.

mod entry;
mod group;
mod jobs;
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
use group::Group;
use process::ProcessMetrics;

use entry::NameMetrics;
pub use entry::{EntryLabels, EntryMetrics, OpenRequest, ProcessingFailure, TokenMetrics};
pub use jobs::{ExecutorStage, JobFacts, JobRecord, Mode, State};

pub use source::{Family, FamilyKind, Sample, Source};

use jobs::Table;
use source::Sources;

/// What a scrape is answered with.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    log: Arc<LogState>,
    table: Arc<Table>,
    /// Also keeps two scrapes apart, which set the same gauges.
    entries: Mutex<Entries>,
    concurrent: IntGauge,
    slots: IntGauge,
    slot_operations: IntCounterVec,
    execution_mode: IntCounterVec,
    process_state: IntGaugeVec,
    loaded: [IntCounter; 2],
    saved: [IntCounter; 2],
    stage: HistogramVec,
    store: HistogramVec,
    interpolations: IntCounter,
    interpolation_failures: IntCounterVec,
    spans: IntCounterVec,
    process: ProcessMetrics,
    sources: Sources,
}

/// Why a job's inputs could not be put into its texts (runner-config 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputFailure {
    /// The input itself is not what it is to be.
    Parse,
    /// A text names an input that the job does not have.
    Evaluation,
    /// The input is sensitive.
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
    /// By `runner` and `system_id`.
    by_token: HashMap<(String, String), Arc<TokenMetrics>>,
    /// By `runner` and `runner_name`.
    by_name: HashMap<(String, String), Arc<NameMetrics>>,
}

impl Metrics {
    /// The metrics of a process that is this build and logs to `log`.
    #[must_use]
    pub fn new(build: &Build, log: &Arc<LogState>) -> Self {
        let registry = Registry::new();
        let mut group = Group::new(&registry, &[]);
        group.keep(log.errors().clone());
        let version = group.gauges(&names::VERSION);
        let (os, architecture) = (std::env::consts::OS, go_architecture());
        let Build { name, version: number, revision, branch, built_at } = build;
        // There is no Go in this program: the label says so, since queries may expect that it is there.
        version.with_label_values(&[name, number, revision, branch, "none", built_at, os, architecture]).set(1);
        let slot_operations = group.counters(&names::WORKER_SLOT_OPERATIONS);
        for operation in ["started", "stopped"] {
            slot_operations.with_label_values(&[operation]);
        }
        let interpolation_failures = group.counters(&names::INPUTS_INTERPOLATION_FAILURES);
        for kind in InputFailure::ALL {
            interpolation_failures.with_label_values(&[kind.label()]);
        }
        Self {
            concurrent: group.gauge(&names::CONCURRENT),
            slots: group.gauge(&names::WORKER_SLOTS),
            slot_operations,
            execution_mode: group.counters(&names::JOB_EXECUTION_MODE),
            process_state: group.gauges(&names::PROCESS_STATE),
            loaded: [group.counter(&names::CONFIGURATION_LOADING_ERROR), group.counter(&names::CONFIGURATION_LOADED)],
            saved: [group.counter(&names::CONFIGURATION_SAVING_ERROR), group.counter(&names::CONFIGURATION_SAVED)],
            stage: group.histograms(&names::STAGE),
            store: group.histograms(&names::STORE),
            interpolations: group.counter(&names::INPUTS_INTERPOLATIONS),
            interpolation_failures,
            spans: group.counters(&names::SPANS),
            process: ProcessMetrics::new(&mut group),
            sources: Sources::default(),
            log: Arc::clone(log),
            table: Arc::default(),
            entries: Mutex::default(),
            registry,
        }
    }

    /// The metrics of an entry. The same labels share them.
    pub fn entry(&self, labels: &EntryLabels) -> Arc<EntryMetrics> {
        let mut entries = self.entries.lock();
        entries.forget_unused();
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

    /// A job of `entry` was taken.
    pub fn job(&self, entry: &Arc<EntryMetrics>, facts: JobFacts) -> JobRecord {
        JobRecord::new(&self.table, entry, &self.log, facts)
    }

    /// The process may run so many jobs at once.
    pub fn set_concurrent(&self, jobs: usize) {
        let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
        let before = self.slots.get();
        let operation = if jobs > before { "started" } else { "stopped" };
        self.slot_operations.with_label_values(&[operation]).inc_by(jobs.abs_diff(before));
        self.concurrent.set(jobs);
        self.slots.set(jobs);
        self.log.set_max_builds(jobs);
    }

    /// A job starts whose work is in this form, with this executor.
    pub fn job_started(&self, mode: Mode, executor: &str) {
        let executor = if executor.is_empty() { "unknown" } else { executor };
        self.execution_mode.with_label_values(&[mode.label(), executor]).inc();
    }

    /// The configuration was loaded, or could not be.
    pub fn configuration_loaded(&self, worked: bool) {
        self.loaded[usize::from(worked)].inc();
    }

    /// This process wrote the configuration, or could not.
    pub fn configuration_saved(&self, worked: bool) {
        self.saved[usize::from(worked)].inc();
    }

    /// A stage of a job took so long; `stage` is one of a bounded few.
    pub fn stage_took(&self, stage: &str, seconds: f64) {
        self.stage.with_label_values(&[stage]).observe(seconds);
    }

    /// A write to the manager's state took so long.
    pub fn stored(&self, operation: &str, took: Duration) {
        self.store.with_label_values(&[operation]).observe(took.as_secs_f64());
    }

    /// Inputs were put into so many texts of a job.
    pub fn inputs_put_in(&self, texts: u64) {
        self.interpolations.inc_by(texts);
    }

    /// A job's inputs could not be put in.
    pub fn inputs_failed(&self, kind: InputFailure) {
        self.interpolation_failures.with_label_values(&[kind.label()]).inc();
    }

    /// So many spans were `exported`, `refused` or `dropped`; `result` is one of these.
    pub fn spans(&self, result: &str, count: usize) {
        self.spans.with_label_values(&[result]).inc_by(count as u64);
    }

    /// The jobs under way, a line for each (runner-config 3.1, list version 2).
    #[must_use]
    pub fn list_jobs(&self) -> String {
        self.table.list()
    }

    /// Exposes what `source` counts too, as long as it lives.
    pub fn add_source(&self, source: Weak<dyn Source>) {
        self.sources.add(source);
    }

    /// Everything, as a scrape is answered, while the process is in `state`.
    #[must_use]
    pub fn text(&self, state: ProcessState) -> String {
        let mut entries = self.entries.lock();
        entries.forget_unused();
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
        families.extend(self.sources.gather().into_values());
        // The encoder refuses a family without numbers, and writes nothing that comes after it.
        families.retain(|family| !family.get_metric().is_empty());
        families.sort_by(|one, other| one.name().cmp(other.name()));
        if let Err(error) = TextEncoder::new().encode_utf8(&families, &mut text) {
            tracing::error!(%error, "metrics cannot be written");
        }
        text
    }
}

impl Entries {
    /// Takes out what only this table holds: nobody can add to it any more.
    fn forget_unused(&mut self) {
        self.by_labels.retain(|_, entry| Arc::get_mut(entry).map(EntryMetrics::unregister).is_none());
        self.by_token.retain(|_, token| Arc::get_mut(token).map(TokenMetrics::unregister).is_none());
        self.by_name.retain(|_, name| Arc::get_mut(name).map(NameMetrics::unregister).is_none());
    }
}

/// The architecture's name in Go, which is the one that dashboards have.
fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
