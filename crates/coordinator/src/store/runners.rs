//! Rows of runners and their managers.

use muster_job::RunnerId;
use muster_runner_api::wire::Info;
use sqlx::Row;
use sqlx::sqlite::SqliteConnection;

use super::{Batch, from_json, to_json};
use crate::clock::{Timestamp, from_millis, to_millis};
use crate::error::StoreError;
use crate::facts::NewRunner;

/// A runner: one authentication token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunnerRow {
    pub(crate) id: RunnerId,
    /// SHA-256 of its token, hexadecimal.
    pub(crate) token_hash: String,
    /// From then on the token is refused; none: never.
    pub(crate) token_expires_at: Option<Timestamp>,
    pub(crate) created_at: Timestamp,
    pub(crate) settings: NewRunner,
}

/// One process that uses a runner's token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ManagerRow {
    pub(crate) runner: RunnerId,
    pub(crate) system_id: String,
    pub(crate) contacted_at: Timestamp,
    pub(crate) info: Info,
}

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

pub(super) async fn read(connection: &mut SqliteConnection) -> Result<Vec<RunnerRow>, StoreError> {
    let query = "SELECT id, token_hash, created_at, detail, token_expires_at FROM runners ORDER BY id";
    let rows = sqlx::query(query).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(RunnerRow {
                id: RunnerId(row.try_get("id")?),
                token_hash: row.try_get("token_hash")?,
                token_expires_at: row.try_get::<Option<i64>, _>("token_expires_at")?.map(from_millis),
                created_at: from_millis(row.try_get("created_at")?),
                settings: from_json("a runner's settings", row.try_get("detail")?)?,
            })
        })
        .collect()
}

pub(super) async fn read_managers(connection: &mut SqliteConnection) -> Result<Vec<ManagerRow>, StoreError> {
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
