//! Statements for the outbox.

use muster_job::{JobId, PipelineId};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::batch::Batch;
use super::{from_json, to_json};
use crate::clock::{from_millis, to_millis};
use crate::error::StoreError;
use crate::outbox::{JobEvent, NewJobEvent};

/// Adds all events in one statement, because a batch has several events for each job.
pub(super) fn add(batch: &mut Batch, events: &[NewJobEvent]) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let rows = events.iter().map(|event| {
        // The column stores the change as JSON text, so it is passed as a JSON string that contains JSON.
        let change = to_json("an event", &event.change)?;
        Ok((to_millis(event.at), event.pipeline.0, event.job.0, change))
    });
    let rows = rows.collect::<Result<Vec<_>, StoreError>>()?;
    batch
        .statement(
            "INSERT INTO events (at, pipeline_id, job_id, change)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?) ORDER BY key",
        )
        .bind(to_json("events", &rows)?);
    Ok(())
}

pub(super) async fn after(
    connection: &mut SqliteConnection,
    sequence: u64,
    limit: usize,
) -> Result<Vec<JobEvent>, StoreError> {
    let query = sqlx::query("SELECT * FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?")
        .bind(i64::try_from(sequence).unwrap_or(i64::MAX))
        .bind(i64::try_from(limit).unwrap_or(i64::MAX));
    query.fetch_all(connection).await?.iter().map(event).collect()
}

fn event(row: &SqliteRow) -> Result<JobEvent, StoreError> {
    Ok(JobEvent {
        sequence: u64::try_from(row.try_get::<i64, _>("sequence")?).unwrap_or(0),
        at: from_millis(row.try_get("at")?),
        pipeline: PipelineId(row.try_get("pipeline_id")?),
        job: JobId(row.try_get("job_id")?),
        change: from_json("an event", row.try_get("change")?)?,
    })
}

pub(super) async fn prune(connection: &mut SqliteConnection, sequence: u64) -> Result<(), StoreError> {
    let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
    sqlx::query("DELETE FROM events WHERE sequence <= ?").bind(sequence).execute(connection).await?;
    Ok(())
}
