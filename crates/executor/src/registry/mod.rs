//! Executors by name, as `executor = "..."` of a `[[runners]]` entry in `config.toml` selects them.
//!
//! # How to add an executor
//!
//! 1. Implement [`Executor`] and [`ExecutionEnvironment`](crate::ExecutionEnvironment) in a module of this crate, or in
//!    a separate crate. Optional abilities are the capability traits of the port: implement what applies.
//! 2. Register it by name where the binary builds the registry (`muster::runner::run::executors`), with one line:
//!
//! ```
//! # use std::sync::Arc;
//! # use muster_executor::Executor;
//! # use muster_executor::registry::{ConfigureError, Registry};
//! # fn chroot(_: &muster_config::settings::RunnerSettings) -> Result<Arc<dyn Executor>, ConfigureError> { Err("no root".into()) }
//! let registry = Registry::new().register("chroot", chroot);
//! ```
//!
//! The function receives the checked settings of a runner and returns its executor. There are three ways to register,
//! and [`Registry::alias`] gives an executor further names:
//!
//! - [`Registry::register`]: each runner has a separate executor. This is the usual choice.
//! - [`Registry::register_shared`]: all runners share one executor, as they share this host.
//! - [`Registry::register_kind`]: for executors that own something beyond their jobs, such as instances
//!   ([`ExecutorKind`]).
//!
//! 3. Add the name to those that the configuration accepts (`muster_config::EXECUTORS`).
//!
//! The executor of a runner exists until the configuration no longer has it and its last job has ended.

mod kind;
#[cfg(test)]
mod tests;
mod unavailable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join_all, select_all};
use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_job::error_chain;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::kind::PerRunner;
pub use self::kind::{ConfigureError, ExecutorKind};
use self::unavailable::UnavailableExecutor;
use crate::{Capacity, Executor};

/// All executors, by name and runner.
pub struct Registry {
    /// Executors that several runners share, by name.
    shared: BTreeMap<&'static str, ProvidedExecutor>,
    kinds: BTreeMap<&'static str, Arc<dyn ExecutorKind>>,
    /// Registered name of each alias.
    aliases: BTreeMap<&'static str, &'static str>,
    runners: BTreeMap<(RunnerKey, &'static str), ProvidedExecutor>,
    /// Configured runners, with the names of their executors.
    configured: Vec<(RunnerKey, &'static str)>,
    /// Tasks that clean up after removed executors.
    removals: JoinSet<()>,
    /// Whether a capacity has changed since the last [`Self::capacities`] call.
    capacities_dirty: bool,
}

struct ProvidedExecutor {
    executor: Arc<dyn Executor>,
    capacity: watch::Receiver<Capacity>,
}

impl ProvidedExecutor {
    fn new(executor: Arc<dyn Executor>) -> Self {
        Self { capacity: executor.capacity(), executor }
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// Returns an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: BTreeMap::new(),
            kinds: BTreeMap::new(),
            aliases: BTreeMap::new(),
            runners: BTreeMap::new(),
            configured: Vec::new(),
            removals: JoinSet::new(),
            capacities_dirty: true,
        }
    }

    /// Registers a function that creates the executor of a runner, or returns the reason why it cannot.
    #[must_use]
    pub fn register<F>(self, name: &'static str, create: F) -> Self
    where
        F: Fn(&RunnerSettings) -> Result<Arc<dyn Executor>, ConfigureError> + Send + Sync + 'static,
    {
        self.register_kind(name, Arc::new(PerRunner::new(create)))
    }

    /// Registers an executor that all runners with `executor = name` share.
    #[must_use]
    pub fn register_shared(mut self, name: &'static str, executor: Arc<dyn Executor>) -> Self {
        self.shared.insert(name, ProvidedExecutor::new(executor));
        self
    }

    /// Registers a kind of executors that own something beyond their jobs.
    #[must_use]
    pub fn register_kind(mut self, name: &'static str, kind: Arc<dyn ExecutorKind>) -> Self {
        self.kinds.insert(name, kind);
        self
    }

    /// Gives a registered executor another name.
    ///
    /// A runner that changes from one name to the other keeps its executor.
    #[must_use]
    pub fn alias(mut self, name: &'static str, registered: &'static str) -> Self {
        self.aliases.insert(name, registered);
        self
    }

    /// Returns whether the runner has an executor and can have new jobs.
    ///
    /// An executor that the last configuration failed to create only finishes its jobs.
    #[must_use]
    pub fn has(&self, runner: &RunnerSettings) -> bool {
        let executor = registered_name(&self.aliases, &runner.executor);
        runner.steps.problem.is_none()
            && self.find(executor, &runner.key).is_some()
            && (self.shared.contains_key(executor) || is_configured(&self.configured, &runner.key, executor))
    }

    /// Returns the executor of jobs that were received with the given settings. `key` is the current key of their
    /// runner.
    ///
    /// If the runner no longer has this executor, returns one that provides no environments.
    #[must_use]
    pub fn executor(&self, runner: &RunnerSettings, key: &RunnerKey) -> Arc<dyn Executor> {
        match self.find(&runner.executor, key) {
            Some(provided) => Arc::clone(&provided.executor),
            None => Arc::new(UnavailableExecutor::new()),
        }
    }

    fn find(&self, executor: &str, runner: &RunnerKey) -> Option<&ProvidedExecutor> {
        let executor = registered_name(&self.aliases, executor);
        let of_runner = || {
            let (name, _) = self.kinds.get_key_value(executor)?;
            self.runners.get(&(runner.clone(), *name))
        };
        self.shared.get(executor).or_else(of_runner)
    }

    /// Applies a configuration.
    ///
    /// Removes executors that are no longer configured, unless `has_jobs` returns true for their runner.
    pub fn configure(&mut self, runners: &[Arc<RunnerSettings>], has_jobs: impl Fn(&RunnerKey) -> bool) {
        self.capacities_dirty = true;
        self.configured.clear();
        for runner in runners {
            if let Some(error) = &runner.steps.problem {
                // The executor remains, because its instances may have jobs.
                tracing::error!(runner = runner.name, error, "invalid [runners.steps]; the runner requests no jobs");
            }
            let executor = registered_name(&self.aliases, &runner.executor);
            let Some((name, kind)) = self.kinds.get_key_value(executor) else { continue };
            match kind.configure(runner, runners) {
                Ok(executor) => {
                    let id = (runner.key.clone(), *name);
                    self.configured.push(id.clone());
                    match self.runners.get(&id) {
                        Some(known) if Arc::ptr_eq(&known.executor, &executor) => {}
                        _ => drop(self.runners.insert(id, ProvidedExecutor::new(executor))),
                    }
                }
                Err(error) => {
                    tracing::error!(
                        runner = runner.name,
                        error = error_chain(error.as_ref()),
                        "failed to create the executor of a runner; the runner requests no jobs"
                    );
                }
            }
        }
        self.remove_unused(has_jobs);
        self.announce_configured();
    }

    /// Removes the executors that are no longer configured and whose runners have no jobs.
    pub fn remove_unused(&mut self, has_jobs: impl Fn(&RunnerKey) -> bool) {
        while self.removals.try_join_next().is_some() {}
        let configured: BTreeSet<_> = self.configured.iter().collect();
        let is_unused = |id: &&(RunnerKey, &'static str)| !configured.contains(id) && !has_jobs(&id.0);
        let unused: Vec<_> = self.runners.keys().filter(is_unused).cloned().collect();
        for id in &unused {
            self.runners.remove(id);
            if let Some(removal) = self.kinds.get(id.1).and_then(|kind| kind.remove(&id.0)) {
                self.removals.spawn(removal);
            }
        }
        if !unused.is_empty() {
            self.capacities_dirty = true;
            self.announce_configured();
        }
    }

    fn announce_configured(&self) {
        for (name, kind) in &self.kinds {
            let runners = self.configured.iter().filter(|(_, executor)| executor == name);
            kind.configured(&runners.map(|(key, _)| key.clone()).collect::<Vec<_>>());
        }
    }

    /// Reports that the manager requests no more jobs.
    pub fn drain(&mut self) {
        self.kinds.values().for_each(|kind| kind.drain());
    }

    /// Reports that all leases of an earlier manager process have been announced.
    pub fn leases_announced(&mut self) {
        self.kinds.values().for_each(|kind| kind.leases_announced());
    }

    /// Returns the capacity of each runner, or an empty list if no capacity has changed since the last call.
    ///
    /// A runner that requests no jobs has a capacity of 0.
    pub fn capacities(&mut self, runners: &[Arc<RunnerSettings>]) -> Vec<(RunnerKey, Capacity)> {
        if !std::mem::take(&mut self.capacities_dirty) {
            return Vec::new();
        }
        let (shared, kinds, of_runners, aliases) = (&mut self.shared, &self.kinds, &mut self.runners, &self.aliases);
        let configured = &self.configured;
        let mut capacity = |runner: &Arc<RunnerSettings>| {
            let executor = registered_name(aliases, &runner.executor);
            let provided = match (shared.get_mut(executor), kinds.get_key_value(executor)) {
                (Some(shared), _) => Some(shared),
                (None, Some((name, _))) if is_configured(configured, &runner.key, name) => {
                    of_runners.get_mut(&(runner.key.clone(), *name))
                }
                (None, _) => None,
            };
            let capacity = provided.map(|provided| provided.capacity.borrow_and_update().clone());
            let capacity = capacity.filter(|_| runner.steps.problem.is_none());
            (runner.key.clone(), capacity.unwrap_or_else(|| Capacity::of(0)))
        };
        runners.iter().map(&mut capacity).collect()
    }

    /// Reports an answer to a job request of the runner
    /// ([`Elastic::request_answered`](crate::Elastic::request_answered)).
    pub fn request_answered(&self, runner: &RunnerKey, is_immediate_job: bool) {
        let of_runner = self.runners.iter().filter(|((key, _), _)| key == runner);
        for executor in of_runner.filter_map(|(_, provided)| provided.executor.elastic()) {
            executor.request_answered(is_immediate_job);
        }
    }

    /// Waits until a capacity changes, or until the cleanup after a removed executor ends. Cancel-safe.
    pub async fn changed(&mut self) {
        let all = self.shared.values_mut().chain(self.runners.values_mut());
        let changes = all.map(|provided| {
            async move {
                if provided.capacity.changed().await.is_err() {
                    // A removed executor has no further changes.
                    std::future::pending().await
                }
            }
            .boxed()
        });
        // The added future never completes, so without executors this waits indefinitely.
        let changes: Vec<_> = changes.chain(std::iter::once(std::future::pending().boxed())).collect();
        tokio::select! {
            _ = select_all(changes) => self.capacities_dirty = true,
            Some(_) = self.removals.join_next() => {}
        }
    }

    /// Stops the executors of all kinds within about `timeout`. Shared executors need no stop.
    pub async fn stop(&mut self, timeout: Duration) {
        self.runners.clear();
        let stopped = join_all(self.kinds.values().map(|kind| kind.stop(timeout)));
        let removed = async { while self.removals.join_next().await.is_some() {} };
        let _ = tokio::join!(stopped, tokio::time::timeout(timeout, removed));
    }
}

fn is_configured(configured: &[(RunnerKey, &'static str)], runner: &RunnerKey, executor: &str) -> bool {
    configured.iter().any(|(key, name)| key == runner && *name == executor)
}

fn registered_name<'a>(aliases: &BTreeMap<&'static str, &'static str>, executor: &'a str) -> &'a str {
    aliases.get(executor).copied().unwrap_or(executor)
}
