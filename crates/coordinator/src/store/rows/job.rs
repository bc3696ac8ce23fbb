//! Rows of jobs and of their artifacts.

use std::sync::Arc;

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, RunnerId, Variable};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::facts::JobKind;
use crate::schedule::{JobRef, JobState};

/// One attempt of a job or bridge. Each attempt has its own ID.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobRow {
    pub(crate) id: JobId,
    pub(crate) pipeline: PipelineId,
    pub(crate) job_index: usize,
    pub(crate) name: String,
    pub(crate) stage: String,
    pub(crate) kind: JobKind,
    /// Number of this attempt of the job, from 1.
    pub(crate) attempt: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) queued_at: Option<Timestamp>,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) runner: Option<RunnerId>,
    pub(crate) system_id: Option<String>,
    pub(crate) failure_reason: Option<FailureReason>,
    pub(crate) exit_code: Option<i64>,
    pub(crate) coverage: Option<f64>,
    pub(crate) detail: JobDetail,
}

impl JobRow {
    pub(crate) fn new(
        id: JobId,
        (pipeline, job_index): (PipelineId, usize),
        (name, stage): (String, String),
        kind: JobKind,
        detail: JobDetail,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            pipeline,
            job_index,
            name,
            stage,
            kind,
            attempt: 1,
            created_at,
            queued_at: None,
            started_at: None,
            finished_at: None,
            runner: None,
            system_id: None,
            failure_reason: None,
            exit_code: None,
            coverage: None,
            detail,
        }
    }
}

/// Data of a job that no query filters or sorts by. Stored as JSON in one column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobDetail {
    /// State of the job in the engine, including its status.
    pub(crate) state: JobState,
    /// Whether a newer attempt has replaced this attempt.
    #[serde(default)]
    pub(crate) retried: bool,
    /// Number of assignments of the job so far. Part of the job's token.
    #[serde(default)]
    pub(crate) assignment: u32,
    /// Whether the current assignee has accepted the job, or has sent a report, trace or file for it.
    ///
    /// `pending` reports, which a manager sends while it prepares the job, do not count.
    #[serde(default)]
    pub(crate) accepted: bool,
    #[serde(default)]
    pub(crate) idempotency_key: Option<String>,
    /// Timeout of the job on its runner, in seconds. 0 until the job is assigned.
    #[serde(default)]
    pub(crate) timeout_s: u64,
    #[serde(default)]
    pub(crate) message: Option<String>,
    #[serde(default)]
    pub(crate) result_tree: Option<Arc<serde_json::Value>>,
    #[serde(default)]
    pub(crate) dotenv: Vec<(String, String)>,
    /// Reason why an uploaded report is invalid. The job fails with this message.
    #[serde(default)]
    pub(crate) invalid_report: Option<String>,
    /// Variables that the user entered when they started the job.
    ///
    /// A retry has the variables of the attempt that it replaces.
    #[serde(default)]
    pub(crate) variables: Vec<Variable>,
    /// URL of the environment, with variables expanded.
    ///
    /// `None` until the job is assigned, or if the environment has no URL.
    #[serde(default)]
    pub(crate) environment_url: Option<String>,
}

impl JobDetail {
    pub(crate) fn new(state: JobState) -> Self {
        Self {
            state,
            retried: false,
            assignment: 0,
            accepted: false,
            idempotency_key: None,
            timeout_s: 0,
            message: None,
            result_tree: None,
            dotenv: Vec::new(),
            invalid_report: None,
            variables: Vec::new(),
            environment_url: None,
        }
    }
}

impl JobRow {
    pub(crate) fn job_ref(&self) -> JobRef {
        JobRef { pipeline: self.pipeline, job_index: self.job_index, retry: self.attempt.saturating_sub(1) }
    }

    pub(crate) fn status(&self) -> JobStatus {
        self.detail.state.status
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArtifactRow {
    pub(crate) job: JobId,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) filename: String,
    pub(crate) size: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
    /// Whether the content was deleted after it expired. The row shows that the artifact existed
    /// (docs/spec/pipeline-yaml.md, case C187).
    pub(crate) deleted: bool,
}

impl JobKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::Bridge => "bridge",
        }
    }
}
