//! Statements for pipelines.

use std::sync::Arc;

use muster_job::{JobId, PipelineId};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::batch::Batch;
use super::{from_json, from_name, to_json};
use crate::clock::{from_millis, to_millis};
use crate::error::StoreError;
use crate::facts::Parent;
use crate::store::rows::PipelineRow;

pub(super) fn insert(batch: &mut Batch, row: &PipelineRow) -> Result<(), StoreError> {
    batch
        .statement(
            "INSERT INTO pipelines
         (id, root, parent_pipeline, parent_bridge, open, status, created_at, finished_at, detail, spec, compiled)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(row.id.0)
        .bind(row.root.0)
        .bind(row.parent.map(|parent| parent.pipeline.0))
        .bind(row.parent.map(|parent| parent.bridge.0))
        .bind(row.open)
        .bind(row.status.as_str())
        .bind(to_millis(row.created_at))
        .bind(row.finished_at.map(to_millis))
        .bind(to_json("a pipeline's detail", &row.detail)?)
        .bind(to_json("a pipeline's spec", &*row.spec)?)
        .bind(to_json("a pipeline's configuration", &*row.compiled)?);
    Ok(())
}

pub(super) fn update(batch: &mut Batch, row: &PipelineRow) -> Result<(), StoreError> {
    batch
        .statement("UPDATE pipelines SET open = ?, status = ?, finished_at = ?, detail = ? WHERE id = ?")
        .bind(row.open)
        .bind(row.status.as_str())
        .bind(row.finished_at.map(to_millis))
        .bind(to_json("a pipeline's detail", &row.detail)?)
        .bind(row.id.0);
    Ok(())
}

pub(super) async fn all_open(connection: &mut SqliteConnection) -> Result<Vec<PipelineRow>, StoreError> {
    let rows = sqlx::query("SELECT * FROM pipelines WHERE open = 1 ORDER BY id").fetch_all(connection).await?;
    rows.iter().map(pipeline).collect()
}

pub(super) async fn of_hierarchy(connection: &mut SqliteConnection, root: i64) -> Result<Vec<PipelineRow>, StoreError> {
    let query = sqlx::query("SELECT * FROM pipelines WHERE root = ? ORDER BY id").bind(root);
    query.fetch_all(connection).await?.iter().map(pipeline).collect()
}

pub(super) async fn root(connection: &mut SqliteConnection, id: PipelineId) -> Result<Option<i64>, StoreError> {
    let query = sqlx::query("SELECT root FROM pipelines WHERE id = ?").bind(id.0);
    Ok(query.fetch_optional(connection).await?.map(|row| row.try_get(0)).transpose()?)
}

pub(super) async fn root_of_job(connection: &mut SqliteConnection, id: JobId) -> Result<Option<i64>, StoreError> {
    let text = "SELECT root FROM pipelines WHERE id = (SELECT pipeline_id FROM jobs WHERE id = ?)";
    let query = sqlx::query(text).bind(id.0);
    Ok(query.fetch_optional(connection).await?.map(|row| row.try_get(0)).transpose()?)
}

pub(super) async fn after(
    connection: &mut SqliteConnection,
    after: PipelineId,
    limit: usize,
) -> Result<Vec<PipelineRow>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let query = sqlx::query("SELECT * FROM pipelines WHERE id > ? ORDER BY id LIMIT ?").bind(after.0).bind(limit);
    query.fetch_all(connection).await?.iter().map(pipeline).collect()
}

fn pipeline(row: &SqliteRow) -> Result<PipelineRow, StoreError> {
    let pipeline: Option<i64> = row.try_get("parent_pipeline")?;
    let bridge: Option<i64> = row.try_get("parent_bridge")?;
    let parent = pipeline.zip(bridge);
    Ok(PipelineRow {
        id: PipelineId(row.try_get("id")?),
        root: PipelineId(row.try_get("root")?),
        open: row.try_get("open")?,
        parent: parent.map(|(pipeline, bridge)| Parent { pipeline: PipelineId(pipeline), bridge: JobId(bridge) }),
        status: from_name("a pipeline's status", row.try_get("status")?)?,
        created_at: from_millis(row.try_get("created_at")?),
        finished_at: row.try_get::<Option<i64>, _>("finished_at")?.map(from_millis),
        detail: from_json("a pipeline's detail", row.try_get("detail")?)?,
        spec: Arc::new(from_json("a pipeline's spec", row.try_get("spec")?)?),
        compiled: Arc::new(from_json("a pipeline's configuration", row.try_get("compiled")?)?),
    })
}
