//! Table of the current jobs, for the metric `gitlab_runner_jobs` and the endpoint `/debug/jobs/list`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use muster_job::go_duration;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::entry::{EntryMetrics, ProcessingFailure};
use crate::logs::LogState;

/// Maximum number of characters of a label value from the coordinator. Longer values could exhaust memory.
const MAX_LABEL_CHARS: usize = 32;

/// State of a current job, with gitlab-runner's names (docs/spec/runner-config.md, section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum JobMetricState {
    Pending,
    Running,
    Success,
    Failed,
    Canceled,
    Terminated,
    TimedOut,
}

impl JobMetricState {
    /// Returns the name of the state.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Terminated => "terminated",
            Self::TimedOut => "timedout",
        }
    }
}

/// What the manager is doing for a job, with gitlab-runner's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutorStage {
    /// Waiting for an execution environment.
    Created,
    /// Running scripts in the environment. gitlab-runner's stage `prepare` lasts until the scripts end.
    Prepare,
    /// Reporting the result.
    Finish,
    /// Cleaning up.
    Cleanup,
}

impl ExecutorStage {
    fn label(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Prepare => "prepare",
            Self::Finish => "finish",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Whether a job is defined by steps or by scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionMode {
    /// The job uses `run:`.
    Steps,
    /// The job uses `script:`.
    Traditional,
}

impl ExecutionMode {
    /// Returns the name of the mode.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Traditional => "traditional",
        }
    }
}

/// Facts about a job that was received.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// URL of the job's page, without credentials.
    pub url: String,
    /// Whether the job uses steps or scripts.
    pub mode: ExecutionMode,
    /// Time since the job was received, if an earlier manager process received it. Otherwise zero.
    pub age: Duration,
    /// Time in the coordinator's queue.
    pub queued: Duration,
    /// Number of running jobs of the project, as text from the coordinator such as `+Inf`.
    pub project_jobs_running: String,
    /// Size and depth of the coordinator's queue. `None` means that the coordinator did not send them.
    pub queue: Option<(i64, i64)>,
}

struct Row {
    entry: Arc<EntryMetrics>,
    url: String,
    state: JobMetricState,
    stage: Cow<'static, str>,
    executor_stage: ExecutorStage,
    /// Whether the job waits because `concurrent` or `limit` is reached.
    is_waiting: bool,
    since: Instant,
}

#[derive(Default)]
pub(super) struct Table {
    /// The last key that was given to a row, and the rows by their keys.
    rows: Mutex<(u64, BTreeMap<u64, Row>)>,
}

impl Table {
    /// Adds the rows to the gauges that count jobs. The caller has reset these gauges.
    pub(super) fn count(&self) {
        for row in self.rows.lock().1.values() {
            let stages = [row.state.label(), &*row.stage, row.executor_stage.label()];
            row.entry.jobs.with_label_values(&stages).inc();
            row.entry.waiting.add(i64::from(row.is_waiting));
            row.entry.unreported.add(i64::from(row.executor_stage == ExecutorStage::Finish));
        }
    }

    pub(super) fn list(&self) -> String {
        let mut text = String::new();
        for row in self.rows.lock().1.values() {
            let (url, state, stage) = (&row.url, row.state.label(), &row.stage);
            let (executor, duration) = (row.executor_stage.label(), go_duration(row.since.elapsed()));
            // Writing to a string cannot fail.
            let _ =
                writeln!(text, "url={url} state={state} stage={stage} executor_stage={executor} duration={duration}");
        }
        text
    }
}

/// A job in the table. Dropping it removes the job and records its duration.
pub struct JobRecord {
    table: Arc<Table>,
    key: u64,
    entry: Arc<EntryMetrics>,
    log: Arc<LogState>,
    mode: ExecutionMode,
    since: Instant,
}

impl JobRecord {
    pub(super) fn new(table: &Arc<Table>, entry: &Arc<EntryMetrics>, log: &Arc<LogState>, facts: JobFacts) -> Self {
        entry.jobs_total.inc();
        let running: String = facts.project_jobs_running.chars().take(MAX_LABEL_CHARS).collect();
        entry.queue_duration.with_label_values(&[&*running]).observe(facts.queued.as_secs_f64());
        if let Some((size, depth)) = facts.queue {
            entry.queue_size.set(size);
            entry.queue_depth.set(depth);
        }
        let now = Instant::now();
        let since = now.checked_sub(facts.age).unwrap_or(now);
        let row = Row {
            entry: Arc::clone(entry),
            url: facts.url,
            state: JobMetricState::Pending,
            stage: Cow::Borrowed("prepare_executor"),
            executor_stage: ExecutorStage::Created,
            is_waiting: false,
            since,
        };
        let mut rows = table.rows.lock();
        rows.0 += 1;
        let key = rows.0;
        rows.1.insert(key, row);
        drop(rows);
        log.job_added();
        Self { table: Arc::clone(table), key, entry: Arc::clone(entry), log: Arc::clone(log), mode: facts.mode, since }
    }

    /// Returns the metrics of the job's entry.
    #[must_use]
    pub fn entry(&self) -> &Arc<EntryMetrics> {
        &self.entry
    }

    /// Returns the time since the job was received.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Sets the state of the job and what the manager is doing for it.
    pub fn set_state(&self, state: JobMetricState, executor_stage: ExecutorStage) {
        self.change(|row| (row.state, row.executor_stage) = (state, executor_stage));
    }

    /// Sets the build stage. `stage` must come from a small fixed set.
    pub fn set_stage(&self, stage: impl Into<Cow<'static, str>>) {
        self.change(|row| row.stage = stage.into());
    }

    /// Sets whether the job waits because `concurrent` or `limit` is reached.
    pub fn set_waiting(&self, is_waiting: bool) {
        self.change(|row| row.is_waiting = is_waiting);
    }

    /// Counts a failed job by the reason that is reported.
    pub fn record_failure(&self, reason: &str) {
        self.entry.name_metrics.failed_jobs.with_label_values(&[reason, self.mode.label()]).inc();
        self.entry.failed_to_process(ProcessingFailure::Job);
    }

    /// Records the duration of a stage per runner, for entries with `FF_EXPORT_HIGH_CARDINALITY_METRICS` in their
    /// `feature_flags`.
    pub fn record_stage(&self, stage: &str, seconds: f64) {
        self.entry.stage_duration.with_label_values(&[stage]).observe(seconds);
    }

    fn change(&self, change: impl FnOnce(&mut Row)) {
        if let Some(row) = self.table.rows.lock().1.get_mut(&self.key) {
            change(row);
        }
    }
}

impl Drop for JobRecord {
    fn drop(&mut self) {
        self.table.rows.lock().1.remove(&self.key);
        self.log.job_removed();
        self.entry.job_duration.with_label_values(&[self.mode.label()]).observe(self.since.elapsed().as_secs_f64());
    }
}
