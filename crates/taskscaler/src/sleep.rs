//! Environments that a job leaves for a later one: the words of those who suspend and resume their instances.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::Key;

/// What a job left, in the books as long as its instance is kept for a later job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// The lease of the job that left it: a later job asks for it by this name.
    pub name: String,
    /// Whose it is. Only who says the same gets it.
    pub owner: String,
    /// It is removed then, in seconds since 1970, unless a job has it.
    pub until_unix: i64,
}

/// Why the instance of a lease is not suspended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSuspended {
    /// The configuration lets jobs share instances, or use them one after the other.
    #[error("it needs capacity_per_instance = 1 and max_use_count = 1: the instance is then that job's alone")]
    Shared,
    /// The plugin says so.
    #[error("the plugin of its group cannot suspend: capability not supported: suspend_resume")]
    NoCapability,
    /// The lease ended.
    #[error("its instance is lost")]
    Gone,
    /// Its instance is not to be kept.
    #[error("its instance goes: {why}")]
    Goes {
        /// Why.
        why: String,
    },
    /// No other job could run any more.
    #[error(
        "{asleep} of at most {max} instances are suspended already, and the last place is for jobs that resume nothing"
    )]
    LastPlace {
        /// Suspended instances.
        asleep: u64,
        /// The most instances.
        max: u64,
    },
    /// No other job could be paid for any more.
    #[error("suspended instances count in full, and beside them spend_max_per_hour would allow no other instance")]
    Spend,
    /// The manager ends, and removes its instances.
    #[error("the manager ends, and removes its instances")]
    Ends,
}

/// Why a job does not get the environment that it asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotResumed {
    /// It is not in the books.
    #[error(
        "there is no such environment: it has expired, was resumed before, or was removed; run the job again that leaves it"
    )]
    Unknown,
    /// It is another project's, or of another level of protection.
    #[error("the environment belongs to another project, or to refs of another level of protection")]
    NotYours,
    /// Another job has it, or waits for it.
    #[error("another job has the environment")]
    InUse,
    /// The plugin says so.
    #[error("the plugin of its group cannot resume: capability not supported: suspend_resume")]
    NoCapability,
    /// It was there, and is lost.
    #[error("its instance could not be resumed: {0}")]
    Lost(String),
    /// The scaler ends.
    #[error("the scaler ends")]
    Stopping,
}

/// What happens to an environment.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// It is kept: its instance is to be suspended.
    Left,
    /// The provider says that its instance is suspended, so long after that was asked for.
    Suspended(Duration),
    /// Its instance runs though it should not: it is suspended again.
    Awake,
    /// A job asks for it.
    Wanted(Key),
    /// The job that asked for it does not wait any more.
    Unwanted,
    /// The job has it, so long after it asked.
    Resumed(Key, Duration),
    /// A call failed.
    Failed(String),
    /// The job does not get it, for this reason.
    NotResumed(Key, String),
}

impl Step {
    /// As the history and the metrics name it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Left => "environment_left",
            Self::Suspended(_) => "suspended",
            Self::Awake => "awake",
            Self::Wanted(_) => "environment_wanted",
            Self::Unwanted => "environment_unwanted",
            Self::Resumed(..) => "resumed",
            Self::Failed(_) => "suspend_failed",
            Self::NotResumed(..) => "not_resumed",
        }
    }

    /// The job that it is about.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Self::Wanted(key) | Self::Resumed(key, _) | Self::NotResumed(key, _) => Some(key),
            Self::Left | Self::Suspended(_) | Self::Awake | Self::Unwanted | Self::Failed(_) => None,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("its instance is kept for a later job, and suspended"),
            Self::Suspended(after) => write!(f, "its instance is suspended after {:.3} s", after.as_secs_f64()),
            Self::Awake => f.write_str("its instance runs, and is suspended again"),
            Self::Wanted(key) => write!(f, "{key} asks for it, and its instance is resumed"),
            Self::Unwanted => f.write_str("nobody waits for it any more, and its instance is suspended again"),
            Self::Resumed(key, after) => write!(f, "{key} has it after {:.3} s", after.as_secs_f64()),
            Self::Failed(error) => write!(f, "its instance is as it was, and is asked again: {error}"),
            Self::NotResumed(key, why) => write!(f, "{key} does not get it: {why}"),
        }
    }
}
