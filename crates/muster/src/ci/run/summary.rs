use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_coordinator::schedule::{Graph, RunInterval, critical_path};
use muster_coordinator::views::JobView;
use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::Pipeline;

use super::super::error::ExitStatus;
use super::super::ui;
use super::follow::RunView;
use super::report::{RunResult, failure_message, job_duration};

/// Returns the names of the root pipeline's jobs that determined its duration, first to last.
pub(super) fn critical_jobs(pipeline: &Pipeline, root: PipelineId, view: &RunView) -> Vec<String> {
    let Ok(graph) = Graph::new(pipeline) else { return Vec::new() };
    let newest: BTreeMap<&str, &JobView> =
        view.current_jobs().filter(|job| job.pipeline == root).map(|job| (job.name.as_str(), &**job)).collect();
    let milliseconds = |time: time::OffsetDateTime| u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0);
    let intervals: Vec<_> = pipeline
        .jobs
        .iter()
        .map(|job| {
            let job_view = newest.get(job.name.as_str())?;
            Some(RunInterval { start: milliseconds(job_view.started_at?), end: milliseconds(job_view.finished_at?) })
        })
        .collect();
    let path = critical_path(&graph, &intervals);
    path.into_iter().filter_map(|index| pipeline.jobs.get(index).map(|job| job.name.clone())).collect()
}

pub(super) fn summary(result: &RunResult<'_>) -> String {
    let jobs: Vec<_> = result.view.current_jobs().collect();
    let mut text = String::from("\n");
    let failed: Vec<_> = jobs.iter().filter(|job| job.status == JobStatus::Failed).collect();
    for job in &failed {
        let (style, sign) = if job.allow_failure { (ui::WARN, "!") } else { (ui::BAD, "✗") };
        let name = ui::plain(&job.name);
        let reason = failure_message(job).unwrap_or_default();
        let _ = writeln!(text, "{} {name}: {}", ui::paint(style, sign), ui::plain(&reason));
    }
    if result.critical_path.len() > 1 {
        let steps = result.critical_path.iter().map(|name| {
            let time = jobs.iter().find(|job| &job.name == name).and_then(|job| job_duration(job));
            format!("{} {}", ui::plain(name), ui::paint(ui::DIM, &time.map(ui::duration).unwrap_or_default()))
        });
        let _ = writeln!(text, "{} {}", ui::paint(ui::DIM, "critical path:"), steps.collect::<Vec<_>>().join(" → "));
    }
    let waiting: Vec<_> =
        jobs.iter().filter(|job| job.status == JobStatus::Manual).map(|job| ui::plain(&job.name)).collect();
    if !waiting.is_empty() {
        let hint = "run one with `muster ci run JOB`";
        let _ = writeln!(text, "{} {} ({hint})", ui::paint(ui::DIM, "manual, not run:"), waiting.join(", "));
    }
    let (style, word) = match result.status {
        ExitStatus::Passed if result.view.is_blocked() => (ui::WARN, "blocked"),
        ExitStatus::Passed if failed.is_empty() => (ui::GOOD, "passed"),
        ExitStatus::Passed => (ui::WARN, "passed with warnings"),
        ExitStatus::Failed | ExitStatus::BadConfiguration => (ui::BAD, "failed"),
        ExitStatus::Canceled => (ui::WARN, "canceled"),
    };
    let _ = writeln!(text, "{} in {}: {}", ui::paint(style, word), ui::duration(result.elapsed), counts(&jobs));
    text
}

/// Returns the number of jobs by status, such as `3 passed, 1 failed`.
fn counts(jobs: &[&std::sync::Arc<JobView>]) -> String {
    let count = |predicate: &dyn Fn(&JobView) -> bool| jobs.iter().filter(|job| predicate(job)).count();
    let parts = [
        (count(&|job| job.status == JobStatus::Success), "passed"),
        (count(&|job| job.status == JobStatus::Failed && !job.allow_failure), "failed"),
        (count(&|job| job.status == JobStatus::Failed && job.allow_failure), "allowed to fail"),
        (count(&|job| job.status == JobStatus::Canceled), "canceled"),
        (count(&|job| job.status == JobStatus::Skipped), "skipped"),
        (count(&|job| job.status == JobStatus::Manual), "manual"),
        (count(&|job| !job.status.is_complete() && job.status != JobStatus::Manual), "not started"),
    ];
    let texts: Vec<_> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    if texts.is_empty() { "no jobs".to_owned() } else { texts.join(", ") }
}
