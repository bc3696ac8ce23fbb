//! Reasons why a slot is not reserved, or why a request for slots is not queued.

use std::time::Duration;

use crate::decision::ScaleUpBlock;
use crate::suspend::ResumeError;
use crate::types::TaskKey;

/// Reason why no job should be requested now.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoCapacity {
    /// No slot is free, and no instance can be created.
    #[error("no capacity: no immediately available or potential capacity ({slots}){}", block_list(.blocks))]
    NoneAvailableOrPending {
        /// Number of slots by state.
        slots: String,
        /// Groups that cannot create instances, with the reasons.
        blocks: Vec<(String, ScaleUpBlock)>,
    },
    /// No slot is free, and the policy is preemptive.
    #[error("no capacity: no immediately available capacity ({slots}){}", block_list(.blocks))]
    NoneAvailable {
        /// Number of slots by state.
        slots: String,
        /// Groups that cannot create instances, with the reasons.
        blocks: Vec<(String, ScaleUpBlock)>,
    },
    /// The ledger cannot be written.
    #[error("no capacity: {reason}")]
    LedgerUnavailable {
        /// Error of the ledger.
        reason: String,
    },
}

impl NoCapacity {
    /// Returns the time after which a reservation may succeed without an event. `None` means never.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoneAvailableOrPending { blocks, .. } | Self::NoneAvailable { blocks, .. } => {
                let pauses = blocks.iter().filter_map(|(_, block)| match block {
                    ScaleUpBlock::BackOff { pause, .. } => Some(*pause),
                    _ => None,
                });
                pauses.min()
            }
            Self::LedgerUnavailable { .. } => None,
        }
    }
}

fn block_list(blocks: &[(String, ScaleUpBlock)]) -> String {
    blocks.iter().map(|(group, block)| format!("; group {group}: {block}")).collect()
}

/// Reason why a request is not queued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// The key has no reservation.
    #[error("reservation not found: {key}")]
    NotReserved {
        /// Task key of the job.
        key: TaskKey,
    },
    /// The key is queued or has a slot.
    #[error("{key} is already queued or has a slot")]
    AlreadyQueued {
        /// Task key of the job.
        key: TaskKey,
    },
    /// The requested environment cannot be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The scaler is shutting down.
    #[error("no slot for {key}: the scaler is shutting down")]
    Stopping {
        /// Task key of the job.
        key: TaskKey,
    },
}
