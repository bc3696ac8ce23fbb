//! The rows of a store, independent of how they are stored.

mod job;
mod pipeline;
mod runner;

pub(crate) use job::{ArtifactRow, JobDetail, JobRow};
pub(crate) use pipeline::{PipelineDetail, PipelineRow, PipelineSpec};
pub(crate) use runner::{ManagerRow, RunnerRow};
