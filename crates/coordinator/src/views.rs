//! What others see of pipelines and jobs: snapshots that hold no lock and stay as they were made.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, RunnerId};
use muster_pipeline::model::Job;
use serde::Serialize;

use crate::clock::{Timestamp, from_millis};
use crate::facts::{JobKind, Parent};
use crate::schedule::Child;
use crate::store::{ArtifactRow, JobRow, PipelineRow, RunnerRow};

/// A pipeline without its jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PipelineSummary {
    /// Its id.
    pub id: PipelineId,
    /// `workflow:name`.
    pub name: Option<String>,
    /// The composite status of its jobs (pipeline-yaml 5.3).
    pub status: JobStatus,
    /// It succeeded, but a job failed that may fail.
    pub warnings: bool,
    /// The bridge that made it.
    pub parent: Option<Parent>,
    /// The branch or tag.
    pub ref_name: String,
    /// The commit.
    pub sha: String,
    /// `CI_PIPELINE_SOURCE`.
    pub source: String,
    /// All stages in order.
    pub stages: Vec<String>,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: Timestamp,
    /// When its last job ended; none while something can still happen by itself.
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<Timestamp>,
    /// What the coordinator itself has to say: no space left, a child that could not be made.
    pub problems: Vec<String>,
}

/// A pipeline with its jobs, also those that a retry has replaced.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PipelineView {
    /// The pipeline.
    pub summary: PipelineSummary,
    /// Its jobs by id: creation order, retries last.
    pub jobs: Vec<JobView>,
}

impl PipelineView {
    /// The job of this name that counts: the newest one.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobView> {
        self.jobs.iter().rfind(|job| job.name == name)
    }
}

/// One job or bridge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobView {
    /// Its id.
    pub id: JobId,
    /// Its pipeline.
    pub pipeline: PipelineId,
    /// Its full name.
    pub name: String,
    /// Its stage.
    pub stage: String,
    /// Script or bridge.
    pub kind: JobKind,
    /// Where it stands.
    pub status: JobStatus,
    /// Its failure does not count, as far as that is known now.
    pub allow_failure: bool,
    /// The how-manieth record of this name in the pipeline, from 1.
    pub attempt: u32,
    /// A newer record of the same name has replaced it.
    pub retried: bool,
    /// When it was created.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: Timestamp,
    /// When it became pending.
    #[serde(with = "time::serde::rfc3339::option")]
    pub queued_at: Option<Timestamp>,
    /// When a runner took it.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<Timestamp>,
    /// When a delayed job becomes pending.
    #[serde(with = "time::serde::rfc3339::option")]
    pub scheduled_at: Option<Timestamp>,
    /// Who took it.
    pub runner: Option<RunnerView>,
    /// Why it failed.
    pub failure_reason: Option<FailureReason>,
    /// The reason in words, where the coordinator has more to say than the reason's name.
    pub message: Option<String>,
    /// What its script ended with, where the runner says so.
    pub exit_code: Option<i64>,
    /// Per cent, from the trace.
    pub coverage: Option<f64>,
    /// What it uploaded.
    pub artifacts: Vec<ArtifactView>,
    /// The runner's result tree.
    pub result_tree: Option<serde_json::Value>,
    /// Its environment.
    pub environment: Option<EnvironmentView>,
    /// The pipeline that the bridge made.
    pub downstream: Option<PipelineId>,
}

/// Who took a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunnerView {
    /// The runner.
    pub id: RunnerId,
    /// Its description.
    pub description: String,
    /// Which of its managers.
    pub system_id: String,
}

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArtifactView {
    /// `archive`, `junit`, `dotenv`, ...
    pub kind: String,
    /// `zip`, `gzip` or `raw`.
    pub format: String,
    /// Its name.
    pub filename: String,
    /// Bytes.
    pub size: u64,
    /// When it may be deleted.
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<Timestamp>,
}

/// A job's environment, with what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnvironmentView {
    /// Its name.
    pub name: String,
    /// Its URL, expanded with the job's variables and, after the job, its dotenv report.
    pub url: Option<String>,
    /// `start`, `prepare`, `stop`, `verify` or `access`.
    pub action: String,
}

/// A pending job that no runner can take (C198).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StuckJob {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Why: ``no runner has the tag `gpu` ``.
    pub why: String,
}

/// What happened. A receiver that lags reads the pipelines anew.
#[derive(Debug, Clone)]
pub enum Event {
    /// A job is new or changed.
    JobChanged(std::sync::Arc<JobView>),
    /// A pipeline is new or changed.
    PipelineChanged(std::sync::Arc<PipelineSummary>),
    /// A trace grew to `size` bytes.
    TraceGrew {
        /// The job.
        job: JobId,
        /// Bytes.
        size: u64,
    },
    /// The coordinator cannot store what happens; jobs wait, nothing is lost. `None`: it can again.
    StorageProblem(Option<String>),
}

/// A pipeline's row as others see it; `problem` is what keeps the coordinator from storing.
pub(crate) fn summary(row: &PipelineRow, problem: Option<&str>) -> PipelineSummary {
    let problem = problem.filter(|_| !row.status.is_complete());
    PipelineSummary {
        id: row.id,
        name: row.compiled.name.clone(),
        status: row.status,
        warnings: row.detail.warnings,
        parent: row.parent,
        ref_name: row.spec.ref_name().to_owned(),
        sha: row.spec.git.sha.clone(),
        source: row.spec.source().to_owned(),
        stages: row.compiled.stages.clone(),
        created_at: row.created_at,
        finished_at: row.finished_at,
        problems: row.detail.problems.iter().cloned().chain(problem.map(ToOwned::to_owned)).collect(),
    }
}

/// A job's row, with what belongs to it, as others see it.
pub(crate) fn job(
    row: &JobRow,
    compiled: Option<&Job>,
    artifacts: &[ArtifactRow],
    runner: Option<&RunnerRow>,
) -> JobView {
    let environment = compiled.and_then(|job| job.environment.as_ref()).map(|environment| EnvironmentView {
        name: environment.name.clone(),
        url: row.detail.environment_url.clone().or_else(|| environment.url.clone()),
        action: environment.action.clone(),
    });
    let state = &row.detail.state;
    JobView {
        id: row.id,
        pipeline: row.pipeline,
        name: row.name.clone(),
        stage: row.stage.clone(),
        kind: row.kind,
        status: state.status,
        allow_failure: state.allowed,
        attempt: row.attempt,
        retried: row.detail.retried,
        created_at: row.created_at,
        queued_at: row.queued_at,
        started_at: row.started_at,
        finished_at: row.finished_at,
        scheduled_at: state.timer_at.map(|at| from_millis(i64::try_from(at).unwrap_or(i64::MAX))),
        runner: row.runner.map(|id| RunnerView {
            id,
            description: runner.map(|runner| runner.settings.description.clone()).unwrap_or_default(),
            system_id: row.system_id.clone().unwrap_or_default(),
        }),
        failure_reason: row.failure_reason,
        message: row.detail.message.clone(),
        exit_code: row.exit_code,
        coverage: row.coverage,
        artifacts: artifacts.iter().map(artifact_view).collect(),
        result_tree: row.detail.result_tree.clone(),
        environment,
        downstream: match state.child {
            Some(Child::Here(pipeline)) => Some(pipeline),
            Some(Child::Elsewhere) | None => None,
        },
    }
}

fn artifact_view(row: &ArtifactRow) -> ArtifactView {
    ArtifactView {
        kind: row.kind.clone(),
        format: row.format.clone(),
        filename: row.filename.clone(),
        size: row.size,
        expires_at: row.expires_at,
    }
}
