//! `state.db`: what survives the manager. One writer, this process; a lock file keeps a second manager out.
//!
//! SQLite in WAL mode with `synchronous=NORMAL`: what is committed survives the death of any process. After a loss of
//! power the last moments may be missing, and then the coordinator's hand-out lease and the agent's spool decide.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_job::JobId;
use muster_runner_api::payload::JobPayload;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use sqlx::Row as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteRow, SqliteSynchronous,
};

use crate::state::JobState;

#[cfg(test)]
mod tests;

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
        job: JobId,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// One job, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredJob {
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
    keys: Mutex<HashMap<u32, String>>,
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
        Ok(Self { pool, keys: Mutex::default(), _lock: lock })
    }

    /// The jobs of an earlier start, oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn jobs(&self) -> Result<Vec<StoredJob>, StoreError> {
        let rows =
            sqlx::query("SELECT id, payload, state FROM jobs ORDER BY taken_ms, id").fetch_all(&self.pool).await?;
        rows.iter().map(stored_job).collect()
    }

    /// One job, if it has a row.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn job(&self, job: JobId) -> Result<Option<StoredJob>, StoreError> {
        let query = sqlx::query("SELECT id, payload, state FROM jobs WHERE id = ?").bind(job.0);
        query.fetch_optional(&self.pool).await?.as_ref().map(stored_job).transpose()
    }

    /// The idempotency key that `lane` asks with, the same until a job came of it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn lane_key(&self, lane: u32) -> Result<String, StoreError> {
        if let Some(key) = self.keys.lock().get(&lane) {
            return Ok(key.clone());
        }
        sqlx::query("INSERT INTO lanes (lane, key) VALUES (?, ?) ON CONFLICT DO NOTHING")
            .bind(lane)
            .bind(new_key())
            .execute(&self.pool)
            .await?;
        let row = sqlx::query("SELECT key FROM lanes WHERE lane = ?").bind(lane).fetch_one(&self.pool).await?;
        let key: String = row.get("key");
        self.keys.lock().insert(lane, key.clone());
        Ok(key)
    }

    /// R1: stores a job before anything is done with it, and gives its lane a new key, both or neither.
    /// False where the job was stored before: it has its actor, and this answer is a repetition.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn take(&self, lane: u32, payload: &JobPayload) -> Result<bool, StoreError> {
        let text = serde_json::to_string(payload).map_err(|source| StoreError::Row { job: payload.id, source })?;
        let state = encode(payload.id, &JobState::Taken)?;
        let next_key = new_key();
        // Should this be cut off, the next request reads the key that is stored then.
        self.keys.lock().remove(&lane);
        let mut transaction = self.pool.begin().await?;
        let stored =
            sqlx::query("INSERT INTO jobs (id, payload, state, taken_ms) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING")
                .bind(payload.id.0)
                .bind(text)
                .bind(state)
                .bind(now_ms())
                .execute(&mut *transaction)
                .await?;
        sqlx::query("UPDATE lanes SET key = ? WHERE lane = ?")
            .bind(&next_key)
            .bind(lane)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        self.keys.lock().insert(lane, next_key);
        Ok(stored.rows_affected() == 1)
    }

    /// Stores where a job stands.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn set_state(&self, job: JobId, state: &JobState) -> Result<(), StoreError> {
        let state = encode(job, state)?;
        sqlx::query("UPDATE jobs SET state = ? WHERE id = ?").bind(state).bind(job.0).execute(&self.pool).await?;
        Ok(())
    }

    /// R6: nothing is left to do for the job.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn delete(&self, job: JobId) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM jobs WHERE id = ?").bind(job.0).execute(&self.pool).await?;
        Ok(())
    }
}

fn stored_job(row: &SqliteRow) -> Result<StoredJob, StoreError> {
    let job = JobId(row.get("id"));
    let unreadable = |source| StoreError::Row { job, source };
    Ok(StoredJob {
        payload: serde_json::from_str(row.get("payload")).map_err(unreadable)?,
        state: serde_json::from_str(row.get("state")).map_err(unreadable)?,
    })
}

/// An idempotency key that nobody has used.
fn new_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn encode(job: JobId, state: &JobState) -> Result<String, StoreError> {
    serde_json::to_string(state).map_err(|source| StoreError::Row { job, source })
}

fn private_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
