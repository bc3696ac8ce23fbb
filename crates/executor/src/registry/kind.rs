//! Executor kinds, which are registered under the names of executors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use muster_config::settings::{RunnerKey, RunnerSettings};
use parking_lot::Mutex;

use crate::Executor;

/// Reason why a runner cannot have an executor.
pub type ConfigureError = Box<dyn std::error::Error + Send + Sync>;

/// Source of all executors of one name.
#[async_trait]
pub trait ExecutorKind: Send + Sync + 'static {
    /// Returns the executor of a runner.
    ///
    /// Called for each runner of this kind with each new configuration. `runners` are all configured runners.
    ///
    /// # Errors
    /// [`ConfigureError`] if the runner cannot have an executor. The manager then requests no jobs for the runner.
    fn configure(
        &self,
        runner: &Arc<RunnerSettings>,
        runners: &[Arc<RunnerSettings>],
    ) -> Result<Arc<dyn Executor>, ConfigureError>;

    /// Receives the runners that have this kind of executor, in the order of the configuration.
    ///
    /// Called after each new configuration and after the removal of executors.
    fn configured(&self, _runners: &[RunnerKey]) {}

    /// Removes the executor of a runner that has no jobs left and no longer uses it.
    ///
    /// Returns a future that deletes the environments of the runner. `None` means that there is nothing to delete.
    fn remove(&self, _runner: &RunnerKey) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Called when all leases of an earlier manager process have been announced.
    fn leases_announced(&self) {}

    /// Called when the manager requests no more jobs.
    fn drain(&self) {}

    /// Stops all executors within about `timeout`, because the manager exits.
    async fn stop(&self, _timeout: Duration) {}
}

/// Kind whose executors are created from a runner's settings.
///
/// Changed settings create another executor. Running jobs keep the executor with which they started.
pub(super) struct PerRunner<F> {
    create: F,
    created: Mutex<BTreeMap<RunnerKey, CreatedExecutor>>,
}

/// An executor, with the settings from which it was created.
type CreatedExecutor = (Arc<RunnerSettings>, Arc<dyn Executor>);

impl<F> PerRunner<F> {
    pub(super) fn new(create: F) -> Self {
        Self { create, created: Mutex::default() }
    }
}

impl<F> ExecutorKind for PerRunner<F>
where
    F: Fn(&RunnerSettings) -> Result<Arc<dyn Executor>, ConfigureError> + Send + Sync + 'static,
{
    fn configure(
        &self,
        runner: &Arc<RunnerSettings>,
        _: &[Arc<RunnerSettings>],
    ) -> Result<Arc<dyn Executor>, ConfigureError> {
        let mut executors = self.created.lock();
        if let Some((_, known)) = executors.get(&runner.key).filter(|(settings, _)| Arc::ptr_eq(settings, runner)) {
            return Ok(Arc::clone(known));
        }
        let created = (self.create)(runner)?;
        executors.insert(runner.key.clone(), (Arc::clone(runner), Arc::clone(&created)));
        Ok(created)
    }

    fn remove(&self, runner: &RunnerKey) -> Option<BoxFuture<'static, ()>> {
        self.created.lock().remove(runner);
        None
    }
}
