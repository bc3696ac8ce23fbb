//! The lines of `state.log`, version 1: JSON objects with one key, which names the kind.

use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_runner_api::payload::JobPayload;
use serde::{Deserialize, Serialize};

use super::JobRunId;
use crate::state::JobState;

pub(super) const VERSION: u32 = 1;

/// A line to write.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record<'a> {
    /// The first line.
    Version(u32),
    /// `digest` is the SHA-256 of the settings as JSON.
    Runner { digest: &'a str, settings: &'a RunnerSettings },
    /// A lane, with the idempotency key of its next request.
    Lane(&'a Lane),
    /// The runner of the lane is no longer configured, and the lane's key is not needed any more.
    RemovedLane { runner: &'a RunnerKey, lane: u32 },
    /// Job and key share a line, so that both are stored or neither is.
    Job {
        run: &'a JobRunId,
        runner: Option<&'a str>,
        received_ms: i64,
        lane: Option<&'a Lane>,
        payload: &'a JobPayload,
    },
    /// State of a job.
    State { run: &'a JobRunId, state: &'a JobState },
    /// Nothing is left to do for the job.
    Removed { run: &'a JobRunId },
}

/// A long-poll slot of a runner, with the idempotency key of its next request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) runner: RunnerKey,
    pub(super) lane: u32,
    pub(super) key: String,
}

/// A line without the parts that are read on demand.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RecordHeader {
    Version(u32),
    Runner { digest: String },
    Lane(Lane),
    RemovedLane { runner: RunnerKey, lane: u32 },
    Job { run: JobRunId, runner: Option<String>, received_ms: i64, lane: Option<Lane> },
    State { run: JobRunId },
    Removed { run: JobRunId },
}

/// The parts of a line that are read on demand.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Runner { settings: Box<RunnerSettings> },
    Job { payload: Box<JobPayload> },
    State { state: Box<JobState> },
}
