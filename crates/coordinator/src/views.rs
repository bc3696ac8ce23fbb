//! Snapshots of pipelines and jobs for callers. A snapshot holds no lock and does not change.

use std::sync::Arc;

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
    /// ID of the pipeline.
    pub id: PipelineId,
    /// Value of `workflow:name`.
    pub name: Option<String>,
    /// Composite status of the jobs (docs/spec/pipeline-yaml.md, section 5.3).
    pub status: JobStatus,
    /// Whether a job that is allowed to fail has failed.
    pub warnings: bool,
    /// Bridge that started the pipeline. `None` if it has no parent.
    pub parent: Option<Parent>,
    /// Name of the branch or tag.
    pub ref_name: String,
    /// ID of the commit.
    pub sha: String,
    /// Value of `CI_PIPELINE_SOURCE`.
    pub source: String,
    /// All stages in order.
    pub stages: Vec<String>,
    /// Time of the creation.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: Timestamp,
    /// Time when the pipeline became complete. `None` while its status is not final.
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<Timestamp>,
    /// Reason why the store cannot be written, if it cannot. Always empty for a complete pipeline.
    pub problems: Vec<String>,
}

/// A pipeline with all its jobs, including the jobs that a retry has replaced.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PipelineView {
    /// The pipeline without its jobs.
    pub summary: PipelineSummary,
    /// Jobs ordered by ID, which is the order of their creation, so retries are last.
    pub jobs: Vec<JobView>,
}

impl PipelineView {
    /// Returns the newest job with this name.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<&JobView> {
        self.jobs.iter().rfind(|job| job.name == name)
    }
}

/// A job or bridge.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct JobView {
    /// ID of the job.
    pub id: JobId,
    /// ID of its pipeline.
    pub pipeline: PipelineId,
    /// Full name of the job.
    pub name: String,
    /// Stage of the job.
    pub stage: String,
    /// Script or bridge.
    pub kind: JobKind,
    /// Status of the job.
    pub status: JobStatus,
    /// Whether a failure is a warning. May change to true when the job fails with an allowed exit code.
    pub allow_failure: bool,
    /// Number of this attempt of the job, from 1.
    pub attempt: u32,
    /// Whether a newer attempt has replaced this attempt.
    pub retried: bool,
    /// Time of the creation.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: Timestamp,
    /// Time when the job became pending.
    #[serde(with = "time::serde::rfc3339::option")]
    pub queued_at: Option<Timestamp>,
    /// Time when the job was assigned, or when a bridge began to follow the pipeline that it started.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<Timestamp>,
    /// Time when the job ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<Timestamp>,
    /// Time when a delayed job becomes pending.
    #[serde(with = "time::serde::rfc3339::option")]
    pub scheduled_at: Option<Timestamp>,
    /// Runner that the job was assigned to.
    pub runner: Option<RunnerView>,
    /// Failure reason.
    pub failure_reason: Option<FailureReason>,
    /// Message from the coordinator that explains the failure.
    pub message: Option<String>,
    /// Exit code of the script, if the runner reported one.
    pub exit_code: Option<i64>,
    /// Coverage in percent, from the trace.
    pub coverage: Option<f64>,
    /// Files that the job uploaded.
    pub artifacts: Vec<ArtifactView>,
    /// Result tree that the runner reported.
    pub result_tree: Option<Arc<serde_json::Value>>,
    /// Environment of the job.
    pub environment: Option<EnvironmentView>,
    /// Pipeline that the bridge started.
    pub downstream: Option<PipelineId>,
}

/// The runner that a job was assigned to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunnerView {
    /// ID of the runner.
    pub id: RunnerId,
    /// Description of the runner.
    pub description: String,
    /// System ID of the runner manager.
    pub system_id: String,
}

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ArtifactView {
    /// Kind of the artifact: `archive`, `junit`, `dotenv`, ...
    pub kind: String,
    /// Format: `zip`, `gzip` or `raw`.
    pub format: String,
    /// Name of the file.
    pub filename: String,
    /// Size in bytes.
    pub size: u64,
    /// Time from which the file may be deleted. `None` means never.
    #[serde(with = "time::serde::rfc3339::option")]
    pub expires_at: Option<Timestamp>,
    /// Whether the file was deleted after it expired.
    pub deleted: bool,
}

/// The environment of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EnvironmentView {
    /// Name of the environment.
    pub name: String,
    /// URL. Until the job is assigned, this is the text of the configuration. Then it is expanded with the variables of the job, and after
    /// the end of the job also with the variables of its dotenv report.
    pub url: Option<String>,
    /// Action: `start`, `prepare`, `stop`, `verify` or `access`.
    pub action: String,
}

/// A pending job that no runner can run (docs/spec/pipeline-yaml.md, case C198).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StuckJob {
    /// ID of the job.
    pub job: JobId,
    /// Name of the job.
    pub name: String,
    /// Reason, such as ``no runner has the tag `gpu` ``.
    pub reason: String,
}

/// A change of a pipeline, a job, a trace or the store. A receiver that lags must read the pipelines again.
#[derive(Debug, Clone)]
pub enum Event {
    /// A job was created or changed.
    JobChanged(std::sync::Arc<JobView>),
    /// A pipeline was created or changed.
    PipelineChanged(std::sync::Arc<PipelineSummary>),
    /// A trace grew to `size` bytes.
    TraceGrew {
        /// ID of the job.
        job: JobId,
        /// Size in bytes.
        size: u64,
    },
    /// Reason why the store cannot be written, or why a trace cannot be written because the disk is full.
    ///
    /// `None` means that it can be written again. While it cannot, jobs wait, and no change is lost.
    StorageProblem(Option<String>),
}

/// Returns the snapshot of a pipeline. `problem` is the reason why the store cannot be written.
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
        problems: problem.map(ToOwned::to_owned).into_iter().collect(),
    }
}

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
        allow_failure: state.failure_allowed,
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
            Some(Child::SameProject(pipeline)) => Some(pipeline),
            Some(Child::OtherProject) | None => None,
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
        deleted: row.deleted,
    }
}
