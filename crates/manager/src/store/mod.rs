//! `state.db`: what survives the manager. One writer, this process; a lock file keeps a second manager out.
//!
//! SQLite in WAL mode with `synchronous=NORMAL`: what is committed survives the death of any process. After a loss of
//! power the last moments may be missing, and then the coordinator's hand-out lease and the agent's spool decide.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_runner_api::payload::JobPayload;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use sqlx::Row as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};

use crate::settings::{RunnerKey, RunnerSettings};
use crate::state::JobState;

mod run_name;
#[cfg(test)]
mod tests;

pub use run_name::RunName;

/// How long a statement waits for another connection's.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// Why the state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another manager uses the directory.
    #[error("another manager uses the state directory {}; give each manager its own", .0.display())]
    InUse(PathBuf),
    /// The directory is not usable.
    #[error("cannot use the state directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The database failed.
    #[error("the manager's state.db failed")]
    Database(#[from] sqlx::Error),
    /// Its version cannot be brought to this one.
    #[error("the manager's state.db cannot be brought to this version")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row is not readable.
    #[error("job {job} in the manager's state.db is not readable")]
    Row {
        /// The job.
        job: RunName,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// One job, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredJob {
    /// Its name at agents.
    pub run: RunName,
    /// The runner that it was taken with; none for one that version 1 took.
    pub runner: Option<Arc<RunnerSettings>>,
    /// As it came from the coordinator.
    pub payload: JobPayload,
    /// Where it stands.
    pub state: JobState,
}

/// The manager's durable state.
#[derive(Debug)]
pub struct Store {
    pool: SqlitePool,
    /// The keys of the lanes, as they are stored: read once.
    keys: Mutex<HashMap<(RunnerKey, u32), String>>,
    /// The runners whose settings are stored, with their digests.
    runners: Mutex<HashMap<RunnerKey, (Arc<RunnerSettings>, String)>>,
    _lock: File,
}

impl Store {
    /// Opens `<directory>/state.db`, makes it if need be, and brings it to this version.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open(directory: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Directory { path: directory.to_owned(), source };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let lock = private_file(&directory.join("manager.lock")).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => StoreError::InUse(directory.to_owned()),
            error => failed(error.into()),
        })?;
        let path = directory.join("state.db");
        // Payloads hold tokens: the file is made here, since SQLite would make it readable for others.
        private_file(&path).map_err(failed)?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(BUSY_LIMIT);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        sqlx::migrate!("./migrations").run(&pool).await?;
        sqlx::query("DELETE FROM runners WHERE digest NOT IN (SELECT runner FROM jobs WHERE runner IS NOT NULL)")
            .execute(&pool)
            .await?;
        Ok(Self { pool, keys: Mutex::default(), runners: Mutex::default(), _lock: lock })
    }

    /// The jobs of an earlier start, oldest first. A row that cannot be read stays, and is told.
    ///
    /// # Errors
    /// [`StoreError::Database`].
    pub async fn jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        let mut runners = HashMap::new();
        for row in sqlx::query("SELECT digest, settings FROM runners").fetch_all(&self.pool).await? {
            let digest: String = row.get("digest");
            match serde_json::from_str::<RunnerSettings>(row.get("settings")) {
                Ok(settings) => drop(runners.insert(digest, Arc::new(settings))),
                Err(error) => tracing::error!(%error, "the settings of a runner in state.db are not readable"),
            }
        }
        let query = "SELECT run, runner, payload, state FROM jobs ORDER BY taken_ms, run";
        let rows = sqlx::query(query).fetch_all(&self.pool).await?;
        let read = rows.iter().filter_map(|row| {
            let job = stored_job(row, |digest| runners.get(digest).cloned());
            job.inspect_err(|error| tracing::error!(error = error as &dyn std::error::Error, "a job is left alone"))
                .ok()
        });
        Ok(read.collect())
    }

    /// One job, if it has a row, with the `runner` that it was taken with.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn job(&self, run: &RunName, runner: &Arc<RunnerSettings>) -> Result<Option<StoredJob>, StoreError> {
        let query = "SELECT run, runner, payload, state FROM jobs WHERE run = ?";
        let row = sqlx::query(query).bind(run.as_str()).fetch_optional(&self.pool).await?;
        row.map(|row| stored_job(&row, |_| Some(Arc::clone(runner)))).transpose()
    }

    /// The idempotency key that a lane of `runner` asks with, the same until a job came of it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lane_key(&self, runner: &RunnerKey, lane: u32) -> Result<String, StoreError> {
        let id = (runner.clone(), lane);
        if let Some(key) = self.keys.lock().get(&id) {
            return Ok(key.clone());
        }
        sqlx::query("INSERT INTO lanes (runner, lane, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
            .bind(runner.as_str())
            .bind(lane)
            .bind(new_key())
            .execute(&self.pool)
            .await?;
        let query = sqlx::query("SELECT key FROM lanes WHERE runner = ? AND lane = ?").bind(runner.as_str()).bind(lane);
        let key: String = query.fetch_one(&self.pool).await?.get("key");
        self.keys.lock().insert(id, key.clone());
        Ok(key)
    }

    /// R1: stores a job of `runner` before anything is done with it, and gives its lane a new key, both or neither.
    /// None where the job was stored before: it has its actor, and this answer is a repetition.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn take(
        &self,
        runner: &Arc<RunnerSettings>,
        lane: u32,
        payload: JobPayload,
    ) -> Result<Option<StoredJob>, StoreError> {
        let run = RunName::new(payload.id, &runner.url);
        let unreadable = |source| StoreError::Row { job: run.clone(), source };
        let text = serde_json::to_string(&payload).map_err(unreadable)?;
        let state = encode(&run, &JobState::Taken)?;
        let known = self.runners.lock().get(&runner.key).filter(|(known, _)| Arc::ptr_eq(known, runner)).cloned();
        let next_key = new_key();
        let lane_id = (runner.key.clone(), lane);
        // Should this be cut off, the next request reads the key that is stored then.
        self.keys.lock().remove(&lane_id);
        let mut transaction = self.pool.begin().await?;
        let digest = match known {
            Some((_, digest)) => digest,
            None => {
                let settings = serde_json::to_string(&**runner).map_err(unreadable)?;
                let digest = format!("{:x}", Sha256::digest(&settings));
                sqlx::query("INSERT INTO runners (digest, settings) VALUES (?, ?) ON CONFLICT DO NOTHING")
                    .bind(&digest)
                    .bind(settings)
                    .execute(&mut *transaction)
                    .await?;
                digest
            }
        };
        let insert =
            "INSERT INTO jobs (run, runner, payload, state, taken_ms) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
        let stored = sqlx::query(insert)
            .bind(run.as_str())
            .bind(&digest)
            .bind(text)
            .bind(state)
            .bind(now_ms())
            .execute(&mut *transaction)
            .await?;
        sqlx::query("UPDATE lanes SET key = ? WHERE runner = ? AND lane = ?")
            .bind(&next_key)
            .bind(runner.key.as_str())
            .bind(lane)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.keys.lock().insert(lane_id, next_key);
        self.runners.lock().insert(runner.key.clone(), (Arc::clone(runner), digest));
        let job = StoredJob { run, runner: Some(Arc::clone(runner)), payload, state: JobState::Taken };
        Ok((stored.rows_affected() == 1).then_some(job))
    }

    /// Stores where a job stands.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn set_state(&self, run: &RunName, state: &JobState) -> Result<(), StoreError> {
        let state = encode(run, state)?;
        let query = sqlx::query("UPDATE jobs SET state = ? WHERE run = ?").bind(state).bind(run.as_str());
        query.execute(&self.pool).await?;
        Ok(())
    }

    /// R6: nothing is left to do for the job.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete(&self, run: &RunName) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM jobs WHERE run = ?").bind(run.as_str()).execute(&self.pool).await?;
        Ok(())
    }
}

fn stored_job(row: &SqliteRow, runner: impl Fn(&str) -> Option<Arc<RunnerSettings>>) -> Result<StoredJob, StoreError> {
    let run = RunName::stored(row.get("run"));
    let digest: Option<String> = row.get("runner");
    let unreadable = |source| StoreError::Row { job: run.clone(), source };
    Ok(StoredJob {
        runner: digest.and_then(|digest| runner(&digest)),
        payload: serde_json::from_str(row.get("payload")).map_err(unreadable)?,
        state: serde_json::from_str(row.get("state")).map_err(unreadable)?,
        run,
    })
}

/// An idempotency key that nobody has used.
fn new_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn encode(job: &RunName, state: &JobState) -> Result<String, StoreError> {
    serde_json::to_string(state).map_err(|source| StoreError::Row { job: job.clone(), source })
}

fn private_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
