//! Opens the database file, and translates errors for users.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Row, SqlSafeStr};

use crate::error::{OpenError, StoreError, is_full, unwritable};

/// The migrations of the database's schema, in order. A new migration gets the next version.
///
/// `sqlx::migrate!` is not used, because the macro would compile SQLite a second time, for the build machine.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let schema = include_str!("../../../migrations/0001_coordinator.sql").into_sql_str();
    Migrator::with_migrations(vec![Migration::new(1, "coordinator".into(), MigrationType::Simple, schema, false)])
});

const FILE: &str = "coordinator.db";

/// Maximum time that a statement waits while another connection locks the database, for example for a checkpoint.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn path_in(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

pub(super) async fn for_writing(dir: &Path) -> Result<SqliteConnection, OpenError> {
    let path = path_in(dir);
    prepare_file(&path).map_err(|source| unwritable(dir, source))?;
    let options = SqliteConnectOptions::new()
        .filename(&path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT);
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(|error| open_failed(&path, error))?;
    MIGRATIONS.run_direct(None, &mut connection, false).await.map_err(|error| migration_failed(&path, error))?;
    Ok(connection)
}

/// Opens a database file for reading, without checking the version of its schema.
pub(super) async fn for_reading(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY_TIMEOUT);
    SqliteConnection::connect_with(&options).await
}

/// Opens the database of `dir` for reading. Fails if it does not exist, or if its schema is newer than this program's.
pub(super) async fn open_read_only(dir: &Path) -> Result<SqliteConnection, OpenError> {
    let path = path_in(dir);
    if !path.is_file() {
        return Err(OpenError::Missing { dir: dir.to_owned() });
    }
    let mut connection = for_reading(&path).await.map_err(|error| open_failed(&path, error))?;
    let found: i64 = sqlx::query("SELECT max(version) FROM _sqlx_migrations")
        .fetch_one(&mut connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| open_failed(&path, error))?;
    if found > newest_version() {
        return Err(OpenError::Newer { path, found, known: newest_version() });
    }
    Ok(connection)
}

/// Creates the file with access for this user only, because variables of jobs may be secret (invariant J6 of ARCHITECTURE.md).
fn prepare_file(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path).map(drop)
}

fn newest_version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0)
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

/// SQLite's primary result code for a full disk (`SQLITE_FULL`).
const SQLITE_FULL: &str = "13";
/// SQLite's code for a failed write (`SQLITE_IOERR_WRITE`), which some file systems cause when the disk is full.
const SQLITE_IOERR_WRITE: &str = "778";

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let full = match &error {
            sqlx::Error::Database(database) => {
                matches!(database.code().as_deref(), Some(SQLITE_FULL | SQLITE_IOERR_WRITE))
            }
            sqlx::Error::Io(io) => is_full(io),
            _ => false,
        };
        if full { Self::Full } else { Self::Failed(Arc::new(error)) }
    }
}
