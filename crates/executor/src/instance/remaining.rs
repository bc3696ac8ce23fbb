//! Instances that an executor leaves at the provider when it stops.

use std::collections::BTreeMap;

use muster_taskscaler::ledger::{Row, RowKey};

/// Instances that remain at the provider, according to the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remaining {
    /// IDs of the instances.
    pub instances: Vec<String>,
    /// Number of create requests without a known result. Their instances may still appear.
    pub requests: usize,
}

impl Remaining {
    pub(super) fn in_ledger(rows: &BTreeMap<RowKey, Row>) -> Self {
        let mut remaining = Self::default();
        for key in rows.keys() {
            match key {
                RowKey::Instance { id, .. } => remaining.instances.push(id.clone()),
                RowKey::ScaleUp { .. } => remaining.requests += 1,
                _ => {}
            }
        }
        remaining
    }

    /// Whether no instance remains and none can appear.
    pub(super) fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.requests == 0
    }
}
