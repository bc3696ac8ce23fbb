//! Events about each job, for analytics, notifications and dashboards.
//!
//! Events are only written if [`crate::Options::write_job_events`] is set.
//!
//! Events are written in the same transaction as the change that they report. A reader requests the events after the
//! last sequence number that it has processed ([`crate::Coordinator::events_after`]), and acknowledges them
//! ([`crate::Coordinator::acknowledge_events`]), which deletes them. A reader that fails in between gets the events
//! again.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, ProjectId, RunnerId};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::facts::JobKind;

/// A change of a job, with its time and its sequence number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// Position in the order of all events, from 1. Numbers can be skipped, but are never reused.
    pub sequence: u64,
    /// Time of the change.
    #[serde(with = "time::serde::rfc3339")]
    pub at: Timestamp,
    /// Pipeline of the job.
    pub pipeline: PipelineId,
    /// ID of the job. A retry of a job has its own ID.
    pub job: JobId,
    /// The change.
    pub change: JobChange,
}

/// A change of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum JobChange {
    /// The job was created.
    Created {
        /// Project of the pipeline.
        project: ProjectId,
        /// Full name of the job.
        name: String,
        /// Stage of the job.
        stage: String,
        /// Script or bridge.
        kind: JobKind,
        /// Number of this attempt of the job, from 1.
        attempt: u32,
    },
    /// The job waits for a runner, for the first time or after an assignment that no manager accepted.
    Queued,
    /// The job was assigned to a runner manager.
    Assigned {
        /// The runner.
        runner: RunnerId,
        /// System ID of the runner manager.
        system_id: String,
        /// Number of this assignment of the job, from 1.
        assignment: u32,
    },
    /// The runner manager accepted the job. From here on, no other manager gets the job.
    Accepted,
    /// The job ended. A bridge, or a job that was skipped, may become active again.
    Ended {
        /// Final status.
        status: JobStatus,
        /// Failure reason.
        reason: Option<FailureReason>,
        /// Exit code of the script, if the runner reported one.
        exit_code: Option<i64>,
    },
    /// A retry replaced this attempt of the job.
    Replaced {
        /// ID of the new attempt.
        by: JobId,
    },
    /// The status changed in a way that no other variant reports, for example to `manual` or `canceling`.
    StatusChanged {
        /// New status.
        to: JobStatus,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewJobEvent {
    pub(crate) at: Timestamp,
    pub(crate) pipeline: PipelineId,
    pub(crate) job: JobId,
    pub(crate) change: JobChange,
}

impl NewJobEvent {
    pub(crate) fn numbered(&self, sequence: u64) -> JobEvent {
        let Self { at, pipeline, job, change } = self.clone();
        JobEvent { sequence, at, pipeline, job, change }
    }
}
