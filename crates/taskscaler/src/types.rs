//! Identifiers, requests, assignments and reasons that the engine shares with its callers.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use muster_fleeting::model::InstanceId;
use serde::{Deserialize, Serialize};

/// Unique key of a task, chosen by the caller. It identifies the task's reservation, queued request and lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskKey(Arc<str>);

impl TaskKey {
    /// Creates a key from text.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().into())
    }

    /// Returns the key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for TaskKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Index of an instance group in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub usize);

/// Hash of a job's project and name. Jobs of one kind probably use similar resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JobKind(pub u64);

/// Hash of a sticky context: files that jobs of one project and protection level share on an instance.
///
/// A collision only makes the scaler prefer the wrong instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StickyContextId(pub u64);

/// Hash of an instance that a job has already tried. A collision only makes the scaler avoid the wrong instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TriedInstance(u64);

impl TriedInstance {
    /// Hashes the ID of an instance.
    #[must_use]
    pub fn from_instance_id(id: &InstanceId) -> Self {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// CPU and memory that a job needs or a slot provides. `None` means unknown or not considered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceRequest {
    /// Thousandths of a CPU.
    pub cpu_milli: Option<u32>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
}

impl ResourceRequest {
    /// Fills in missing values from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { cpu_milli: self.cpu_milli.or(other.cpu_milli), memory_bytes: self.memory_bytes.or(other.memory_bytes) }
    }
}

/// A job's request for slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotRequest {
    /// Resources that the job declares.
    pub resources: ResourceRequest,
    /// Kind of the job, with which the usage of earlier runs is found.
    pub job_kind: Option<JobKind>,
    /// Sticky context of the job. Instances with this context are preferred.
    pub sticky_context: Option<StickyContextId>,
    /// Instance on which the job could not be started. Other instances are preferred.
    pub avoid: Option<TriedInstance>,
}

/// Slots of one instance that are assigned to one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotAssignment {
    /// Key of the job.
    pub key: TaskKey,
    /// Group of the instance.
    pub group: GroupId,
    /// The instance.
    pub instance: InstanceId,
    /// Lowest assigned slot, counted from 0.
    pub slot: u32,
    /// Number of assigned slots.
    pub slots: u32,
    /// Number of jobs that the instance has had, including this job.
    pub use_number: u32,
}

impl SlotAssignment {
    /// Whether both assignments have the same slots of the same instance.
    #[must_use]
    pub fn same_slots(&self, other: &Self) -> bool {
        let slots = |assignment: &Self| (assignment.group, assignment.slot, assignment.slots);
        slots(self) == slots(other) && self.instance == other.instance
    }
}

/// Reason for the deletion of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalReason {
    /// Idle for longer than the policy's `idle_time` and not needed.
    Idle {
        /// Time without a job, in milliseconds.
        idle_ms: u64,
    },
    /// `max_use_count` jobs have run on the instance.
    MaxUsesReached {
        /// Number of jobs.
        uses: u32,
    },
    /// Too many consecutive health checks failed.
    Unhealthy {
        /// Error of the last health check.
        error: String,
    },
    /// Preparation failed, or took longer than `ready_timeout`.
    ReadyTimeout {
        /// Error of the preparation.
        error: String,
    },
    /// Not running within `boot_timeout`.
    BootTimeout,
    /// The group has more instances than `max_instances`.
    AboveMaxInstances,
    /// Prices rose, and the instances cost more than `max_cost_per_hour`.
    AboveMaxCost,
    /// Reappeared after it was considered lost.
    Reappeared,
    /// Unmanaged, and `unmanaged_instances` is `delete`.
    Unmanaged,
    /// The provider deletes the instance, or has deleted it.
    ProviderDeleted,
    /// The plugin announced the end of the instance, or the instance does not respond while it has a job.
    Retired {
        /// Reason that the plugin announced, or why the instance counts as not responding.
        reason: String,
    },
    /// No job claimed the instance's lease after a restart of the manager.
    Unclaimed,
    /// No job resumed the environment within `suspended_ttl`.
    Expired,
    /// Suspended, but the new configuration lets instances run several jobs.
    NotResumable,
    /// Resuming the environment failed.
    ResumeFailed {
        /// Error of the resume call or the preparation.
        error: String,
    },
    /// Suspended, while `max_instances` or `max_cost_per_hour` allows no other instance.
    NoSpareInstance,
    /// An operator drained the group.
    GroupDrained {
        /// Operator and reason.
        by: String,
    },
    /// The scaler is shutting down.
    Shutdown,
    /// An operator drained or deleted the instance.
    Operator {
        /// Operator and reason.
        by: String,
    },
}

impl RemovalReason {
    /// Whether an operator can revert a drain for this reason.
    pub(crate) fn is_revertible(&self) -> bool {
        matches!(self, Self::Operator { .. } | Self::GroupDrained { .. })
    }

    /// Whether even a cordoned instance is deleted for this reason.
    pub(crate) fn overrides_cordon(&self) -> bool {
        matches!(
            self,
            Self::Operator { .. } | Self::Shutdown | Self::Reappeared | Self::Unmanaged | Self::ProviderDeleted
        )
    }
}

impl fmt::Display for RemovalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle { idle_ms } => write!(f, "idle for {}.{:03} s and not needed", idle_ms / 1000, idle_ms % 1000),
            Self::MaxUsesReached { uses } => {
                write!(f, "max_use_count reached ({uses} job{})", if *uses == 1 { "" } else { "s" })
            }
            Self::Unhealthy { error } => write!(f, "unhealthy: {error}"),
            Self::ReadyTimeout { error } => write!(f, "not ready: {error}"),
            Self::BootTimeout => f.write_str("not running within boot_timeout"),
            Self::AboveMaxInstances => f.write_str("above max_instances"),
            Self::AboveMaxCost => f.write_str("above max_cost_per_hour, because prices rose"),
            Self::Reappeared => f.write_str("reappeared after it was considered lost"),
            Self::Unmanaged => f.write_str("unmanaged, and unmanaged_instances is `delete`"),
            Self::ProviderDeleted => f.write_str("deleted by the provider"),
            Self::Retired { reason } => write!(f, "retired: {reason}"),
            Self::Unclaimed => f.write_str("its jobs did not survive a restart of the manager"),
            Self::Expired => f.write_str("no job resumed its environment within suspended_ttl"),
            Self::NotResumable => {
                f.write_str("its environment cannot be resumed, because instances may now run several jobs")
            }
            Self::ResumeFailed { error } => write!(f, "failed to resume its environment: {error}"),
            Self::NoSpareInstance => f.write_str("suspended, and the limits leave no other instance for jobs"),
            Self::GroupDrained { by } => write!(f, "its group was drained by {by}"),
            Self::Shutdown => f.write_str("the scaler is shutting down"),
            Self::Operator { by } => write!(f, "deleted by {by}"),
        }
    }
}

/// Reason why a lease ended before its job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LossReason {
    /// The provider no longer lists the instance.
    Missing,
    /// The provider deletes the instance, or has deleted it.
    ProviderDeleted,
    /// The instance was not found after a restart of the manager.
    MissingAfterRestart,
    /// No job claimed the lease after a restart of the manager.
    Unclaimed,
    /// An operator deleted the instance with its jobs.
    Operator {
        /// Operator and reason.
        by: String,
    },
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("instance unexpectedly removed: the provider no longer lists it"),
            Self::ProviderDeleted => f.write_str("instance unexpectedly removed: the provider is deleting it"),
            Self::MissingAfterRestart => {
                f.write_str("instance unexpectedly removed: not found after a restart of the manager")
            }
            Self::Unclaimed => f.write_str("no job claimed the slot after a restart of the manager"),
            Self::Operator { by } => write!(f, "instance deleted by {by}"),
        }
    }
}
