//! Reporter for humans: lines about jobs, a list of running jobs, and a summary.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
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
    /// Lines of running jobs.
    running: BTreeMap<JobId, ProgressBar>,
    /// Lines of other running jobs, which are shown when one of the first jobs ends.
    hidden: VecDeque<(JobId, ProgressBar)>,
}

impl Live {
    fn new(lines: MultiProgress) -> Self {
        let header = lines.add(ProgressBar::new_spinner());
        header.set_style(style("{spinner} {msg} {elapsed}"));
        header.enable_steady_tick(REFRESH_INTERVAL);
        Self { lines, header, running: BTreeMap::new(), hidden: VecDeque::new() }
    }

    fn start(&mut self, job: &JobView) {
        if self.running.contains_key(&job.id) || self.hidden.iter().any(|(hidden, _)| *hidden == job.id) {
            return;
        }
        // The line shows the time since its creation, so it is created even if it is not shown yet.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style("  {spinner:.cyan} {msg} {elapsed}"));
        bar.set_message(ui::fit(&ui::plain(&job.name), ui::width().saturating_sub(REST_WIDTH)));
        self.hidden.push_back((job.id, bar));
        self.show_hidden();
    }

    fn end(&mut self, job: JobId) {
        self.hidden.retain(|(hidden, _)| *hidden != job);
        if let Some(bar) = self.running.remove(&job) {
            bar.finish_and_clear();
            self.lines.remove(&bar);
        }
        self.show_hidden();
    }

    fn show_hidden(&mut self) {
        while self.running.len() < MAX_RUNNING_LINES
            && let Some((job, bar)) = self.hidden.pop_front()
        {
            let bar = self.lines.add(bar);
            bar.enable_steady_tick(REFRESH_INTERVAL);
            self.running.insert(job, bar);
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
        let message = || ui::plain(&failure_message(job).unwrap_or_default());
        let (style, sign, rest) = match job.status {
            JobStatus::Success => (ui::GOOD, "✓", time),
            JobStatus::Failed if job.allow_failure => {
                (ui::WARN, "!", format!("{time}  {} (allowed to fail)", message()))
            }
            JobStatus::Failed => (ui::BAD, "✗", format!("{time}  {}", message())),
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
        self.live = ui::is_interactive().then(|| Live::new(MultiProgress::new()));
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

#[cfg(test)]
mod tests {
    use muster_job::PipelineId;

    use super::*;

    fn job(id: i64) -> JobView {
        JobView {
            id: JobId(id),
            pipeline: PipelineId(1),
            name: format!("job {id}"),
            stage: "test".to_owned(),
            kind: JobKind::Script,
            status: JobStatus::Running,
            allow_failure: false,
            attempt: 1,
            retried: false,
            created_at: time::OffsetDateTime::UNIX_EPOCH,
            queued_at: None,
            started_at: None,
            finished_at: None,
            scheduled_at: None,
            runner: None,
            failure_reason: None,
            message: None,
            exit_code: None,
            coverage: None,
            artifacts: Vec::new(),
            result_tree: None,
            environment: None,
            downstream: None,
        }
    }

    #[test]
    fn hidden_job_gets_the_line_of_a_job_that_ended() {
        let mut live = Live::new(MultiProgress::with_draw_target(ProgressDrawTarget::hidden()));
        let ids = 1..=i64::try_from(MAX_RUNNING_LINES).unwrap() + 2;
        ids.clone().for_each(|id| live.start(&job(id)));
        live.start(&job(*ids.end()));
        let shown = |live: &Live| live.running.keys().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(shown(&live), (1..=12).collect::<Vec<_>>());
        live.end(JobId(13));
        live.end(JobId(1));
        live.end(JobId(2));
        assert_eq!(shown(&live), (3..=12).chain([14]).collect::<Vec<_>>());
    }

    #[test]
    fn message_of_a_failed_job_sends_no_commands_to_the_terminal() {
        for allow_failure in [false, true] {
            let failed = JobView {
                status: JobStatus::Failed,
                message: Some("no \u{1b}[2J".to_owned()),
                allow_failure,
                ..job(1)
            };
            let line = Human::new().line(&failed).unwrap();
            assert!(line.contains("no \u{fffd}[2J"), "{line:?}");
        }
    }
}
