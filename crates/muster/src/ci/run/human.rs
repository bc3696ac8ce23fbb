//! Reporter for humans: lines about jobs, a list of running jobs, and a summary.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use muster_coordinator::JobKind;
use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::{JobId, JobStatus};

use super::super::ui;
use super::report::{Reporter, RunInfo, RunResult, failure_message, job_duration};
use super::summary;

const MAX_RUNNING_LINES: usize = 12;
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
const MIN_NAME_WIDTH: usize = 12;
const MAX_NAME_WIDTH: usize = 40;
/// Width that is reserved for the text after a job's name.
const REST_WIDTH: usize = 16;

pub(super) struct Human {
    live: Option<Live>,
    total: usize,
    name_width: usize,
    jobs: BTreeMap<JobId, JobStatus>,
}

struct Live {
    lines: MultiProgress,
    header: ProgressBar,
    running: BTreeMap<JobId, ProgressBar>,
}

impl Live {
    fn new() -> Option<Self> {
        if !ui::is_interactive() {
            return None;
        }
        let lines = MultiProgress::new();
        let header = lines.add(ProgressBar::new_spinner());
        header.set_style(style("{spinner} {msg} {elapsed}"));
        header.enable_steady_tick(REFRESH_INTERVAL);
        Some(Self { lines, header, running: BTreeMap::new() })
    }

    fn start(&mut self, job: &JobView) {
        if self.running.len() >= MAX_RUNNING_LINES || self.running.contains_key(&job.id) {
            return;
        }
        let bar = self.lines.add(ProgressBar::new_spinner());
        bar.set_style(style("  {spinner:.cyan} {msg} {elapsed}"));
        bar.set_message(ui::fit(&ui::plain(&job.name), ui::width().saturating_sub(REST_WIDTH)));
        bar.enable_steady_tick(REFRESH_INTERVAL);
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

    fn print(&self, text: &str) {
        match &self.live {
            Some(live) => live.lines.suspend(|| ui::outln(text)),
            None => ui::outln(text),
        }
    }

    fn update_header(&self) {
        let Some(live) = &self.live else { return };
        let finished = self.jobs.values().filter(|status| status.is_complete()).count();
        let running = self.jobs.values().filter(|status| status.is_on_runner()).count();
        live.header.set_message(format!("{finished}/{} jobs, {running} running", self.total.max(self.jobs.len())));
    }

    fn name(&self, job: &JobView) -> String {
        let name = ui::fit(&ui::plain(&job.name), self.name_width.max(MIN_NAME_WIDTH));
        format!("{name:0$}", self.name_width)
    }

    fn line(&self, job: &JobView) -> Option<String> {
        let time = job_duration(job).map(ui::duration).unwrap_or_default();
        let name = self.name(job);
        let (style, sign, rest) = match job.status {
            JobStatus::Success => (ui::GOOD, "✓", time),
            JobStatus::Failed if job.allow_failure => {
                (ui::WARN, "!", format!("{time}  {} (allowed to fail)", failure_message(job).unwrap_or_default()))
            }
            JobStatus::Failed => (ui::BAD, "✗", format!("{time}  {}", failure_message(job).unwrap_or_default())),
            JobStatus::Canceled => (ui::WARN, "-", "canceled".to_owned()),
            JobStatus::Skipped => (ui::DIM, "-", "skipped".to_owned()),
            JobStatus::Running if self.live.is_none() && job.kind == JobKind::Script => {
                (ui::DIM, "…", "started".to_owned())
            }
            JobStatus::Scheduled => {
                let until = job
                    .scheduled_at
                    .map(|time| format!(" until {:02}:{:02}:{:02} UTC", time.hour(), time.minute(), time.second()));
                (ui::DIM, "…", format!("waiting{}", until.unwrap_or_default()))
            }
            _ => return None,
        };
        let retried = if job.retried { "  (retried)" } else { "" };
        Some(format!("{} {name}  {rest}{retried}", ui::paint(style, sign)).trim_end().to_owned())
    }
}

impl Reporter for Human {
    fn started(&mut self, run: &RunInfo<'_>) {
        self.total = run.pipeline.jobs.len();
        let names = run.pipeline.jobs.iter().map(|job| ui::plain(&job.name).chars().count());
        let max_width = ui::width().saturating_sub(REST_WIDTH).clamp(MIN_NAME_WIDTH, MAX_NAME_WIDTH);
        self.name_width = names.max().unwrap_or(0).min(max_width);
        let short = run.sha.get(..8).unwrap_or(run.sha);
        let dirty = if run.dirty { ", with uncommitted changes" } else { "" };
        let name = run.pipeline.name.as_deref().map(|name| format!(" {}", ui::plain(name))).unwrap_or_default();
        let event = format!("{} on {} ({short}{dirty})", run.source, ui::plain(run.ref_name));
        ui::outln(&format!(
            "{}  {}",
            ui::paint(ui::BOLD, &format!("run {}{name}", run.number)),
            ui::paint(ui::DIM, &event)
        ));
        self.live = Live::new();
        self.update_header();
    }

    fn pipeline(&mut self, pipeline: &PipelineSummary) {
        if pipeline.parent.is_some() && pipeline.status == JobStatus::Created {
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
        self.update_header();
    }

    fn log(&mut self, job: &JobView, lines: &[String]) {
        let prefix = ui::paint(ui::DIM, &format!("{} │", self.name(job)));
        let text: Vec<_> = lines.iter().map(|line| format!("{prefix} {line}\u{1b}[0m")).collect();
        self.print(&text.join("\n"));
    }

    fn warning(&mut self, text: &str) {
        match &self.live {
            Some(live) => live.lines.suspend(|| ui::warning(text)),
            None => ui::warning(text),
        }
    }

    fn finished(&mut self, result: &RunResult<'_>) {
        if let Some(live) = self.live.take() {
            live.running.values().for_each(ProgressBar::finish_and_clear);
            live.header.finish_and_clear();
        }
        ui::out(&summary::summary(result));
    }
}
