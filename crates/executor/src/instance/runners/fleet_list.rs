//! List of all fleets, for operators.

use std::sync::Arc;

use muster_config::settings::RunnerSettings;
use parking_lot::Mutex;

use crate::instance::InstanceExecutor;

pub(super) type Fleets = Vec<Fleet>;

/// Instances of one runner.
#[derive(Clone)]
pub struct Fleet {
    /// Current settings of the runner.
    pub runner: Arc<RunnerSettings>,
    /// Executor of the runner's instances.
    pub executor: Arc<InstanceExecutor>,
}

/// Fleets of all runners.
///
/// The configured fleets come first, in the order of the configuration. The fleets that are shutting down follow.
#[derive(Default)]
pub struct FleetList(Mutex<Fleets>);

impl FleetList {
    /// Returns the current fleets.
    #[must_use]
    pub fn current(&self) -> Vec<Fleet> {
        self.0.lock().clone()
    }

    pub(super) fn replace(&self, fleets: Fleets) {
        *self.0.lock() = fleets;
    }
}
