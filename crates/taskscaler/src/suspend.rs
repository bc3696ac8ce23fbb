//! Types for instances that are suspended after a job and resumed for a later job.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::TaskKey;

/// An environment that a job saved for a later job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedEnvironment {
    /// Task key of the job that saved the environment. The later job resumes it by this name.
    pub name: String,
    /// Only a job of the same owner can resume the environment.
    pub owner: String,
    /// Time at which the environment expires, in seconds since 1970.
    pub until_unix: i64,
}

/// Reason why the instance of a lease cannot be suspended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuspendError {
    /// The configuration lets an instance run several jobs, at the same time or one after another.
    #[error("suspending requires capacity_per_instance = 1 and max_use_count = 1")]
    Shared,
    /// The plugin cannot suspend and resume instances.
    #[error("the plugin of its group cannot suspend: capability not supported: suspend_resume")]
    NoCapability,
    /// The instance was lost.
    #[error("its instance is lost")]
    InstanceLost,
    /// The instance or its group is draining or cordoned.
    #[error("its instance gets no more jobs: {reason}")]
    InstanceTakesNoJobs {
        /// Reason why the instance gets no more jobs.
        reason: String,
    },
    /// `max_instances` would leave no instance for other jobs.
    #[error("one instance must remain for other jobs (already suspended: {suspended}, max_instances: {max})")]
    NoSpareInstance {
        /// Number of suspended instances.
        suspended: u64,
        /// Maximum number of instances.
        max: u64,
    },
    /// `max_cost_per_hour` would leave no instance for other jobs.
    #[error("a suspended instance counts with its full price, and max_cost_per_hour would allow no other instance")]
    CostLimit,
    /// The manager is shutting down and deletes its instances.
    #[error("the manager is shutting down and deletes its instances")]
    ShuttingDown,
}

/// Reason why a job cannot resume an environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The environment does not exist, has expired or was resumed.
    #[error("no such environment: it has expired, was resumed or was deleted; run the job that saves it again")]
    Unknown,
    /// The environment belongs to another project or protection level.
    #[error("the environment belongs to another project or protection level")]
    NotOwner,
    /// Another job waits for the environment.
    #[error("another job is resuming the environment")]
    InUse,
    /// The plugin cannot suspend and resume instances.
    #[error("the plugin of its group cannot resume: capability not supported: suspend_resume")]
    NoCapability,
    /// The instance was lost, or its preparation failed or took too long.
    #[error("failed to resume its instance: {0}")]
    InstanceLost(String),
    /// The scaler is shutting down.
    #[error("the scaler is shutting down")]
    Stopping,
}

/// A change of a suspended environment.
#[derive(Debug, Clone, PartialEq)]
pub enum SuspendEvent {
    /// A job saved the environment. Its instance will be suspended.
    Saved,
    /// The provider reports the instance as suspended, this long after the request.
    Suspended(Duration),
    /// The instance runs unexpectedly and is suspended again.
    UnexpectedlyRunning,
    /// A job wants to resume the environment.
    ResumeRequested(TaskKey),
    /// The job no longer waits for the environment.
    ResumeCanceled,
    /// The job got the environment, this long after its request.
    Resumed(TaskKey, Duration),
    /// A suspend or resume call failed.
    Failed(String),
    /// The job does not get the environment, for this reason.
    ResumeFailed(TaskKey, String),
}

impl SuspendEvent {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Saved => "environment_saved",
            Self::Suspended(_) => "suspended",
            Self::UnexpectedlyRunning => "unexpectedly_running",
            Self::ResumeRequested(_) => "resume_requested",
            Self::ResumeCanceled => "resume_canceled",
            Self::Resumed(..) => "resumed",
            Self::Failed(_) => "suspend_failed",
            Self::ResumeFailed(..) => "resume_failed",
        }
    }

    pub(crate) fn key(&self) -> Option<&TaskKey> {
        match self {
            Self::ResumeRequested(key) | Self::Resumed(key, _) | Self::ResumeFailed(key, _) => Some(key),
            Self::Saved | Self::Suspended(_) | Self::UnexpectedlyRunning | Self::ResumeCanceled | Self::Failed(_) => {
                None
            }
        }
    }
}

impl fmt::Display for SuspendEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Saved => f.write_str("saved for a later job, suspending its instance"),
            Self::Suspended(after) => write!(f, "instance suspended after {:.3} s", after.as_secs_f64()),
            Self::UnexpectedlyRunning => f.write_str("instance runs unexpectedly, suspending it again"),
            Self::ResumeRequested(key) => write!(f, "requested by {key}, resuming its instance"),
            Self::ResumeCanceled => f.write_str("no longer requested, suspending its instance again"),
            Self::Resumed(key, after) => write!(f, "resumed by {key} after {:.3} s", after.as_secs_f64()),
            Self::Failed(error) => write!(f, "suspend or resume call failed, retrying: {error}"),
            Self::ResumeFailed(key, reason) => write!(f, "{key} failed to resume it: {reason}"),
        }
    }
}
