//! Progress for people: a line per finished job, the running ones below on a terminal, a summary at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use muster_coordinator::JobKind;
use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::{JobId, JobStatus};

use super::super::ui;
use super::report::{Ending, Reporter, RunInfo, failure, job_time};
use super::summary;

/// So many running jobs have a line of their own.
const LINES_MAX: usize = 12;
/// How often the clocks of running jobs move.
const TICK: Duration = Duration::from_millis(100);
/// Columns of a job's name, at least and at most.
const NAME_WIDTH_MIN: usize = 12;
const NAME_WIDTH_MAX: usize = 40;
/// Columns of what stands beside a name.
const REST_WIDTH: usize = 16;

/// Prints lines, and shows running jobs on a terminal.
pub(super) struct Human {
    live: Option<Live>,
    /// Jobs of the pipeline, for the counter and the width of names.
    total: usize,
    name_width: usize,
    /// The last known status of each job.
    jobs: BTreeMap<JobId, JobStatus>,
}

/// The lines at the bottom of a terminal.
struct Live {
    lines: MultiProgress,
    head: ProgressBar,
    running: BTreeMap<JobId, ProgressBar>,
}

impl Live {
    fn new() -> Option<Self> {
        if !ui::is_interactive() {
            return None;
        }
        let lines = MultiProgress::new();
        let head = lines.add(ProgressBar::new_spinner());
        head.set_style(style("{spinner} {msg} {elapsed}"));
        head.enable_steady_tick(TICK);
        Some(Self { lines, head, running: BTreeMap::new() })
    }

    fn start(&mut self, job: &JobView) {
        if self.running.len() >= LINES_MAX || self.running.contains_key(&job.id) {
            return;
        }
        let bar = self.lines.add(ProgressBar::new_spinner());
        bar.set_style(style("  {spinner:.cyan} {msg} {elapsed}"));
        bar.set_message(ui::fit(&ui::plain(&job.name), ui::width().saturating_sub(16)));
        bar.enable_steady_tick(TICK);
        self.running.insert(job.id, bar);
    }

    fn end(&mut self, job: JobId) {
        if let Some(bar) = self.running.remove(&job) {
            bar.finish_and_clear();
            self.lines.remove(&bar);
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

impl Human {
    pub(super) fn new() -> Self {
        Self { live: None, total: 0, name_width: 0, jobs: BTreeMap::new() }
    }

    /// Prints without tearing the lines at the bottom.
    fn print(&self, text: &str) {
        match &self.live {
            Some(live) => live.lines.suspend(|| ui::outln(text)),
            None => ui::outln(text),
        }
    }

    fn show_head(&self) {
        let Some(live) = &self.live else { return };
        let ended = self.jobs.values().filter(|status| status.is_complete()).count();
        let running = self.jobs.values().filter(|status| status.is_on_runner()).count();
        live.head.set_message(format!("{ended}/{} jobs, {running} running", self.total.max(self.jobs.len())));
    }

    /// The name of a job, as wide as the others.
    fn name(&self, job: &JobView) -> String {
        let name = ui::fit(&ui::plain(&job.name), self.name_width.max(NAME_WIDTH_MIN));
        format!("{name:0$}", self.name_width)
    }

    fn line(&self, job: &JobView) -> Option<String> {
        let time = job_time(job).map(ui::duration).unwrap_or_default();
        let name = self.name(job);
        let (style, sign, rest) = match job.status {
            JobStatus::Success => (ui::GOOD, "✓", time),
            JobStatus::Failed if job.allow_failure => {
                (ui::WARN, "!", format!("{time}  {} (allowed to fail)", failure(job).unwrap_or_default()))
            }
            JobStatus::Failed => (ui::BAD, "✗", format!("{time}  {}", failure(job).unwrap_or_default())),
            JobStatus::Canceled => (ui::WARN, "-", "cancelled".to_owned()),
            JobStatus::Skipped => (ui::DIM, "-", "skipped".to_owned()),
            JobStatus::Running if self.live.is_none() && job.kind == JobKind::Script => {
                (ui::DIM, "…", "started".to_owned())
            }
            JobStatus::Scheduled => {
                let at = job
                    .scheduled_at
                    .map(|at| format!(" until {:02}:{:02}:{:02} UTC", at.hour(), at.minute(), at.second()));
                (ui::DIM, "…", format!("waits{}", at.unwrap_or_default()))
            }
            _ => return None,
        };
        let again = if job.retried { "  (tried again)" } else { "" };
        Some(format!("{} {name}  {rest}{again}", ui::paint(style, sign)).trim_end().to_owned())
    }
}

impl Reporter for Human {
    fn started(&mut self, run: &RunInfo<'_>) {
        self.total = run.pipeline.jobs.len();
        let names = run.pipeline.jobs.iter().map(|job| ui::plain(&job.name).chars().count());
        // Beside the name stand a sign, the time and often a reason.
        let room = ui::width().saturating_sub(REST_WIDTH).clamp(NAME_WIDTH_MIN, NAME_WIDTH_MAX);
        self.name_width = names.max().unwrap_or(0).min(room);
        let short = run.sha.get(..8).unwrap_or(run.sha);
        let dirty = if run.dirty { ", with uncommitted changes" } else { "" };
        let name = run.pipeline.name.as_deref().map(|name| format!(" {}", ui::plain(name))).unwrap_or_default();
        let what = format!("{} on {} ({short}{dirty})", run.source, ui::plain(run.ref_name));
        ui::outln(&format!(
            "{}  {}",
            ui::paint(ui::BOLD, &format!("run {}{name}", run.number)),
            ui::paint(ui::DIM, &what)
        ));
        self.live = Live::new();
        self.show_head();
    }

    fn pipeline(&mut self, pipeline: &PipelineSummary) {
        if pipeline.parent.is_some() && !pipeline.status.is_complete() && pipeline.status == JobStatus::Created {
            let name = pipeline.name.as_deref().map(|name| format!(" {}", ui::plain(name))).unwrap_or_default();
            self.print(&ui::paint(ui::DIM, &format!("… child pipeline {}{name}", pipeline.id)));
        }
    }

    fn job(&mut self, job: &JobView) {
        self.jobs.insert(job.id, job.status);
        if let Some(live) = &mut self.live {
            match job.status {
                JobStatus::Running | JobStatus::Canceling => live.start(job),
                _ => live.end(job.id),
            }
        }
        if let Some(line) = self.line(job) {
            self.print(&line);
        }
        self.show_head();
    }

    fn log(&mut self, job: &JobView, lines: &[String]) {
        let mark = ui::paint(ui::DIM, &format!("{} │", self.name(job)));
        let text: Vec<_> = lines.iter().map(|line| format!("{mark} {line}\u{1b}[0m")).collect();
        self.print(&text.join("\n"));
    }

    fn warning(&mut self, text: &str) {
        match &self.live {
            Some(live) => live.lines.suspend(|| ui::warning(text)),
            None => ui::warning(text),
        }
    }

    fn finished(&mut self, ending: &Ending<'_>) {
        if let Some(live) = self.live.take() {
            live.running.values().for_each(ProgressBar::finish_and_clear);
            live.head.finish_and_clear();
        }
        ui::out(&summary::summary(ending));
    }
}
