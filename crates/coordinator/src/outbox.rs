//! The life of each job as events, for whatever follows it: analytics, notifications, dashboards.
//!
//! Events are written in the transaction of the change that they report, so neither exists without the other. They have
//! one order, and so the events of one job have one. A reader asks for the events after the last sequence number that it
//! has processed ([`crate::Coordinator::events_after`]) and acknowledges them
//! ([`crate::Coordinator::acknowledge_events`]), which deletes them. A reader that fails in between gets them again.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, ProjectId, RunnerId};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::facts::JobKind;

/// One step in the life of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The place in the order of all events, from 1. Numbers may be left out; none is given twice.
    pub sequence: u64,
    /// The time of the change.
    #[serde(with = "time::serde::rfc3339")]
    pub at: Timestamp,
    /// The pipeline of the job.
    pub pipeline: PipelineId,
    /// The record of the job; a retry is another record.
    pub job: JobId,
    /// The change.
    pub change: JobChange,
}

/// What changed for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobChange {
    /// The record was created.
    Created {
        /// The project of the pipeline.
        project: ProjectId,
        /// The full name of the job.
        name: String,
        /// The stage of the job.
        stage: String,
        /// Script or bridge.
        kind: JobKind,
        /// The number of this record among those of the job, from 1.
        attempt: u32,
    },
    /// The job waits for a runner: for the first time, or again after an assignment that no runner accepted.
    Queued,
    /// The job was assigned to a runner manager.
    Assigned {
        /// The runner.
        runner: RunnerId,
        /// The manager of the runner.
        system_id: String,
        /// The number of the assignment of this record, from 1.
        assignment: u32,
    },
    /// The manager accepted the job. From here on no other manager gets it.
    Accepted,
    /// The job ended. A bridge, and a job that was skipped, may come back to life.
    Ended {
        /// The final state.
        status: JobStatus,
        /// The reason of a failure.
        reason: Option<FailureReason>,
        /// The exit code of the script, if the runner reported one.
        exit_code: Option<i64>,
    },
    /// Another record took the place of this one: a retry.
    Replaced {
        /// The new record.
        by: JobId,
    },
    /// The job changed its state in another way: it waits for a manual start, a time or a resource, or is being canceled.
    Moved {
        /// The new state.
        to: JobStatus,
    },
}

/// An event that has no sequence number yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewJobEvent {
    pub(crate) at: Timestamp,
    pub(crate) pipeline: PipelineId,
    pub(crate) job: JobId,
    pub(crate) change: JobChange,
}

impl NewJobEvent {
    /// The event with its place in the order.
    pub(crate) fn numbered(&self, sequence: u64) -> JobEvent {
        let Self { at, pipeline, job, change } = self.clone();
        JobEvent { sequence, at, pipeline, job, change }
    }
}
