//! Passes the logs of jobs to the reporter, according to `--log`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use muster_coordinator::views::JobView;
use muster_coordinator::{Coordinator, CoordinatorError};
use muster_job::{JobId, JobStatus};

use super::super::args::LogMode;
use super::super::ui;
use super::report::Reporter;
use super::trace::TraceLines;

const TAIL_LINES: usize = 50;

pub(super) struct Logs {
    coordinator: Arc<Coordinator>,
    mode: LogMode,
    timestamps: bool,
    run: u64,
    positions: HashMap<JobId, LogPosition>,
}

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
    /// [`CoordinatorError`] if the coordinator has stopped.
    pub(super) async fn trace_grew(
        &mut self,
        job: &JobView,
        reporter: &mut dyn Reporter,
    ) -> Result<(), CoordinatorError> {
        if self.mode == LogMode::Live {
            self.show(job, reporter).await?;
            // Live output does not wait for a possible continuation of the last line.
            let lines = self.entry(job.id).lines.take_held_line();
            report(reporter, job, &lines);
        }
        Ok(())
    }

    /// Reports the part of a finished job's log that the mode selects.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator has stopped.
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

    /// Reads the next part of a trace, and returns its lines. Returns `None` if the trace has no further bytes yet.
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

/// Appends lines, and returns how many were removed from the start.
fn keep_last(tail: &mut VecDeque<String>, lines: Vec<String>) -> usize {
    tail.extend(lines);
    let over = tail.len().saturating_sub(TAIL_LINES);
    tail.drain(..over);
    over
}

/// Returns a job's name if it needs no quoting in a shell, or else its ID.
fn job_argument(job: &JobView) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@+=,".contains(c);
    // The name finds only the last attempt of a job.
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
