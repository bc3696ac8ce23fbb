//! The port for data that must survive the process: rows, IDs, assignments of jobs, and the outbox of events.
//!
//! One coordinator writes one batch at a time, as one transaction. Reads may run at the same time as a write, and see
//! only whole batches. A *hierarchy* is all pipelines with the same root.

#[cfg(test)]
mod contract;
pub(crate) mod memory;
mod rows;
pub(crate) mod sqlite;

use std::fmt;

use async_trait::async_trait;
use muster_job::{JobId, PipelineId, RunnerId};

use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::outbox::{JobEvent, NewJobEvent};

pub(crate) use rows::{
    ArtifactRow, JobDetail, JobRow, ManagerRow, PipelineDetail, PipelineRow, PipelineSpec, RunnerRow,
};

/// The changes that one batch writes. Changed rows are written with all columns that can change, so writing them twice
/// has no effect.
#[derive(Debug, Default)]
pub(crate) struct Changes<'a> {
    /// Their managers are deleted, too.
    pub(crate) removed_runners: Vec<RunnerId>,
    pub(crate) removed_managers: Vec<&'a (RunnerId, String)>,
    pub(crate) runners: Vec<&'a RunnerRow>,
    pub(crate) managers: Vec<&'a ManagerRow>,
    pub(crate) new_pipelines: Vec<&'a PipelineRow>,
    /// Stored pipelines whose mark `open`, status, end time or detail changed.
    pub(crate) pipelines: Vec<&'a PipelineRow>,
    pub(crate) jobs: Vec<&'a JobRow>,
    pub(crate) artifacts: Vec<&'a ArtifactRow>,
    /// Artifacts, by job and kind, whose files were deleted. The rows are kept.
    pub(crate) deleted_artifacts: Vec<&'a (JobId, String)>,
    pub(crate) events: &'a [NewJobEvent],
}

impl Changes<'_> {
    pub(crate) fn len(&self) -> usize {
        self.removed_runners.len()
            + self.removed_managers.len()
            + self.runners.len()
            + self.managers.len()
            + self.new_pipelines.len()
            + self.pipelines.len()
            + self.jobs.len()
            + self.artifacts.len()
            + self.deleted_artifacts.len()
            + self.events.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The rows that a read returns. Runners, pipelines and jobs are ordered by ID.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) runners: Vec<RunnerRow>,
    pub(crate) managers: Vec<ManagerRow>,
    pub(crate) pipelines: Vec<PipelineRow>,
    pub(crate) jobs: Vec<JobRow>,
    pub(crate) artifacts: Vec<ArtifactRow>,
}

/// The highest ID of each kind that was ever assigned, even if its row was deleted. `None` if no ID was assigned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LastIds {
    pub(crate) pipeline: Option<PipelineId>,
    pub(crate) job: Option<JobId>,
    pub(crate) runner: Option<RunnerId>,
}

/// A pipeline or job, by which [`Store::hierarchy`] finds the hierarchy that contains it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    Pipeline(PipelineId),
    Job(JobId),
}

/// The port for stored rows. All calls are idempotent except [`Store::write`]: a repeated write adds its events again, and is rejected if
/// it has new pipelines.
#[async_trait]
pub(crate) trait Store: Send + Sync + fmt::Debug {
    /// Writes all changes, or none of them. The events get the next sequence numbers, in order.
    async fn write(&self, changes: &Changes<'_>) -> Result<(), StoreError>;

    async fn unfinished_work(&self) -> Result<Contents, StoreError>;

    async fn last_ids(&self) -> Result<LastIds, StoreError>;

    /// Returns a hierarchy with its jobs and artifacts, and the runners of its jobs. Empty if the member does not exist.
    async fn hierarchy(&self, member: Member) -> Result<Contents, StoreError>;

    /// Returns at most `limit` pipelines with IDs above `after`, in order.
    async fn pipelines(&self, after: PipelineId, limit: usize) -> Result<Vec<PipelineRow>, StoreError>;

    /// Returns at most `limit` artifacts that have expired by `now` and are not deleted, in the order of their expiry.
    async fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<ArtifactRow>, StoreError>;

    /// Returns when the next artifact that is not deleted expires, which may be in the past. `None` if no artifact expires.
    async fn next_expiry(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Returns at most `limit` events with sequence numbers above `sequence`, in order.
    async fn events_after(&self, sequence: u64, limit: usize) -> Result<Vec<JobEvent>, StoreError>;

    /// Deletes the events up to and including `sequence`. Their numbers are not assigned again.
    async fn prune_events(&self, sequence: u64) -> Result<(), StoreError>;

    /// Closes the store. Later calls fail.
    async fn close(&self) -> Result<(), StoreError>;
}
