//! Past runs, read only: what `muster ci show` looks at.
//!
//! The run's coordinator may be gone, killed, or still at work in another process: what is shown is the database as it
//! was when it was opened.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use muster_job::{JobId, PipelineId};

use crate::error::{CoordinatorError, OpenError};
use crate::store::{self, Store};
use crate::traces;
use crate::views::{self, PipelineSummary, PipelineView};
use crate::world::World;

/// The state folder of a run whose coordinator may be gone.
pub struct History {
    dir: PathBuf,
    world: World,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl History {
    /// Opens the folder of a run without changing anything in it.
    ///
    /// # Errors
    /// [`OpenError`] where it is not one, or one of a newer version.
    pub async fn open(dir: &Path) -> Result<Self, OpenError> {
        let mut store = Store::open_read_only(dir).await?;
        let contents = store.read().await.map_err(|error| store::unreadable(dir, error))?;
        if let Err(error) = store.close().await {
            tracing::debug!(%error, "a database that was only read was not closed in order");
        }
        Ok(Self { dir: dir.to_owned(), world: World::read(contents) })
    }

    /// All pipelines, oldest first.
    #[must_use]
    pub fn pipelines(&self) -> Vec<PipelineSummary> {
        self.world.pipelines.values().map(|row| views::summary(row, None)).collect()
    }

    /// One pipeline with its jobs, as they were left.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub fn pipeline(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        self.world.pipeline_view(pipeline, &self.dir, None)
    }

    /// The trace of a job from `offset` on, at most 1 MiB; empty where there is no more.
    ///
    /// # Errors
    /// [`CoordinatorError::Read`].
    pub async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, CoordinatorError> {
        traces::read(self.trace_path(job), offset).await
    }

    /// Where the trace of a job lies.
    #[must_use]
    pub fn trace_path(&self, job: JobId) -> PathBuf {
        traces::path_in(&self.dir, job)
    }
}
