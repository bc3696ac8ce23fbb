//! Rows of jobs and their artifacts.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, RunnerId, Variable};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::{Batch, from_json, from_name, to_json};
use crate::clock::{Timestamp, from_millis, to_millis};
use crate::error::StoreError;
use crate::facts::JobKind;
use crate::schedule::{JobRef, JobState};

/// One record of a job or bridge: one try, with an id of its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobRow {
    pub(crate) id: JobId,
    pub(crate) pipeline: PipelineId,
    /// Place of the job in the compiled configuration.
    pub(crate) place: usize,
    pub(crate) name: String,
    pub(crate) stage: String,
    pub(crate) kind: JobKind,
    /// The how-manieth record of this job, from 1.
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
    /// The first record of the job at this place, of this name and stage: nothing has happened to it yet.
    pub(crate) fn new(
        id: JobId,
        (pipeline, place): (PipelineId, usize),
        (name, stage): (String, String),
        kind: JobKind,
        detail: JobDetail,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            pipeline,
            place,
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

/// What no query asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct JobDetail {
    /// What the engine knows of it, also its status.
    pub(crate) state: JobState,
    /// A newer record has replaced it.
    #[serde(default)]
    pub(crate) retried: bool,
    /// How often it was given to a taker; part of the job's token.
    #[serde(default)]
    pub(crate) handout: u32,
    /// The present taker has shown a sign of life.
    #[serde(default)]
    pub(crate) alive: bool,
    /// The key of the request that was answered with this job.
    #[serde(default)]
    pub(crate) idempotency_key: Option<String>,
    /// Its time limit on this runner, in seconds.
    #[serde(default)]
    pub(crate) timeout_s: u64,
    /// What the coordinator says of its end.
    #[serde(default)]
    pub(crate) message: Option<String>,
    #[serde(default)]
    pub(crate) result_tree: Option<serde_json::Value>,
    /// Its dotenv report.
    #[serde(default)]
    pub(crate) dotenv: Vec<(String, String)>,
    /// Why a report that it uploaded cannot be used: it fails with that.
    #[serde(default)]
    pub(crate) refused_report: Option<String>,
    /// What a person typed when they played it.
    #[serde(default)]
    pub(crate) variables: Vec<Variable>,
    /// The environment's URL, expanded.
    #[serde(default)]
    pub(crate) environment_url: Option<String>,
}

impl JobDetail {
    /// Of a new record.
    pub(crate) fn new(state: JobState) -> Self {
        Self {
            state,
            retried: false,
            handout: 0,
            alive: false,
            idempotency_key: None,
            timeout_s: 0,
            message: None,
            result_tree: None,
            dotenv: Vec::new(),
            refused_report: None,
            variables: Vec::new(),
            environment_url: None,
        }
    }
}

impl JobRow {
    /// The engine's name for it.
    pub(crate) fn job_ref(&self) -> JobRef {
        JobRef { pipeline: self.pipeline, place: self.place, retry: self.attempt.saturating_sub(1) }
    }

    /// Where it stands.
    pub(crate) fn status(&self) -> JobStatus {
        self.detail.state.status
    }
}

/// An uploaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ArtifactRow {
    pub(crate) job: JobId,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) filename: String,
    pub(crate) size: u64,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Option<Timestamp>,
}

impl JobKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::Bridge => "bridge",
        }
    }
}

pub(super) fn put(batch: &mut Batch, row: &JobRow) -> Result<(), StoreError> {
    batch
        .statement(
            "INSERT INTO jobs
         (id, pipeline_id, place, name, stage, kind, status, attempt, created_at, queued_at, started_at,
          finished_at, runner_id, system_id, failure_reason, exit_code, coverage, detail)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET
          status = excluded.status, queued_at = excluded.queued_at, started_at = excluded.started_at,
          finished_at = excluded.finished_at, runner_id = excluded.runner_id, system_id = excluded.system_id,
          failure_reason = excluded.failure_reason, exit_code = excluded.exit_code, coverage = excluded.coverage,
          detail = excluded.detail",
        )
        .bind(row.id.0)
        .bind(row.pipeline.0)
        .bind(i64::try_from(row.place).unwrap_or(i64::MAX))
        .bind(&row.name)
        .bind(&row.stage)
        .bind(row.kind.as_str())
        .bind(row.status().as_str())
        .bind(row.attempt)
        .bind(to_millis(row.created_at))
        .bind(row.queued_at.map(to_millis))
        .bind(row.started_at.map(to_millis))
        .bind(row.finished_at.map(to_millis))
        .bind(row.runner.map(|id| id.0))
        .bind(row.system_id.as_deref())
        .bind(row.failure_reason.map(FailureReason::as_str))
        .bind(row.exit_code)
        .bind(row.coverage)
        .bind(to_json("a job's detail", &row.detail)?);
    Ok(())
}

pub(super) fn put_artifact(batch: &mut Batch, row: &ArtifactRow) -> Result<(), StoreError> {
    batch
        .statement(
            "INSERT INTO artifacts (job_id, kind, format, filename, size, created_at, expires_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (job_id, kind) DO UPDATE SET format = excluded.format, filename = excluded.filename,
          size = excluded.size, created_at = excluded.created_at, expires_at = excluded.expires_at",
        )
        .bind(row.job.0)
        .bind(&row.kind)
        .bind(&row.format)
        .bind(&row.filename)
        .bind(i64::try_from(row.size).unwrap_or(i64::MAX))
        .bind(to_millis(row.created_at))
        .bind(row.expires_at.map(to_millis));
    Ok(())
}

pub(super) async fn read(connection: &mut SqliteConnection) -> Result<Vec<JobRow>, StoreError> {
    let rows = sqlx::query("SELECT * FROM jobs ORDER BY id").fetch_all(connection).await?;
    rows.iter().map(job).collect()
}

fn job(row: &SqliteRow) -> Result<JobRow, StoreError> {
    let instant = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(from_millis));
    Ok(JobRow {
        id: JobId(row.try_get("id")?),
        pipeline: PipelineId(row.try_get("pipeline_id")?),
        place: usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX),
        name: row.try_get("name")?,
        stage: row.try_get("stage")?,
        kind: from_name("a job's kind", row.try_get("kind")?)?,
        attempt: row.try_get("attempt")?,
        created_at: from_millis(row.try_get("created_at")?),
        queued_at: instant("queued_at")?,
        started_at: instant("started_at")?,
        finished_at: instant("finished_at")?,
        runner: row.try_get::<Option<i64>, _>("runner_id")?.map(RunnerId),
        system_id: row.try_get("system_id")?,
        failure_reason: row.try_get::<Option<&str>, _>("failure_reason")?.map(FailureReason::from_wire),
        exit_code: row.try_get("exit_code")?,
        coverage: row.try_get("coverage")?,
        detail: from_json("a job's detail", row.try_get("detail")?)?,
    })
}

pub(super) async fn read_artifacts(connection: &mut SqliteConnection) -> Result<Vec<ArtifactRow>, StoreError> {
    let rows = sqlx::query("SELECT * FROM artifacts").fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(ArtifactRow {
                job: JobId(row.try_get("job_id")?),
                kind: row.try_get("kind")?,
                format: row.try_get("format")?,
                filename: row.try_get("filename")?,
                size: u64::try_from(row.try_get::<i64, _>("size")?).unwrap_or(0),
                created_at: from_millis(row.try_get("created_at")?),
                expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(from_millis),
            })
        })
        .collect()
}
