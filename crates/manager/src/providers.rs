//! Which provider has the environments of which runner.

use std::sync::Arc;

use muster_environment::{Capacity, Provider};
use tokio::sync::watch;

use crate::settings::{RunnerKey, RunnerSettings};

/// Executors of this host.
const ON_HOST: &str = "shell";

/// The providers of all runners.
pub(crate) struct Providers {
    host: Arc<dyn Provider>,
    of_host: watch::Receiver<Capacity>,
    /// Something is to be told that [`Self::capacities`] has not told yet.
    stale: bool,
}

impl Providers {
    /// Those of this host only.
    pub(crate) fn new(host: Arc<dyn Provider>) -> Self {
        Self { of_host: host.capacity(), host, stale: true }
    }

    /// Whether there are environments for an executor.
    pub(crate) fn has(&self, executor: &str) -> bool {
        executor == ON_HOST
    }

    /// Where the runner's jobs run.
    pub(crate) fn of(&self, _runner: &RunnerSettings) -> Arc<dyn Provider> {
        Arc::clone(&self.host)
    }

    /// Other runners.
    pub(crate) fn configure(&mut self) {
        self.stale = true;
    }

    /// How many jobs each runner can have by its provider; nothing where that is as it was told before.
    pub(crate) fn capacities(&mut self, runners: &[Arc<RunnerSettings>]) -> Vec<(RunnerKey, Capacity)> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        let of_host = self.of_host.borrow_and_update().clone();
        runners.iter().map(|runner| (runner.key.clone(), of_host.clone())).collect()
    }

    /// Waits until a capacity is another one than was seen. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        if self.of_host.changed().await.is_err() {
            // A provider that is gone tells nothing more.
            std::future::pending().await
        }
        self.stale = true;
    }
}
