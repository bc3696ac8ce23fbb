//! Statements for jobs and their artifacts.

use muster_job::{FailureReason, JobId, PipelineId, RunnerId};
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::batch::Batch;
use super::{from_json, from_name, to_json};
use crate::clock::{from_millis, to_millis};
use crate::error::StoreError;
use crate::store::rows::{ArtifactRow, JobRow};

/// Size of the details of a statement from which further rows get another one. SQLite permits values of 1 GB. The detail
/// of a job can have tens of MiB.
const MAX_DETAIL_BYTES: usize = 32 * 1024 * 1024;

/// Columns of a job, by name.
#[derive(Serialize)]
struct Columns<'a> {
    id: i64,
    pipeline_id: i64,
    job_index: i64,
    name: &'a str,
    stage: &'a str,
    kind: &'static str,
    status: &'static str,
    attempt: u32,
    created_at: i64,
    queued_at: Option<i64>,
    started_at: Option<i64>,
    finished_at: Option<i64>,
    runner_id: Option<i64>,
    system_id: Option<&'a str>,
    failure_reason: Option<&'static str>,
    exit_code: Option<i64>,
    coverage: Option<f64>,
    /// The column stores the detail as JSON text, so it is passed as a JSON string that contains JSON.
    detail: String,
}

impl<'a> Columns<'a> {
    fn of(row: &'a JobRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.id.0,
            pipeline_id: row.pipeline.0,
            job_index: i64::try_from(row.job_index).unwrap_or(i64::MAX),
            name: &row.name,
            stage: &row.stage,
            kind: row.kind.as_str(),
            status: row.status().as_str(),
            attempt: row.attempt,
            created_at: to_millis(row.created_at),
            queued_at: row.queued_at.map(to_millis),
            started_at: row.started_at.map(to_millis),
            finished_at: row.finished_at.map(to_millis),
            runner_id: row.runner.map(|id| id.0),
            system_id: row.system_id.as_deref(),
            failure_reason: row.failure_reason.map(FailureReason::as_str),
            exit_code: row.exit_code,
            coverage: row.coverage,
            detail: to_json("a job's detail", &row.detail)?,
        })
    }
}

/// Writes all rows, usually in one statement. Its SQL does not depend on the number of rows, so SQLite compiles it only
/// once.
pub(super) fn put(batch: &mut Batch, rows: &[&JobRow]) -> Result<(), StoreError> {
    let (mut columns, mut detail_bytes) = (Vec::new(), 0);
    for row in rows {
        let row = Columns::of(row)?;
        detail_bytes += row.detail.len();
        columns.push(row);
        if detail_bytes > MAX_DETAIL_BYTES {
            put_columns(batch, &columns)?;
            (columns, detail_bytes) = (Vec::new(), 0);
        }
    }
    if columns.is_empty() { Ok(()) } else { put_columns(batch, &columns) }
}

fn put_columns(batch: &mut Batch, rows: &[Columns<'_>]) -> Result<(), StoreError> {
    batch
        .statement(
            // SQLite would render the JSON of a row again for each column if it were not materialized.
            "WITH rows (key, value) AS MATERIALIZED (SELECT key, value FROM json_each(?))
         INSERT INTO jobs
         (id, pipeline_id, job_index, name, stage, kind, status, attempt, created_at, queued_at, started_at,
          finished_at, runner_id, system_id, failure_reason, exit_code, coverage, detail)
         SELECT value ->> 'id', value ->> 'pipeline_id', value ->> 'job_index', value ->> 'name', value ->> 'stage',
          value ->> 'kind', value ->> 'status', value ->> 'attempt', value ->> 'created_at', value ->> 'queued_at',
          value ->> 'started_at', value ->> 'finished_at', value ->> 'runner_id', value ->> 'system_id',
          value ->> 'failure_reason', value ->> 'exit_code', value ->> 'coverage', value ->> 'detail'
         FROM rows WHERE true ORDER BY key
         ON CONFLICT (id) DO UPDATE SET
          status = excluded.status, queued_at = excluded.queued_at, started_at = excluded.started_at,
          finished_at = excluded.finished_at, runner_id = excluded.runner_id, system_id = excluded.system_id,
          failure_reason = excluded.failure_reason, exit_code = excluded.exit_code, coverage = excluded.coverage,
          detail = excluded.detail",
        )
        .bind(to_json("jobs", &rows)?);
    Ok(())
}

pub(super) fn put_artifact(batch: &mut Batch, row: &ArtifactRow) -> Result<(), StoreError> {
    batch
        .statement(
            "INSERT INTO artifacts (job_id, kind, format, filename, size, created_at, expires_at, deleted)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (job_id, kind) DO UPDATE SET format = excluded.format, filename = excluded.filename,
          size = excluded.size, created_at = excluded.created_at, expires_at = excluded.expires_at,
          deleted = excluded.deleted",
        )
        .bind(row.job.0)
        .bind(&row.kind)
        .bind(&row.format)
        .bind(&row.filename)
        .bind(i64::try_from(row.size).unwrap_or(i64::MAX))
        .bind(to_millis(row.created_at))
        .bind(row.expires_at.map(to_millis))
        .bind(row.deleted);
    Ok(())
}

pub(super) fn mark_artifact_deleted(batch: &mut Batch, job: JobId, kind: &str) {
    batch.statement("UPDATE artifacts SET deleted = 1 WHERE job_id = ? AND kind = ?").bind(job.0).bind(kind);
}

pub(super) async fn of_open_pipelines(connection: &mut SqliteConnection) -> Result<Vec<JobRow>, StoreError> {
    let text = "SELECT * FROM jobs WHERE pipeline_id IN (SELECT id FROM pipelines WHERE open = 1) ORDER BY id";
    sqlx::query(text).fetch_all(connection).await?.iter().map(job).collect()
}

pub(super) async fn of_hierarchy(connection: &mut SqliteConnection, root: i64) -> Result<Vec<JobRow>, StoreError> {
    let text = "SELECT * FROM jobs WHERE pipeline_id IN (SELECT id FROM pipelines WHERE root = ?) ORDER BY id";
    sqlx::query(text).bind(root).fetch_all(connection).await?.iter().map(job).collect()
}

fn job(row: &SqliteRow) -> Result<JobRow, StoreError> {
    let timestamp = |column| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(column)?.map(from_millis));
    Ok(JobRow {
        id: JobId(row.try_get("id")?),
        pipeline: PipelineId(row.try_get("pipeline_id")?),
        job_index: usize::try_from(row.try_get::<i64, _>("job_index")?).unwrap_or(usize::MAX),
        name: row.try_get("name")?,
        stage: row.try_get("stage")?,
        kind: from_name("a job's kind", row.try_get("kind")?)?,
        attempt: row.try_get("attempt")?,
        created_at: from_millis(row.try_get("created_at")?),
        queued_at: timestamp("queued_at")?,
        started_at: timestamp("started_at")?,
        finished_at: timestamp("finished_at")?,
        runner: row.try_get::<Option<i64>, _>("runner_id")?.map(RunnerId),
        system_id: row.try_get("system_id")?,
        failure_reason: row.try_get::<Option<&str>, _>("failure_reason")?.map(FailureReason::from_wire),
        exit_code: row.try_get("exit_code")?,
        coverage: row.try_get("coverage")?,
        detail: from_json("a job's detail", row.try_get("detail")?)?,
    })
}

pub(super) async fn artifacts_of_open_pipelines(
    connection: &mut SqliteConnection,
) -> Result<Vec<ArtifactRow>, StoreError> {
    let text = "SELECT * FROM artifacts WHERE job_id IN
         (SELECT id FROM jobs WHERE pipeline_id IN (SELECT id FROM pipelines WHERE open = 1))";
    sqlx::query(text).fetch_all(connection).await?.iter().map(artifact).collect()
}

pub(super) async fn artifacts_of_hierarchy(
    connection: &mut SqliteConnection,
    root: i64,
) -> Result<Vec<ArtifactRow>, StoreError> {
    let text = "SELECT * FROM artifacts WHERE job_id IN
         (SELECT id FROM jobs WHERE pipeline_id IN (SELECT id FROM pipelines WHERE root = ?))";
    sqlx::query(text).bind(root).fetch_all(connection).await?.iter().map(artifact).collect()
}

/// Returns artifacts that have expired by `now_ms` and are not deleted, in the order of their expiry.
pub(super) async fn expired(
    connection: &mut SqliteConnection,
    now_ms: i64,
    limit: usize,
) -> Result<Vec<ArtifactRow>, StoreError> {
    let text = "SELECT * FROM artifacts WHERE deleted = 0 AND expires_at IS NOT NULL AND expires_at <= ?
         ORDER BY expires_at, job_id, kind LIMIT ?";
    let query = sqlx::query(text).bind(now_ms).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    query.fetch_all(connection).await?.iter().map(artifact).collect()
}

/// Returns the earliest expiry time of the artifacts that are not deleted, in Unix milliseconds.
///
/// `None` means that no such artifact expires.
pub(super) async fn next_expiry(connection: &mut SqliteConnection) -> Result<Option<i64>, StoreError> {
    let text = "SELECT min(expires_at) FROM artifacts WHERE deleted = 0 AND expires_at IS NOT NULL";
    Ok(sqlx::query(text).fetch_one(connection).await?.try_get(0)?)
}

fn artifact(row: &SqliteRow) -> Result<ArtifactRow, StoreError> {
    Ok(ArtifactRow {
        job: JobId(row.try_get("job_id")?),
        kind: row.try_get("kind")?,
        format: row.try_get("format")?,
        filename: row.try_get("filename")?,
        size: u64::try_from(row.try_get::<i64, _>("size")?).unwrap_or(0),
        created_at: from_millis(row.try_get("created_at")?),
        expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(from_millis),
        deleted: row.try_get("deleted")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::contract::job;

    #[test]
    fn rows_with_large_details_are_distributed_over_several_statements() {
        let (small, mut large) = (job(1, 1), job(2, 1));
        large.detail.message = Some("x".repeat(MAX_DETAIL_BYTES));
        let statements = |rows: &[&JobRow]| {
            let mut batch = Batch::default();
            put(&mut batch, rows).unwrap();
            batch.statements
        };
        assert_eq!([&[][..], &[&small, &small], &[&small, &large], &[&large, &small]].map(statements), [0, 1, 1, 2]);
    }
}
