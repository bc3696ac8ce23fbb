//! Leases of an earlier manager process that have not been claimed yet.
//!
//! At its start, a manager announces the leases that it will restore. A restored lease is claimed. The scaler is notified when all announced
//! leases are claimed, so that it can release the other leases of the earlier process.

use std::collections::BTreeSet;

/// Task keys of the leases of an earlier manager process that have not been claimed yet.
pub(super) enum PendingClaims {
    /// More leases may be announced.
    Announcing(BTreeSet<String>),
    /// All leases have been announced.
    Announced(BTreeSet<String>),
}

impl Default for PendingClaims {
    fn default() -> Self {
        Self::Announcing(BTreeSet::new())
    }
}

impl PendingClaims {
    /// Returns the task keys of the unclaimed leases.
    pub(super) fn task_keys(&mut self) -> &mut BTreeSet<String> {
        match self {
            Self::Announcing(keys) | Self::Announced(keys) => keys,
        }
    }

    /// Marks all leases as announced.
    pub(super) fn mark_announced(&mut self) {
        *self = Self::Announced(std::mem::take(self.task_keys()));
    }

    /// Returns whether all leases have been announced and claimed.
    pub(super) fn are_complete(&self) -> bool {
        matches!(self, Self::Announced(keys) if keys.is_empty())
    }
}
