//! A store in a SQLite file.
//!
//! One connection writes, with one transaction per batch. The journal is a write-ahead log with `synchronous=NORMAL`. If the process is
//! killed, no acknowledged change is lost. A power failure may lose the changes since the last checkpoint. A second connection, which is
//! opened when it is first needed, reads in parallel with the writer.

mod batch;
mod events;
mod jobs;
mod open;
mod pipelines;
mod runners;

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures::future::BoxFuture;
use muster_job::{JobId, PipelineId, RunnerId};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tokio::sync::Mutex;

use super::{ArtifactRow, Changes, Contents, LastIds, Member, PipelineRow, Store};
use crate::clock::{Timestamp, from_millis, to_millis};
use crate::error::{OpenError, StoreError};
use crate::outbox::JobEvent;

use batch::Batch;

#[derive(Debug)]
pub(crate) struct SqliteStore {
    path: PathBuf,
    /// `None` if the database was opened for reading only, or is closed.
    writer: Mutex<Option<SqliteConnection>>,
    reader: Mutex<Reader>,
}

#[derive(Debug)]
enum Reader {
    /// No read has needed the connection yet.
    Unopened,
    Open(SqliteConnection),
    Closed,
}

impl SqliteStore {
    pub(crate) async fn open(dir: &Path) -> Result<Self, OpenError> {
        let writer = open::for_writing(dir).await?;
        let (path, reader) = (open::path_in(dir), Mutex::new(Reader::Unopened));
        Ok(Self { path, writer: Mutex::new(Some(writer)), reader })
    }

    pub(crate) async fn open_read_only(dir: &Path) -> Result<Self, OpenError> {
        let reader = Mutex::new(Reader::Open(open::open_read_only(dir).await?));
        Ok(Self { path: open::path_in(dir), writer: Mutex::new(None), reader })
    }

    /// Calls `work` with the writing connection if it is open, otherwise with the reading connection.
    ///
    /// With the writing connection, the reads at startup need no second connection.
    async fn with_writer<T: Send>(
        &self,
        work: impl for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.writer.lock().await.as_mut() {
            Some(connection) => work(connection).await,
            None => self.with_reader(work).await,
        }
    }

    /// Calls `work` with the reading connection. All queries of `work` see the same rows, because they run in one
    /// transaction.
    async fn with_reader<T: Send>(
        &self,
        work: impl for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let mut reader = self.reader.lock().await;
        if matches!(*reader, Reader::Unopened) {
            *reader = Reader::Open(open::for_reading(&self.path).await?);
        }
        let Reader::Open(connection) = &mut *reader else { return Err(StoreError::Closed) };
        let mut transaction = connection.begin().await?;
        let result = work(&mut transaction).await;
        transaction.rollback().await?;
        result
    }
}

#[async_trait]
impl Store for SqliteStore {
    // The batch contains BEGIN and COMMIT as SQL, and does not use sqlx's transaction guard, for this reason: if a
    // commit fails on a full disk, SQLite leaves the transaction open. The guard would then start the next transaction
    // as a nested one, which would never be committed.
    async fn write(&self, changes: &Changes<'_>) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        let connection = writer.as_mut().ok_or(StoreError::Closed)?;
        let result = batch(changes)?.run(&mut *connection).await;
        if result.is_err()
            && let Err(error) = sqlx::query("ROLLBACK").execute(&mut *connection).await
        {
            // The error is only logged: after some errors, SQLite has already rolled back. If it has not, the next
            // BEGIN reports an error.
            tracing::debug!(%error, "failed to roll back, probably because SQLite has already done so");
        }
        result
    }

    async fn unfinished_work(&self) -> Result<Contents, StoreError> {
        self.with_writer(|connection| Box::pin(unfinished_work(connection))).await
    }

    async fn last_ids(&self) -> Result<LastIds, StoreError> {
        self.with_writer(|connection| Box::pin(last_ids(connection))).await
    }

    async fn hierarchy(&self, member: Member) -> Result<Contents, StoreError> {
        self.with_reader(move |connection| Box::pin(hierarchy(connection, member))).await
    }

    async fn pipelines(&self, after: PipelineId, limit: usize) -> Result<Vec<PipelineRow>, StoreError> {
        self.with_reader(move |connection| Box::pin(pipelines::after(connection, after, limit))).await
    }

    async fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<ArtifactRow>, StoreError> {
        self.with_writer(move |connection| Box::pin(jobs::expired(connection, to_millis(now), limit))).await
    }

    async fn next_expiry(&self) -> Result<Option<Timestamp>, StoreError> {
        let next = self.with_writer(|connection| Box::pin(jobs::next_expiry(connection))).await?;
        Ok(next.map(from_millis))
    }

    async fn events_after(&self, sequence: u64, limit: usize) -> Result<Vec<JobEvent>, StoreError> {
        self.with_reader(move |connection| Box::pin(events::after(connection, sequence, limit))).await
    }

    async fn prune_events(&self, sequence: u64) -> Result<(), StoreError> {
        let mut writer = self.writer.lock().await;
        events::prune(writer.as_mut().ok_or(StoreError::Closed)?, sequence).await
    }

    // The writer closes last: it merges the write-ahead log into the file, which an open reader would prevent.
    async fn close(&self) -> Result<(), StoreError> {
        let reader = std::mem::replace(&mut *self.reader.lock().await, Reader::Closed);
        if let Reader::Open(connection) = reader {
            connection.close().await?;
        }
        if let Some(connection) = self.writer.lock().await.take() {
            connection.close().await?;
        }
        Ok(())
    }
}

/// Returns one statement for all jobs, one for all events, and one for each other changed row.
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
    jobs::put(&mut batch, &changes.jobs)?;
    for row in &changes.artifacts {
        jobs::put_artifact(&mut batch, row)?;
    }
    for (job, kind) in &changes.deleted_artifacts {
        jobs::mark_artifact_deleted(&mut batch, *job, kind);
    }
    events::add(&mut batch, changes.events)?;
    Ok(batch)
}

async fn unfinished_work(connection: &mut SqliteConnection) -> Result<Contents, StoreError> {
    Ok(Contents {
        runners: runners::all(connection).await?,
        managers: runners::all_managers(connection).await?,
        pipelines: pipelines::all_open(connection).await?,
        jobs: jobs::of_open_pipelines(connection).await?,
        artifacts: jobs::artifacts_of_open_pipelines(connection).await?,
    })
}

async fn hierarchy(connection: &mut SqliteConnection, member: Member) -> Result<Contents, StoreError> {
    let root = match member {
        Member::Pipeline(id) => pipelines::root(connection, id).await?,
        Member::Job(id) => pipelines::root_of_job(connection, id).await?,
    };
    let Some(root) = root else { return Ok(Contents::default()) };
    Ok(Contents {
        runners: runners::of_hierarchy(connection, root).await?,
        managers: Vec::new(),
        pipelines: pipelines::of_hierarchy(connection, root).await?,
        jobs: jobs::of_hierarchy(connection, root).await?,
        artifacts: jobs::artifacts_of_hierarchy(connection, root).await?,
    })
}

async fn last_ids(connection: &mut SqliteConnection) -> Result<LastIds, StoreError> {
    let text = "SELECT (SELECT max(id) FROM pipelines), (SELECT max(id) FROM jobs),
         (SELECT seq FROM sqlite_sequence WHERE name = 'runners')";
    let row = sqlx::query(text).fetch_one(connection).await?;
    Ok(LastIds {
        pipeline: row.try_get::<Option<i64>, _>(0)?.map(PipelineId),
        job: row.try_get::<Option<i64>, _>(1)?.map(JobId),
        runner: row.try_get::<Option<i64>, _>(2)?.map(RunnerId),
    })
}

pub(crate) fn unreadable(dir: &Path, source: StoreError) -> OpenError {
    OpenError::Database { path: open::path_in(dir), source }
}

/// Returns `value` as JSON. `description` is the value's description in the error, such as `a job's detail`.
fn to_json<T: serde::Serialize>(description: &str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| damaged(description, &error))
}

fn from_json<T: serde::de::DeserializeOwned>(description: &str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| damaged(description, &error))
}

/// Returns the enum variant with this name.
fn from_name<T: serde::de::DeserializeOwned>(description: &str, name: &str) -> Result<T, StoreError> {
    from_json(description, &to_json(description, &name)?)
}

fn damaged(description: &str, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged { value: description.to_owned(), reason: error.to_string() }
}
