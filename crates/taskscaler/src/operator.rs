//! Operator actions on instances and groups, and their messages on the manager's operator socket (one line of JSON
//! each).

use std::fmt;

use serde::{Deserialize, Serialize};

/// An action on an instance or a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorAction {
    /// The instance gets no new jobs and is kept, also after a restart of the manager.
    Cordon,
    /// Reverts [`Self::Cordon`] or [`Self::Drain`]. Once the last job of a drained instance has ended, it is too late.
    Uncordon,
    /// The instance gets no new jobs and is deleted after its last job. A drained group drains its instances and
    /// creates no new ones.
    Drain,
    /// The instance is deleted immediately.
    Delete {
        /// Whether running jobs may be lost.
        force: bool,
    },
}

/// Version of the JSON format of [`OperatorRequest`] and [`OperatorReply`]. Within a version, fields are only added.
pub const VERSION: u32 = 1;

/// A request on the operator socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorRequest {
    /// [`VERSION`].
    pub version: u32,
    /// The action.
    pub action: OperatorAction,
    /// ID of an instance at the provider, or name of a group.
    pub name: String,
    /// Name of the runner. `None` is possible if only one runner has an instance or a group of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Name of the group. `None` is possible if only one group has an instance of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the operator, as the client reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Reason that the operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The instance or group of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorTarget {
    /// Index of the group in [`crate::engine::ScalerStatus::groups`].
    pub group: usize,
    /// ID of the instance. `None` means the whole group.
    pub instance: Option<String>,
}

/// The manager's reply to an [`OperatorRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorReply {
    /// [`VERSION`].
    pub version: u32,
    /// Whether the action was accepted and stored in the ledger.
    pub ok: bool,
    /// Outcome, or the reason for the refusal.
    pub message: String,
}

/// Outcome of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperatorOutcome {
    /// The instance gets no new jobs and is kept.
    Cordoned {
        /// Number of running jobs.
        jobs: u32,
    },
    /// The group creates no instances.
    GroupDrained {
        /// Number of instances that are deleted after their last job.
        instances: u32,
    },
    /// The instance gets jobs again once it is ready.
    Uncordoned,
    /// The instance is no longer cordoned, but is deleted after its last job for another reason.
    UncordonedForRemoval {
        /// Reason for the deletion.
        reason: String,
    },
    /// The group creates instances again.
    GroupUndrained,
    /// The instance is deleted after its last job, or immediately if it has none.
    Draining {
        /// Number of running jobs.
        jobs: u32,
    },
    /// The instance is being deleted.
    Deleting {
        /// Number of jobs that were lost.
        jobs: u32,
    },
}

impl fmt::Display for OperatorOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordoned { jobs: 0 } => f.write_str("cordoned; it has no jobs"),
            Self::Cordoned { jobs: 1 } => f.write_str("cordoned; its running job continues"),
            Self::Cordoned { jobs } => write!(f, "cordoned; its {jobs} running jobs continue"),
            Self::GroupDrained { instances: 1 } => f.write_str("draining; 1 instance is deleted after its last job"),
            Self::GroupDrained { instances } => {
                write!(f, "draining; {instances} instances are deleted, each after its last job")
            }
            Self::Uncordoned => f.write_str("uncordoned; it gets jobs again once it is ready"),
            Self::UncordonedForRemoval { reason } => {
                write!(f, "uncordoned, but deleted after its last job: {reason}")
            }
            Self::GroupUndrained => f.write_str("uncordoned; it creates instances again"),
            Self::Draining { jobs: 0 } | Self::Deleting { jobs: 0 } => f.write_str("deleting"),
            Self::Draining { jobs: 1 } => f.write_str("draining; it is deleted after its running job"),
            Self::Draining { jobs } => write!(f, "draining; it is deleted after its {jobs} running jobs"),
            Self::Deleting { jobs: 1 } => f.write_str("deleting; its running job is lost"),
            Self::Deleting { jobs } => write!(f, "deleting; its {jobs} running jobs are lost"),
        }
    }
}

/// Reason why an action was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// The group does not have the instance.
    #[error("no such instance")]
    NoInstance,
    /// The group does not exist.
    #[error("no such group")]
    NoGroup,
    /// The manager did not create the instance.
    #[error("the instance is unmanaged and gets no jobs; use `muster fleet delete` to delete it")]
    Unmanaged,
    /// The instance is being deleted, or is drained for a reason that an operator cannot revert.
    #[error("the instance is already being drained or deleted: {reason}")]
    AlreadyDeleting {
        /// Reason for the deletion.
        reason: String,
    },
    /// No operator has cordoned or drained the instance or the group.
    #[error("it is neither cordoned nor drained")]
    NotCordoned,
    /// The instance has the suspended environment of a job.
    #[error("it is suspended for a later job and expires on its own; use `muster fleet delete` to delete it now")]
    Suspended,
    /// The instance's whole group is drained.
    #[error("its group was drained by {by}; uncordon the group")]
    GroupDrained {
        /// Operator and reason.
        by: String,
    },
    /// Jobs run on the instance.
    #[error(
        "it has {jobs} running job{}; use `muster fleet drain` to delete it after its last job, or --force to delete it now", if *jobs == 1 { "" } else { "s" }
    )]
    HasJobs {
        /// Number of jobs.
        jobs: u32,
    },
    /// The action applies to instances only.
    #[error("this applies to instances only; use `muster fleet drain` for a group")]
    NotAnInstance,
}
