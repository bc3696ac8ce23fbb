//! Leases of an earlier start of the manager.

use std::collections::BTreeSet;

/// Leases of an earlier start that are not claimed yet, by their task keys.
pub(super) enum PendingClaims {
    /// More may be announced.
    Announcing(BTreeSet<String>),
    /// All have been announced.
    Announced(BTreeSet<String>),
}

impl Default for PendingClaims {
    fn default() -> Self {
        Self::Announcing(BTreeSet::new())
    }
}

impl PendingClaims {
    /// Returns the task keys of these leases.
    pub(super) fn task_keys(&mut self) -> &mut BTreeSet<String> {
        match self {
            Self::Announcing(keys) | Self::Announced(keys) => keys,
        }
    }

    /// All have been announced.
    pub(super) fn announced(&mut self) {
        *self = Self::Announced(std::mem::take(self.task_keys()));
    }

    /// Returns whether all leases have been claimed.
    pub(super) fn are_complete(&self) -> bool {
        matches!(self, Self::Announced(keys) if keys.is_empty())
    }
}
