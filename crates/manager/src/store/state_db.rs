//! `state.db`, where versions of Muster before `state.log` kept the same: read once, and then removed.

use std::path::Path;

use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_runner_api::payload::JobPayload;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteRow};

use super::record::{Lane, Record};
use super::{Books, RunName, StoreError};
use crate::state::JobState;

const FILES: [&str; 3] = ["state.db", "state.db-wal", "state.db-shm"];

/// Takes over what a `state.db` in `directory` holds. Cut off anywhere, it is done again by the next start.
pub(super) async fn take_over(directory: &Path, books: &mut Books) -> Result<(), StoreError> {
    let path = directory.join(FILES[0]);
    if !path.exists() {
        return Ok(());
    }
    let options = SqliteConnectOptions::new().filename(&path);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    sqlx::migrate!("./migrations").run(&pool).await?;
    let jobs = copy(&pool, books).await?;
    pool.close().await;
    let failed = |source| StoreError::Directory { path: directory.to_owned(), source };
    books.handle()?.sync_data().map_err(failed)?;
    for name in FILES {
        match std::fs::remove_file(directory.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
    }
    tracing::info!(jobs, "the state of an earlier version was taken over from state.db");
    Ok(())
}

fn runner_key(text: String) -> Result<RunnerKey, StoreError> {
    serde_json::from_value(text.into()).map_err(StoreError::Encode)
}

async fn copy(pool: &SqlitePool, books: &mut Books) -> Result<usize, StoreError> {
    for row in sqlx::query("SELECT digest, settings FROM runners").fetch_all(pool).await? {
        let digest: String = row.get("digest");
        match serde_json::from_str::<RunnerSettings>(row.get("settings")) {
            Ok(settings) => books.add(&Record::Runner { digest: &digest, settings: &settings })?,
            Err(error) => tracing::error!(%error, "the settings of a runner in state.db are not readable"),
        }
    }
    for row in sqlx::query("SELECT runner, lane, key FROM lanes").fetch_all(pool).await? {
        let (runner, lane) = (runner_key(row.get("runner"))?, row.get("lane"));
        if books.lane_key(&runner, lane).is_none() {
            books.add(&Record::Lane(&Lane { runner, lane, key: row.get("key") }))?;
        }
    }
    let mut jobs = 0;
    for row in sqlx::query("SELECT run, runner, payload, state, taken_ms FROM jobs").fetch_all(pool).await? {
        match copy_job(&row, books) {
            Ok(()) => jobs += 1,
            Err(error @ StoreError::Row { .. }) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a job in state.db is lost");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(jobs)
}

fn copy_job(row: &SqliteRow, books: &mut Books) -> Result<(), StoreError> {
    let run = RunName::stored(row.get("run"));
    if books.knows(&run) {
        return Ok(());
    }
    let unreadable = |source: serde_json::Error| StoreError::Row { job: run.clone(), source: source.into() };
    let payload: JobPayload = serde_json::from_str(row.get("payload")).map_err(unreadable)?;
    let state: JobState = serde_json::from_str(row.get("state")).map_err(unreadable)?;
    let runner: Option<String> = row.get("runner");
    let (runner, taken_ms) = (runner.as_deref(), row.get("taken_ms"));
    books.add(&Record::Job { run: &run, runner, taken_ms, lane: None, payload: &payload, by_token: false })?;
    // Of a job that was taken this says nothing new, and does no harm.
    books.add(&Record::State { run: &run, state: &state })
}
