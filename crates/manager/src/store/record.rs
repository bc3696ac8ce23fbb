//! The lines of `state.log`, version 1: each one JSON object with one key, which says what it is.

use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_runner_api::payload::JobPayload;
use serde::{Deserialize, Serialize};

use super::RunName;
use crate::state::JobState;

/// The version of what follows.
pub(super) const VERSION: u32 = 1;

/// A line that is written.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record<'a> {
    /// The first line.
    Version(u32),
    /// The settings of a runner that jobs were taken with, by the SHA-256 of their JSON.
    Runner { digest: &'a str, settings: &'a RunnerSettings },
    /// The idempotency key that a lane asks with next.
    Lane(&'a Lane),
    /// A job was taken, and its lane has a new key: both or neither.
    Job { run: &'a RunName, runner: Option<&'a str>, taken_ms: i64, lane: Option<&'a Lane>, payload: &'a JobPayload },
    /// Where a job stands.
    State { run: &'a RunName, state: &'a JobState },
    /// Nothing is left to do for a job.
    Done { run: &'a RunName },
}

/// A lane of a runner, and its key.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Lane {
    pub(super) runner: RunnerKey,
    pub(super) lane: u32,
    pub(super) key: String,
}

/// A line, without what is only read when it is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outline {
    Version(u32),
    Runner { digest: String },
    Lane(Lane),
    Job { run: RunName, runner: Option<String>, taken_ms: i64, lane: Option<Lane> },
    State { run: RunName },
    Done { run: RunName },
}

/// What is only read when it is asked for.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Runner { settings: Box<RunnerSettings> },
    Job { payload: Box<JobPayload> },
    State { state: JobState },
}
