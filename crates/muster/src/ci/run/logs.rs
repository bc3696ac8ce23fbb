//! Passes the logs of jobs to the reporter: live, whole, or only the last lines of failed jobs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use muster_coordinator::views::JobView;
use muster_coordinator::{Coordinator, CoordinatorError};
use muster_job::{JobId, JobStatus};

use super::super::args::LogMode;
use super::super::ui;
use super::report::Reporter;
use super::trace::TraceLines;

/// Number of lines of a failed job's log that `--log tail` shows.
const TAIL_LINES: usize = 50;

/// Reads and reports logs according to `--log`.
pub(super) struct Logs {
    coordinator: Arc<Coordinator>,
    mode: LogMode,
    timestamps: bool,
    /// Number of the run, for commands in hints.
    run: u64,
    positions: HashMap<JobId, LogPosition>,
}

/// Position in a job's trace up to which it was read.
struct LogPosition {
    offset: u64,
    lines: TraceLines,
}

impl Logs {
    pub(super) fn new(coordinator: Arc<Coordinator>, mode: LogMode, timestamps: bool, run: u64) -> Self {
        Self { coordinator, mode, timestamps, run, positions: HashMap::new() }
    }

    /// Reports new lines of a job whose trace grew, if logs are shown live.
    ///
    /// # Errors
    /// Returns [`CoordinatorError`] if the coordinator has stopped.
    pub(super) async fn trace_grew(
        &mut self,
        job: &JobView,
        reporter: &mut dyn Reporter,
    ) -> Result<(), CoordinatorError> {
        if self.mode == LogMode::Live {
            self.show(job, reporter).await?;
            // The last complete line is held back, because the next line may continue it. Live output does not wait for that.
            let lines = self.entry(job.id).lines.take_held();
            report(reporter, job, &lines);
        }
        Ok(())
    }

    /// Reports the part of a finished job's log that the mode selects, including a last line without a line break.
    ///
    /// # Errors
    /// Returns [`CoordinatorError`] if the coordinator has stopped.
    pub(super) async fn finished(
        &mut self,
        job: &JobView,
        reporter: &mut dyn Reporter,
    ) -> Result<(), CoordinatorError> {
        let failed = job.status == JobStatus::Failed;
        match self.mode {
            LogMode::Tail if failed => self.show_tail(job, reporter).await?,
            LogMode::Failed if !failed => {}
            LogMode::Live | LogMode::All | LogMode::Failed => {
                self.show(job, reporter).await?;
                let lines = self.entry(job.id).lines.finish();
                report(reporter, job, &lines);
            }
            LogMode::Tail | LogMode::None => {}
        }
        self.positions.remove(&job.id);
        Ok(())
    }

    fn entry(&mut self, job: JobId) -> &mut LogPosition {
        let timestamps = self.timestamps;
        self.positions
            .entry(job)
            .or_insert_with(|| LogPosition { offset: 0, lines: TraceLines::with_times(timestamps) })
    }

    /// Returns the new lines of a job's log. `None` if the whole trace so far was read.
    async fn next_lines(&mut self, job: JobId) -> Result<Option<Vec<String>>, CoordinatorError> {
        let offset = self.entry(job).offset;
        let bytes = self.coordinator.read_trace(job, offset).await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let position = self.entry(job);
        position.offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(Some(position.lines.push(&bytes)))
    }

    async fn show(&mut self, job: &JobView, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        while let Some(lines) = self.next_lines(job.id).await? {
            report(reporter, job, &lines);
        }
        Ok(())
    }

    async fn show_tail(&mut self, job: &JobView, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        let mut tail = VecDeque::new();
        let mut omitted = 0;
        while let Some(lines) = self.next_lines(job.id).await? {
            omitted += keep_last(&mut tail, lines);
        }
        let rest = self.entry(job.id).lines.finish();
        omitted += keep_last(&mut tail, rest);
        if omitted > 0 {
            let s = if omitted == 1 { "" } else { "s" };
            let hint =
                format!("… {omitted} earlier line{s}: `muster ci show {} {} --log`", self.run, job_argument(job));
            tail.push_front(ui::paint(ui::DIM, &hint));
        }
        report(reporter, job, tail.make_contiguous());
        Ok(())
    }
}

/// Adds lines to the tail. Returns how many lines were removed from its start.
fn keep_last(tail: &mut VecDeque<String>, lines: Vec<String>) -> usize {
    tail.extend(lines);
    let over = tail.len().saturating_sub(TAIL_LINES);
    tail.drain(..over);
    over
}

/// Returns a job's name if it needs no quoting in a shell, or else its ID.
fn job_argument(job: &JobView) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@+=,".contains(c);
    // A job that was replaced by a retry is found only by its ID.
    let by_name = !job.retried && !job.name.is_empty() && !job.name.starts_with('-') && job.name.chars().all(is_plain);
    if by_name { job.name.clone() } else { job.id.to_string() }
}

fn report(reporter: &mut dyn Reporter, job: &JobView, lines: &[String]) {
    if !lines.is_empty() {
        reporter.log(job, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_has_the_last_lines() {
        let lines = |range: std::ops::Range<u32>| range.map(|number| number.to_string()).collect::<Vec<_>>();
        let mut tail = VecDeque::new();
        let omitted: usize =
            [0..30, 30..31, 31..200, 200..220].map(|range| keep_last(&mut tail, lines(range))).iter().sum();
        assert_eq!((omitted, tail.len()), (170, 50));
        assert_eq!((tail.front().unwrap().as_str(), tail.back().unwrap().as_str()), ("170", "219"));
    }
}
