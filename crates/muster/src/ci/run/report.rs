use std::time::Duration;

use muster_agent_api::result::{ResourceUsage, StepNode};
use muster_coordinator::JobKind;
use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::{FailureReason, JobStatus};
use muster_pipeline::model::Pipeline;
use serde::Deserialize as _;

use super::super::args::OutputMode;
use super::super::error::ExitStatus;
use super::follow::RunView;
use super::{human, json, junit};

pub(super) struct RunInfo<'a> {
    pub(super) number: u64,
    pub(super) pipeline: &'a Pipeline,
    pub(super) ref_name: &'a str,
    pub(super) sha: &'a str,
    /// Whether there are uncommitted changes.
    pub(super) dirty: bool,
    pub(super) source: &'a str,
    pub(super) url: &'a str,
}

pub(super) struct RunResult<'a> {
    pub(super) status: ExitStatus,
    pub(super) elapsed: Duration,
    pub(super) view: &'a RunView,
    /// Jobs that determined the duration of the run, first to last.
    pub(super) critical_path: Vec<String>,
}

/// Shows the progress of a run. The methods are called in the order of the events.
pub(super) trait Reporter: Send {
    /// Called before the pipeline is created.
    fn started(&mut self, run: &RunInfo<'_>);
    fn pipeline(&mut self, pipeline: &PipelineSummary);
    fn job(&mut self, job: &JobView);
    fn log(&mut self, job: &JobView, lines: &[String]);
    fn warning(&mut self, text: &str);
    /// Called when the run has finished, or waits for manual jobs only.
    fn finished(&mut self, result: &RunResult<'_>);
}

pub(super) fn reporter(mode: OutputMode) -> Box<dyn Reporter> {
    match mode {
        OutputMode::Human => Box::new(human::Human::new()),
        OutputMode::Json => Box::new(json::Json),
        OutputMode::Junit => Box::new(junit::Junit::default()),
    }
}

/// Returns `None` if the job did not run or has not finished.
pub(in super::super) fn job_duration(job: &JobView) -> Option<Duration> {
    let time = job.finished_at? - job.started_at?;
    Some(Duration::try_from(time).unwrap_or_default())
}

/// Returns the tree of a job's step results, or `None` if the manager sent none in a known format.
pub(in super::super) fn tree_of(job: &JobView) -> Option<StepNode> {
    StepNode::deserialize(job.result_tree.as_deref()?).ok()
}

/// Returns `None` if the manager sent no tree, or measured no process of the job.
pub(in super::super) fn usage_of(job: &JobView) -> Option<ResourceUsage> {
    ResourceUsage::from_tree(job.result_tree.as_ref()?)
}

pub(in super::super) fn failure_message(job: &JobView) -> Option<String> {
    if job.status != JobStatus::Failed {
        return None;
    }
    let reason = job.failure_reason.map(|reason| reason.as_str().replace('_', " "));
    Some(match (&job.message, job.exit_code, reason) {
        (Some(message), ..) => message.clone(),
        (None, Some(code), _) => format!("exit status {code}"),
        // GitLab has no failure reason for this case.
        (None, None, _)
            if job.kind == JobKind::Bridge
                && job.downstream.is_some()
                && job.failure_reason == Some(FailureReason::UnknownFailure) =>
        {
            "the child pipeline failed".to_owned()
        }
        (None, None, Some(reason)) => match tree_of(job).filter(|tree| !tree.message.is_empty()) {
            Some(tree) if job.failure_reason == Some(FailureReason::RunnerSystemFailure) => {
                format!("{reason}: {}", tree.message)
            }
            _ => reason,
        },
        (None, None, None) => "failed".to_owned(),
    })
}
