//! Statements for runners and their managers.

use muster_job::RunnerId;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::batch::Batch;
use super::{from_json, to_json};
use crate::clock::{from_millis, to_millis};
use crate::error::StoreError;
use crate::store::rows::{ManagerRow, RunnerRow};

pub(super) fn put(batch: &mut Batch, row: &RunnerRow) -> Result<(), StoreError> {
    batch
        .statement(
            "INSERT INTO runners (id, token_hash, created_at, detail, token_expires_at) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET token_hash = excluded.token_hash, detail = excluded.detail,
             token_expires_at = excluded.token_expires_at",
        )
        .bind(row.id.0)
        .bind(&row.token_hash)
        .bind(to_millis(row.created_at))
        .bind(to_json("a runner's settings", &row.settings)?)
        .bind(row.token_expires_at.map(to_millis));
    Ok(())
}

pub(super) fn remove(batch: &mut Batch, id: RunnerId) {
    batch.statement("DELETE FROM runners WHERE id = ?").bind(id.0);
}

pub(super) fn put_manager(batch: &mut Batch, row: &ManagerRow) -> Result<(), StoreError> {
    batch
        .statement(
            "INSERT INTO managers (runner_id, system_id, contacted_at, info) VALUES (?, ?, ?, ?)
         ON CONFLICT (runner_id, system_id) DO UPDATE SET contacted_at = excluded.contacted_at, info = excluded.info",
        )
        .bind(row.runner.0)
        .bind(&row.system_id)
        .bind(to_millis(row.contacted_at))
        .bind(to_json("a manager's info", &row.info)?);
    Ok(())
}

pub(super) fn remove_manager(batch: &mut Batch, runner: RunnerId, system_id: &str) {
    batch.statement("DELETE FROM managers WHERE runner_id = ? AND system_id = ?").bind(runner.0).bind(system_id);
}

pub(super) async fn all(connection: &mut SqliteConnection) -> Result<Vec<RunnerRow>, StoreError> {
    let query = "SELECT id, token_hash, created_at, detail, token_expires_at FROM runners ORDER BY id";
    sqlx::query(query).fetch_all(connection).await?.iter().map(runner).collect()
}

pub(super) async fn of_hierarchy(connection: &mut SqliteConnection, root: i64) -> Result<Vec<RunnerRow>, StoreError> {
    let text = "SELECT id, token_hash, created_at, detail, token_expires_at FROM runners WHERE id IN
         (SELECT runner_id FROM jobs WHERE pipeline_id IN (SELECT id FROM pipelines WHERE root = ?)) ORDER BY id";
    sqlx::query(text).bind(root).fetch_all(connection).await?.iter().map(runner).collect()
}

fn runner(row: &SqliteRow) -> Result<RunnerRow, StoreError> {
    Ok(RunnerRow {
        id: RunnerId(row.try_get("id")?),
        token_hash: row.try_get("token_hash")?,
        token_expires_at: row.try_get::<Option<i64>, _>("token_expires_at")?.map(from_millis),
        created_at: from_millis(row.try_get("created_at")?),
        settings: from_json("a runner's settings", row.try_get("detail")?)?,
    })
}

pub(super) async fn all_managers(connection: &mut SqliteConnection) -> Result<Vec<ManagerRow>, StoreError> {
    let rows =
        sqlx::query("SELECT runner_id, system_id, contacted_at, info FROM managers").fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(ManagerRow {
                runner: RunnerId(row.try_get("runner_id")?),
                system_id: row.try_get("system_id")?,
                contacted_at: from_millis(row.try_get("contacted_at")?),
                info: from_json("a manager's info", row.try_get("info")?)?,
            })
        })
        .collect()
}
