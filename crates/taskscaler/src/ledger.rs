//! The scaler's ledger: durable rows from which a new engine resumes after a restart.
//!
//! The provider's list determines which instances exist. The ledger determines why each instance exists, which jobs use
//! it, and how often it has been used. It contains no credentials.

use serde::{Deserialize, Serialize};

use crate::resources::UsageSamples;
use crate::suspend::SuspendedEnvironment;
use crate::types::{JobKind, RemovalReason, StickyContextId};

/// Version of the format of [`Row`].
pub const VERSION: u32 = 1;

/// Key of a row. The key of a group's row contains the name of the group, so that the configured groups can be
/// reordered.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKey {
    /// An instance of the group.
    Instance {
        /// Name of the group.
        group: String,
        /// ID of the instance.
        id: String,
    },
    /// Instances that were requested from the provider.
    ScaleUp {
        /// Name of the group.
        group: String,
        /// Number of the request.
        call: u64,
    },
    /// A deleted instance, which a later list may still contain.
    Deleted {
        /// Name of the group.
        group: String,
        /// ID of the instance.
        id: String,
    },
    /// An instance that this manager did not create. The row prevents a match with a later scale-up request.
    Unmanaged {
        /// Name of the group.
        group: String,
        /// ID of the instance.
        id: String,
    },
    /// A group that an operator drained.
    DrainedGroup {
        /// Name of the group.
        group: String,
    },
    /// Resource usage of the last runs of a kind of job.
    JobKind(JobKind),
    /// Maximum demand in an interval: slots in use plus slots that queued jobs need.
    SlotDemand {
        /// Number of the five-minute interval since 1970.
        bucket: i64,
    },
    /// Idle time that the forecast caused in a day.
    ForecastIdle {
        /// Number of the day since 1970.
        day: i64,
    },
}

impl RowKey {
    /// Returns the name of the row's group. `None` if the row belongs to no group.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Instance { group, .. }
            | Self::ScaleUp { group, .. }
            | Self::Deleted { group, .. }
            | Self::Unmanaged { group, .. }
            | Self::DrainedGroup { group } => Some(group),
            Self::JobKind(_) | Self::SlotDemand { .. } | Self::ForecastIdle { .. } => None,
        }
    }

    #[must_use]
    pub(crate) fn with_group(&self, name: &str) -> Self {
        let mut renamed = self.clone();
        match &mut renamed {
            Self::Instance { group, .. }
            | Self::ScaleUp { group, .. }
            | Self::Deleted { group, .. }
            | Self::Unmanaged { group, .. }
            | Self::DrainedGroup { group } => name.clone_into(group),
            Self::JobKind(_) | Self::SlotDemand { .. } | Self::ForecastIdle { .. } => {}
        }
        renamed
    }
}

/// Value of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    /// An instance of the group.
    Instance {
        /// Task key of each slot, `None` if the slot is free. A task with several slots appears in each.
        slots: Vec<Option<String>>,
        /// Number of jobs so far.
        job_count: u32,
        /// Time at which the instance was first seen, in seconds since 1970.
        first_seen_at: i64,
        /// Time at which the last job ended or the instance became ready, in seconds since 1970. Ignored while the
        /// instance has a job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idle_since: Option<i64>,
        /// What the scaler intends to do with the instance.
        intent: Intent,
        /// Sticky contexts on the instance, the most recently used last.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        contexts: Vec<StickyContextId>,
        /// Whether the instance was ready before, so that the ready command has run.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        was_ready: bool,
        /// Environment that a job saved for a later job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        suspended_environment: Option<SuspendedEnvironment>,
    },
    /// A scale-up request.
    ScaleUp {
        /// Number of requested instances.
        requested: u32,
        /// Number of instances that may still appear.
        outstanding: u32,
        /// Time of the request, in seconds since 1970.
        requested_at: i64,
        /// Whether the provider accepted the request.
        accepted: bool,
        /// Time until which an appearing instance is matched to this written-off request, in seconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        written_off_until: Option<i64>,
    },
    /// A deleted instance.
    Deleted {
        /// Time of the deletion, in seconds since 1970.
        deleted_at: i64,
    },
    /// An instance that this manager did not create.
    Unmanaged {
        /// Time at which the instance was first seen, in seconds since 1970.
        first_seen_at: i64,
    },
    /// A drained group.
    DrainedGroup {
        /// Operator and reason.
        by: String,
    },
    /// Resource usage of a kind of job.
    JobKind(UsageSamples),
    /// Maximum demand in an interval: slots in use plus slots that queued jobs need.
    SlotDemand {
        /// Number of slots.
        max_slots: u32,
    },
    /// Idle time that the forecast caused in a day.
    ForecastIdle {
        /// In slot seconds.
        slot_seconds: u64,
    },
}

/// What the scaler intends to do with an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Intent {
    /// The instance runs jobs.
    Serve,
    /// An operator cordoned the instance: it gets no new jobs and is not deleted.
    Cordon {
        /// Operator and reason.
        by: String,
        /// Reason why the instance is deleted once it is uncordoned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pending_removal: Option<RemovalReason>,
    },
    /// The instance is suspended, with an environment for a later job.
    Suspend,
    /// The instance is deleted after its last job.
    Drain(RemovalReason),
    /// The instance is being deleted.
    Delete(RemovalReason),
}

/// A change of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Key of the row.
    pub key: RowKey,
    /// New value. `None` deletes the row.
    pub row: Option<Row>,
}
