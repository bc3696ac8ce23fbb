//! The database: rows in, rows out. It decides nothing.
//!
//! One connection writes (the actor's), in one transaction per batch of commands. The journal is a write-ahead log with
//! `synchronous=NORMAL`: a killed process loses nothing that was acknowledged; a loss of power may lose the last second.

mod batch;
mod jobs;
mod pipelines;
mod runners;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_job::RunnerId;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Row};

pub(crate) use jobs::{ArtifactRow, JobDetail, JobRow};
pub(crate) use pipelines::{PipelineDetail, PipelineRow, PipelineSpec};
pub(crate) use runners::{ManagerRow, RunnerRow};

use batch::Batch;

use crate::error::{OpenError, StoreError, is_full};

static MIGRATIONS: Migrator = sqlx::migrate!();

/// The database's name in the state folder.
const FILE: &str = "coordinator.db";

/// How long a statement waits while a reader's checkpoint holds the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What one batch of commands changed. Rows are written whole; writing one twice changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Changes<'a> {
    /// Runners that are gone, with their managers.
    pub(crate) removed_runners: Vec<RunnerId>,
    /// Managers that are gone.
    pub(crate) removed_managers: Vec<&'a (RunnerId, String)>,
    /// Runners that are new or changed.
    pub(crate) runners: Vec<&'a RunnerRow>,
    /// Managers that are new or changed.
    pub(crate) managers: Vec<&'a ManagerRow>,
    /// Pipelines that are not in the database yet.
    pub(crate) new_pipelines: Vec<&'a PipelineRow>,
    /// Pipelines whose status or detail changed.
    pub(crate) pipelines: Vec<&'a PipelineRow>,
    /// Jobs that are new or changed.
    pub(crate) jobs: Vec<&'a JobRow>,
    /// Artifacts that are new or changed.
    pub(crate) artifacts: Vec<&'a ArtifactRow>,
}

impl Changes<'_> {
    /// How many rows changed: each is one statement.
    pub(crate) fn len(&self) -> usize {
        self.removed_runners.len()
            + self.removed_managers.len()
            + self.runners.len()
            + self.managers.len()
            + self.new_pipelines.len()
            + self.pipelines.len()
            + self.jobs.len()
            + self.artifacts.len()
    }

    /// Nothing changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Everything that is stored, each list by id.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) runners: Vec<RunnerRow>,
    pub(crate) managers: Vec<ManagerRow>,
    pub(crate) pipelines: Vec<PipelineRow>,
    pub(crate) jobs: Vec<JobRow>,
    pub(crate) artifacts: Vec<ArtifactRow>,
}

/// An open database.
#[derive(Debug)]
pub(crate) struct Store {
    connection: SqliteConnection,
}

impl Store {
    /// Opens the database of a folder for writing, and brings it up to date.
    pub(crate) async fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        prepare_file(&path).map_err(|source| unwritable(dir, source))?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_TIMEOUT);
        let mut connection =
            SqliteConnection::connect_with(&options).await.map_err(|error| open_failed(&path, error))?;
        MIGRATIONS.run_direct(None, &mut connection, false).await.map_err(|error| migration_failed(&path, error))?;
        Ok(Self { connection })
    }

    /// Opens the database of a folder for reading only.
    pub(crate) async fn open_read_only(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        if !path.is_file() {
            return Err(OpenError::Missing { dir: dir.to_owned() });
        }
        let options = SqliteConnectOptions::new().filename(&path).read_only(true).busy_timeout(BUSY_TIMEOUT);
        let mut connection =
            SqliteConnection::connect_with(&options).await.map_err(|error| open_failed(&path, error))?;
        let found: i64 = sqlx::query("SELECT max(version) FROM _sqlx_migrations")
            .fetch_one(&mut connection)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(|error| open_failed(&path, error))?;
        if found > newest_version() {
            return Err(OpenError::Newer { path, found, known: newest_version() });
        }
        Ok(Self { connection })
    }

    /// Writes all of `changes`, or none of them.
    ///
    /// The transaction is spelled out: after a commit that finds the disk full SQLite leaves it open, and a guard that
    /// counts transactions by itself would make the next one part of it, never to be committed.
    pub(crate) async fn write(&mut self, changes: &Changes<'_>) -> Result<(), StoreError> {
        let connection = &mut self.connection;
        let result = batch(changes)?.run(&mut *connection).await;
        if result.is_err()
            && let Err(error) = sqlx::query("ROLLBACK").execute(&mut *connection).await
        {
            // After some errors SQLite has rolled back already. If not, the next BEGIN fails.
            tracing::debug!(%error, "there was nothing to roll back");
        }
        result
    }

    /// Reads everything.
    pub(crate) async fn read(&mut self) -> Result<Contents, StoreError> {
        Ok(Contents {
            runners: runners::read(&mut self.connection).await?,
            managers: runners::read_managers(&mut self.connection).await?,
            pipelines: pipelines::read(&mut self.connection).await?,
            jobs: jobs::read(&mut self.connection).await?,
            artifacts: jobs::read_artifacts(&mut self.connection).await?,
        })
    }

    /// Closes the database; the write-ahead log is merged into the file.
    pub(crate) async fn close(self) -> Result<(), StoreError> {
        Ok(self.connection.close().await?)
    }
}

/// One statement for each changed row.
fn batch(changes: &Changes<'_>) -> Result<Batch, StoreError> {
    let mut batch = Batch::default();
    for id in &changes.removed_runners {
        runners::remove(&mut batch, *id);
    }
    for (runner, system_id) in &changes.removed_managers {
        runners::remove_manager(&mut batch, *runner, system_id);
    }
    for row in &changes.runners {
        runners::put(&mut batch, row)?;
    }
    for row in &changes.managers {
        runners::put_manager(&mut batch, row)?;
    }
    for row in &changes.new_pipelines {
        pipelines::insert(&mut batch, row)?;
    }
    for row in &changes.pipelines {
        pipelines::update(&mut batch, row)?;
    }
    for row in &changes.jobs {
        jobs::put(&mut batch, row)?;
    }
    for row in &changes.artifacts {
        jobs::put_artifact(&mut batch, row)?;
    }
    Ok(batch)
}

/// Creates the file for this user alone: variables of jobs may be secret (invariant J6).
fn prepare_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(drop)
}

fn newest_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// The error of a folder or file that cannot be written.
pub(crate) fn unwritable(dir: &Path, source: io::Error) -> OpenError {
    if is_full(&source) {
        OpenError::DiskFull { dir: dir.to_owned() }
    } else {
        OpenError::Unwritable { dir: dir.to_owned(), source }
    }
}

/// The error of a database whose rows cannot be read.
pub(crate) fn unreadable(dir: &Path, source: StoreError) -> OpenError {
    OpenError::Database { path: dir.join(FILE), source }
}

fn open_failed(path: &Path, error: sqlx::Error) -> OpenError {
    match StoreError::from(error) {
        StoreError::Full => OpenError::DiskFull { dir: path.parent().map(PathBuf::from).unwrap_or_default() },
        source => OpenError::Database { path: path.to_owned(), source },
    }
}

fn migration_failed(path: &Path, error: MigrateError) -> OpenError {
    match error {
        MigrateError::VersionMissing(found) if found > newest_version() => {
            OpenError::Newer { path: path.to_owned(), found, known: newest_version() }
        }
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => open_failed(path, error),
        error => open_failed(path, sqlx::Error::Migrate(Box::new(error))),
    }
}

/// The JSON text of a value for a column.
fn to_json<T: serde::Serialize>(what: &str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| damaged(what, &error))
}

/// The value of a column's JSON text.
fn from_json<T: serde::de::DeserializeOwned>(what: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| damaged(what, &error))
}

/// The value of a column that holds a name from a fixed list.
fn from_name<T: serde::de::DeserializeOwned>(what: &str, name: &str) -> Result<T, StoreError> {
    from_json(what, &to_json(what, &name)?)
}

fn damaged(what: &str, why: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged { what: what.to_owned(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::from_millis;
    use crate::facts::NewRunner;

    fn runner(id: i64) -> RunnerRow {
        let (token_hash, created_at) = (id.to_string(), from_millis(0));
        RunnerRow { id: RunnerId(id), token_hash, token_expires_at: None, created_at, settings: NewRunner::default() }
    }

    #[tokio::test]
    async fn a_batch_is_written_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut store = Store::open(dir.path()).await.expect("a database");
        let (first, second) = (runner(1), runner(2));
        let manager = |id| ManagerRow {
            runner: RunnerId(id),
            system_id: "s".to_owned(),
            contacted_at: from_millis(0),
            info: muster_runner_api::wire::Info::default(),
        };
        let (fits, orphan) = (manager(1), manager(9));
        let refused = Changes { runners: vec![&first, &second], managers: vec![&orphan], ..Changes::default() };
        store.write(&refused).await.expect_err("a manager without a runner");
        assert!(store.read().await.expect("readable").runners.is_empty(), "rolled back");
        let taken = Changes { runners: vec![&first, &second], managers: vec![&fits], ..Changes::default() };
        store.write(&taken).await.expect("no transaction is left open");
        store.close().await.expect("closed");
        let mut again = Store::open(dir.path()).await.expect("a database");
        let contents = again.read().await.expect("readable");
        assert_eq!((contents.runners, contents.managers), (vec![first, second], vec![fits]));
    }
}
