//! Instances that an executor leaves at the provider when it stops.

use std::collections::BTreeMap;

use muster_taskscaler::ledger::{Row, RowKey};

/// What remains at the provider when the executor of a runner has stopped, according to its ledger.
#[derive(Debug, Default)]
pub struct Remaining {
    /// IDs of the instances.
    pub instances: Vec<String>,
    /// Number of requests to create instances that have no known result. Their instances may still appear.
    pub requests: usize,
}

impl Remaining {
    /// Returns what remains according to the rows of a ledger.
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

    /// Returns whether no instance remains and none can appear.
    pub(super) fn is_empty(&self) -> bool {
        self.instances.is_empty() && self.requests == 0
    }
}
