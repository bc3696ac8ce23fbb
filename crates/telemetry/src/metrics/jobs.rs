//! The jobs that are under way: what `gitlab_runner_jobs` counts and `/debug/jobs/list` lists.

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

/// A label that comes from the server is cut here, so that nobody can fill memory with it.
const LABEL_MAX: usize = 32;

/// GitLab Runner's states of a job that is under way (runner-config 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum State {
    Pending,
    Running,
    Success,
    Failed,
    Canceled,
    Terminated,
    TimedOut,
}

impl State {
    /// The state's name.
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

    fn has_ended(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

/// What the manager does for a job just now, in GitLab Runner's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutorStage {
    /// Waits for an environment.
    Created,
    /// Has one; scripts run.
    Prepare,
    /// Reports.
    Finish,
    /// Cleans up.
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

/// The form in which a job's work is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `run:`
    Steps,
    /// `script:`
    Traditional,
}

impl Mode {
    /// The mode's name.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Steps => "steps",
            Self::Traditional => "traditional",
        }
    }
}

/// What is known of a job when it is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// The job's page, without credentials.
    pub url: String,
    /// How its work is written.
    pub mode: Mode,
    /// For how long it is under way already: an earlier start of the manager took it.
    pub age: Duration,
    /// Time in the server's queue.
    pub queued: Duration,
    /// The server's text about other jobs of the project.
    pub project_jobs_running: String,
    /// The server's figures about its queue, where it sends them.
    pub queue: Option<(i64, i64)>,
}

struct Row {
    entry: Arc<EntryMetrics>,
    url: String,
    state: State,
    stage: Cow<'static, str>,
    executor_stage: ExecutorStage,
    /// As many jobs run as may.
    waits: bool,
    since: Instant,
}

/// The jobs that are under way.
#[derive(Default)]
pub(super) struct Table {
    rows: Mutex<(u64, BTreeMap<u64, Row>)>,
}

impl Table {
    /// Sets the gauges anew that are counts of rows.
    pub(super) fn count(&self) {
        for row in self.rows.lock().1.values() {
            let stages = [row.state.label(), &*row.stage, row.executor_stage.label()];
            row.entry.jobs.with_label_values(&stages).inc();
            row.entry.waiting.add(i64::from(row.waits));
            row.entry.unreported.add(i64::from(row.state.has_ended()));
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

/// One job in the table. Dropped, the job is no longer under way, and its duration is known.
pub struct JobRecord {
    table: Arc<Table>,
    key: u64,
    entry: Arc<EntryMetrics>,
    log: Arc<LogState>,
    mode: Mode,
    since: Instant,
}

impl JobRecord {
    pub(super) fn new(table: &Arc<Table>, entry: &Arc<EntryMetrics>, log: &Arc<LogState>, facts: JobFacts) -> Self {
        entry.jobs_total.inc();
        let running: String = facts.project_jobs_running.chars().take(LABEL_MAX).collect();
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
            state: State::Pending,
            stage: Cow::Borrowed("prepare_executor"),
            executor_stage: ExecutorStage::Created,
            waits: false,
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

    /// The metrics of the job's entry.
    #[must_use]
    pub fn entry(&self) -> &Arc<EntryMetrics> {
        &self.entry
    }

    /// Time since the job was taken.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// Where the job stands.
    pub fn set_state(&self, state: State, executor_stage: ExecutorStage) {
        self.change(|row| (row.state, row.executor_stage) = (state, executor_stage));
    }

    /// What is being done for the job; `stage` is one of a bounded few.
    pub fn set_stage(&self, stage: impl Into<Cow<'static, str>>) {
        self.change(|row| row.stage = stage.into());
    }

    /// Whether the job waits because `concurrent` or `limit` is reached.
    pub fn set_waits(&self, waits: bool) {
        self.change(|row| row.waits = waits);
    }

    /// The job failed, and this reason is reported.
    pub fn failed(&self, reason: &str) {
        self.entry.name.failed_jobs.with_label_values(&[reason, self.mode.label()]).inc();
        self.entry.failed_to_process(ProcessingFailure::Job);
    }

    /// A stage of a job that asks for its stages to be told for each runner.
    pub fn stage_took(&self, stage: &str, seconds: f64) {
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
