//! The logs of jobs on their way to the reader: live, whole, or only the end of what failed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use muster_coordinator::views::JobView;
use muster_coordinator::{Coordinator, CoordinatorError};
use muster_job::{JobId, JobStatus};

use super::super::args::LogMode;
use super::super::ui;
use super::report::Reporter;
use super::trace::TraceLines;

/// Lines of a failed job's log that `--log tail` shows.
const TAIL_LINES: usize = 50;

/// Shows logs.
pub(super) struct Logs {
    coordinator: Arc<Coordinator>,
    mode: LogMode,
    timestamps: bool,
    /// The number of the run, for what a reader may type.
    run: u64,
    shown: HashMap<JobId, Shown>,
}

/// How much of a job's trace was shown.
struct Shown {
    offset: u64,
    lines: TraceLines,
}

impl Logs {
    pub(super) fn new(coordinator: Arc<Coordinator>, mode: LogMode, timestamps: bool, run: u64) -> Self {
        Self { coordinator, mode, timestamps, run, shown: HashMap::new() }
    }

    /// A job's trace grew: shows what has come since the last time, if that is wanted.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator is gone.
    pub(super) async fn grew(&mut self, job: &JobView, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        if self.mode == LogMode::Live {
            self.show(job, reporter).await?;
            let lines = self.entry(job.id).lines.settle();
            tell(reporter, job, &lines);
        }
        Ok(())
    }

    /// A job has ended: shows what is wanted of its log, also a last line without a line break.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator is gone.
    pub(super) async fn ended(&mut self, job: &JobView, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        let failed = job.status == JobStatus::Failed;
        match self.mode {
            LogMode::Tail if failed => self.show_tail(job, reporter).await?,
            LogMode::Failed if !failed => {}
            LogMode::Live | LogMode::All | LogMode::Failed => {
                self.show(job, reporter).await?;
                let lines = self.entry(job.id).lines.finish();
                tell(reporter, job, &lines);
            }
            LogMode::Tail | LogMode::None => {}
        }
        self.shown.remove(&job.id);
        Ok(())
    }

    fn entry(&mut self, job: JobId) -> &mut Shown {
        let timestamps = self.timestamps;
        self.shown.entry(job).or_insert_with(|| Shown { offset: 0, lines: TraceLines::with_times(timestamps) })
    }

    /// The lines that have come since the last time; none at the end.
    async fn next_lines(&mut self, job: JobId) -> Result<Option<Vec<String>>, CoordinatorError> {
        let offset = self.entry(job).offset;
        let bytes = self.coordinator.read_trace(job, offset).await?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let shown = self.entry(job);
        shown.offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Ok(Some(shown.lines.push(&bytes)))
    }

    async fn show(&mut self, job: &JobView, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        while let Some(lines) = self.next_lines(job.id).await? {
            tell(reporter, job, &lines);
        }
        Ok(())
    }

    async fn show_tail(&mut self, job: &JobView, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        let mut tail = VecDeque::new();
        let mut left_out = 0;
        while let Some(lines) = self.next_lines(job.id).await? {
            left_out += keep_last(&mut tail, lines);
        }
        let rest = self.entry(job.id).lines.finish();
        left_out += keep_last(&mut tail, rest);
        if left_out > 0 {
            let hint = format!("… {left_out} lines more: `muster ci show {} {} --log`", self.run, word(job));
            tail.push_front(ui::paint(ui::DIM, &hint));
        }
        tell(reporter, job, tail.make_contiguous());
        Ok(())
    }
}

/// Adds lines, and says how many of the oldest had to go.
fn keep_last(tail: &mut VecDeque<String>, lines: Vec<String>) -> usize {
    tail.extend(lines);
    let over = tail.len().saturating_sub(TAIL_LINES);
    tail.drain(..over);
    over
}

/// A job as it can be typed into a shell.
fn word(job: &JobView) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@+=,".contains(c);
    // An older record of a job that was tried again is found by its id only.
    let by_name = !job.retried && !job.name.is_empty() && !job.name.starts_with('-') && job.name.chars().all(plain);
    if by_name { job.name.clone() } else { job.id.to_string() }
}

fn tell(reporter: &mut dyn Reporter, job: &JobView, lines: &[String]) {
    if !lines.is_empty() {
        reporter.log(job, lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines_whatever_the_pieces() {
        let lines = |range: std::ops::Range<u32>| range.map(|number| number.to_string()).collect::<Vec<_>>();
        let mut tail = VecDeque::new();
        let left_out: usize =
            [0..30, 30..31, 31..200, 200..220].map(|range| keep_last(&mut tail, lines(range))).iter().sum();
        assert_eq!((left_out, tail.len()), (170, 50));
        assert_eq!((tail.front().unwrap().as_str(), tail.back().unwrap().as_str()), ("170", "219"));
    }
}
