//! What a run tells to the outside, in three forms: for people, as JSON lines, as a JUnit report.

use std::time::Duration;

use muster_agent_api::result::{ResourceUsage, StepNode};
use muster_coordinator::JobKind;
use muster_coordinator::views::{JobView, PipelineSummary};
use muster_job::{FailureReason, JobStatus};
use muster_pipeline::model::Pipeline;

use super::super::args::OutputMode;
use super::super::error::ExitStatus;
use super::follow::Picture;
use super::{human, json, junit};

/// What the run is about.
pub(super) struct RunInfo<'a> {
    /// The number of the run.
    pub(super) number: u64,
    pub(super) pipeline: &'a Pipeline,
    pub(super) ref_name: &'a str,
    pub(super) sha: &'a str,
    /// Whether there are changes that are not committed.
    pub(super) dirty: bool,
    pub(super) source: &'a str,
    /// The base URL of the runner API.
    pub(super) url: &'a str,
}

/// The end of a run.
pub(super) struct Ending<'a> {
    pub(super) status: ExitStatus,
    pub(super) elapsed: Duration,
    pub(super) picture: &'a Picture,
    /// The names of the jobs that the end waited for, first to last.
    pub(super) critical_path: Vec<String>,
}

/// Shows a run. Calls come in the order in which things happened.
pub(super) trait Reporter: Send {
    /// The pipeline exists.
    fn started(&mut self, run: &RunInfo<'_>);
    /// A pipeline is new or has another status.
    fn pipeline(&mut self, pipeline: &PipelineSummary);
    /// A job is new or has another status.
    fn job(&mut self, job: &JobView);
    /// Lines of a job's log.
    fn log(&mut self, job: &JobView, lines: &[String]);
    /// Something that the user should know.
    fn warning(&mut self, text: &str);
    /// Nothing more happens.
    fn finished(&mut self, ending: &Ending<'_>);
}

/// The reporter for an output mode.
pub(super) fn reporter(mode: OutputMode) -> Box<dyn Reporter> {
    match mode {
        OutputMode::Human => Box::new(human::Human::new()),
        OutputMode::Json => Box::new(json::Json),
        OutputMode::Junit => Box::new(junit::Junit::default()),
    }
}

/// How long a job ran, if it did.
pub(in super::super) fn job_time(job: &JobView) -> Option<Duration> {
    let time = job.finished_at? - job.started_at?;
    Some(Duration::try_from(time).unwrap_or_default())
}

/// The tree of a job's steps, where its manager sent one.
pub(in super::super) fn tree_of(job: &JobView) -> Option<StepNode> {
    job.result_tree.clone().and_then(|tree| serde_json::from_value(tree).ok())
}

/// What a job used, where its manager said.
pub(in super::super) fn used_by(job: &JobView) -> Option<ResourceUsage> {
    ResourceUsage::from_tree(job.result_tree.as_ref()?)
}

/// Why a job failed, in a few words; none for one that did not.
pub(in super::super) fn failure(job: &JobView) -> Option<String> {
    if job.status != JobStatus::Failed {
        return None;
    }
    let reason = job.failure_reason.map(|reason| reason.as_str().replace('_', " "));
    Some(match (&job.message, job.exit_code, reason) {
        (Some(message), ..) => message.clone(),
        (None, Some(code), _) => format!("exit status {code}"),
        // GitLab has no reason of its own for it.
        (None, None, _)
            if job.kind == JobKind::Bridge
                && job.downstream.is_some()
                && job.failure_reason == Some(FailureReason::UnknownFailure) =>
        {
            "its child pipeline failed".to_owned()
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
