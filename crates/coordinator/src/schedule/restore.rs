//! Stored pipelines, from which an engine is restored.

use muster_job::{JobStatus, PipelineId};

use super::event::{JobRef, JobState};
use super::graph::Graph;

/// A pipeline as it was stored.
#[derive(Debug, Clone)]
pub struct StoredPipeline {
    /// ID of the pipeline.
    pub pipeline: PipelineId,
    /// Graph of the compiled pipeline, the same as at its creation.
    pub graph: Graph,
    /// Bridge that started this pipeline. `None` if it has no parent.
    pub parent: Option<JobRef>,
    /// Status of the last [`super::Action::PipelineStatusChanged`]. `created` before the first one.
    pub status: JobStatus,
    /// Newest record of each job, by job index.
    pub jobs: Vec<JobState>,
}

/// Error for inconsistent rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Rows are missing, or belong to another graph.
    #[error("pipeline {pipeline} has {expected} jobs, but {stored} are stored")]
    JobCount {
        /// ID of the pipeline.
        pipeline: PipelineId,
        /// Number of jobs in the graph.
        expected: usize,
        /// Number of stored rows.
        stored: usize,
    },
    /// The same pipeline is stored twice.
    #[error("pipeline {0} is stored twice")]
    Duplicate(PipelineId),
}
