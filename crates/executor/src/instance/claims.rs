//! Leases of an earlier manager process that have not been claimed yet.
//!
//! At its start, a manager announces the leases that it will restore. When all of them are claimed, the scaler can
//! release the other leases of the earlier process.

use std::collections::BTreeSet;

/// Task keys of announced and unclaimed leases.
pub(super) enum PendingClaims {
    /// More leases may be announced.
    Announcing(BTreeSet<String>),
    Announced(BTreeSet<String>),
}

impl Default for PendingClaims {
    fn default() -> Self {
        Self::Announcing(BTreeSet::new())
    }
}

impl PendingClaims {
    pub(super) fn task_keys(&mut self) -> &mut BTreeSet<String> {
        match self {
            Self::Announcing(keys) | Self::Announced(keys) => keys,
        }
    }

    pub(super) fn mark_announced(&mut self) {
        *self = Self::Announced(std::mem::take(self.task_keys()));
    }

    pub(super) fn are_complete(&self) -> bool {
        matches!(self, Self::Announced(keys) if keys.is_empty())
    }
}
