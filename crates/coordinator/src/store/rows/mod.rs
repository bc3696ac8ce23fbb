//! The rows: what a store keeps, and nothing about how.

mod job;
mod pipeline;
mod runner;

pub(crate) use job::{ArtifactRow, JobDetail, JobRow};
pub(crate) use pipeline::{PipelineDetail, PipelineRow, PipelineSpec};
pub(crate) use runner::{ManagerRow, RunnerRow};
