//! The fleets as operators see them.

use std::sync::Arc;

use muster_config::settings::RunnerSettings;
use parking_lot::Mutex;

use crate::instance::InstanceExecutor;

pub(super) type Fleets = Vec<Fleet>;

/// The instances of one runner.
#[derive(Clone)]
pub struct Fleet {
    /// The runner, as it is configured now.
    pub runner: Arc<RunnerSettings>,
    /// Its instances.
    pub executor: Arc<InstanceExecutor>,
}

/// The fleets of all runners: those of the configuration in its order, then those that end.
#[derive(Default)]
pub struct FleetList(Mutex<Fleets>);

impl FleetList {
    /// Returns the fleets as they are now.
    #[must_use]
    pub fn current(&self) -> Vec<Fleet> {
        self.0.lock().clone()
    }

    pub(super) fn replace(&self, fleets: Fleets) {
        *self.0.lock() = fleets;
    }
}
