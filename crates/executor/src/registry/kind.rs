//! What is registered under a name: the source of the executors of runners.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use muster_config::settings::{RunnerKey, RunnerSettings};
use parking_lot::Mutex;

use crate::Executor;

/// Source of the executors of one name, which owns more than they do: files, machines, a socket.
#[async_trait]
pub trait ExecutorKind: Send + Sync + 'static {
    /// Returns the executor of a runner. Called for each of its runners with each configuration; `runners` are all that are configured.
    ///
    /// # Errors
    /// A message that says why the runner cannot have one. No jobs are requested for the runner then.
    fn configure(
        &self,
        runner: &Arc<RunnerSettings>,
        runners: &[Arc<RunnerSettings>],
    ) -> Result<Arc<dyn Executor>, String>;

    /// These runners have the executor, in the order of the configuration. Called after changes.
    fn configured(&self, _runners: &[RunnerKey]) {}

    /// A runner that was removed from the configuration, or has another executor, has no jobs any more. Returns what deletes its
    /// environments. From now on its executor is not in use.
    fn remove(&self, _runner: &RunnerKey) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// All leases of an earlier start have been announced.
    fn leases_announced(&self) {}

    /// No more jobs are requested.
    fn drain(&self) {}

    /// The manager exits. Returns within about `timeout`.
    async fn stop(&self, _timeout: Duration) {}
}

/// Kind whose executors come from a function of the runner's settings. Other settings give another executor; jobs keep theirs.
pub(super) struct PerRunner<F> {
    create: F,
    created: Mutex<BTreeMap<RunnerKey, Created>>,
}

/// An executor, with the settings that it was created from.
type Created = (Arc<RunnerSettings>, Arc<dyn Executor>);

impl<F> PerRunner<F> {
    pub(super) fn new(create: F) -> Self {
        Self { create, created: Mutex::default() }
    }
}

impl<F> ExecutorKind for PerRunner<F>
where
    F: Fn(&RunnerSettings) -> Result<Arc<dyn Executor>, String> + Send + Sync + 'static,
{
    fn configure(&self, runner: &Arc<RunnerSettings>, _: &[Arc<RunnerSettings>]) -> Result<Arc<dyn Executor>, String> {
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
