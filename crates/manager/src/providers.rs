//! Which provider has the environments of which runner.
//!
//! All runners of the executor `shell` share this host. A runner of the executor `instance` has instances of its own, whose
//! provider lives as long as the runner is in the file with that executor, and then until its last job has ended; its
//! instances and its books go with it.

mod shelf;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use muster_config::settings::{AutoscalerSettings, RunnerKey, RunnerSettings};
use muster_executor::instance::{Executable, InstanceExecutor, InstanceOptions, PluginSpec};
use muster_executor::{Capacity, EnvironmentRequest, Executor, ExecutorError, Lease, LeaseRecord, SlotKey};
use muster_telemetry::Telemetry;
use muster_telemetry::metrics::EntryLabels;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use self::shelf::{Own, Shelf};
use crate::fleets::Shown;
use crate::observe::labels;

/// The executor of this host.
const SHELL: &str = "shell";
/// The executor of instances.
const INSTANCE: &str = "instance";
/// For the instances of a runner that is not in the file any more.
const RETIRE_LIMIT: Duration = Duration::from_secs(60);
/// What becomes of instances that a manager leaves.
const FOUND_AGAIN: &str = "the next start finds them";

/// What instances need of this machine.
#[derive(Debug, Clone)]
pub struct Instances {
    /// Where the books of the scalers are kept.
    pub books: PathBuf,
    /// What the agent on an instance is.
    pub executable: Arc<Executable>,
    /// How to run a plugin, by what `plugin` says; or why there is none.
    pub find_plugin: fn(&str) -> Result<PluginSpec, String>,
}

struct Fleet {
    provider: Arc<InstanceExecutor>,
    capacity: watch::Receiver<Capacity>,
    own: Own,
    labels: EntryLabels,
}

/// The providers of all runners.
pub(crate) struct Providers {
    host: Arc<dyn Executor>,
    of_host: watch::Receiver<Capacity>,
    instances: Option<Instances>,
    /// Where operators see the fleets; none without instances.
    shown: Option<Shown>,
    fleets: BTreeMap<RunnerKey, Fleet>,
    /// The runners that have instances, in the order of the file.
    wanted: Vec<RunnerKey>,
    /// Fleets of runners that are gone: whose.
    ending: JoinSet<RunnerKey>,
    /// Whose turn it is with the books of a runner: a fleet that ends may still be at it.
    turns: BTreeMap<RunnerKey, Arc<tokio::sync::Mutex<()>>>,
    /// All jobs of an earlier start have been taken up.
    is_complete: bool,
    /// No more jobs are requested.
    is_draining: bool,
    /// Something is to be told that [`Self::capacities`] has not told yet.
    stale: bool,
}

impl Providers {
    /// Those of this host only.
    pub(crate) fn new(host: Arc<dyn Executor>) -> Self {
        Self {
            of_host: host.capacity(),
            host,
            instances: None,
            shown: None,
            fleets: BTreeMap::new(),
            wanted: Vec::new(),
            ending: JoinSet::new(),
            turns: BTreeMap::new(),
            is_complete: false,
            is_draining: false,
            stale: true,
        }
    }

    /// Those of instances too, which operators see in `telemetry`.
    pub(crate) fn allow(&mut self, instances: Instances, telemetry: &Telemetry) {
        self.shown = Some(Shown::new(telemetry, instances.books.clone()));
        self.instances = Some(instances);
    }

    /// Whether there can be environments for a runner.
    pub(crate) fn has(&self, runner: &RunnerSettings) -> bool {
        match runner.executor.as_str() {
            SHELL => true,
            INSTANCE => self.fleets.contains_key(&runner.key),
            _ => false,
        }
    }

    /// Where the jobs run that were taken with these settings; `key` is what their runner goes by now.
    pub(crate) fn of(&self, runner: &RunnerSettings, key: &RunnerKey) -> Arc<dyn Executor> {
        if runner.executor != INSTANCE {
            return Arc::clone(&self.host);
        }
        match self.fleets.get(key) {
            Some(fleet) => Arc::<InstanceExecutor>::clone(&fleet.provider),
            None => Arc::new(Nowhere { capacity: watch::Sender::new(Capacity::of(0)) }),
        }
    }

    /// Other runners. Providers of runners that are gone end; `has_jobs` says which may not yet.
    pub(crate) fn configure(&mut self, runners: &[Arc<RunnerSettings>], has_jobs: impl Fn(&RunnerKey) -> bool) {
        self.stale = true;
        self.wanted.clear();
        for runner in runners.iter().filter(|runner| runner.executor == INSTANCE) {
            let Some(settings) = &runner.autoscaler else {
                tracing::error!(
                    runner = runner.name,
                    "executor `instance` needs [runners.autoscaler]: no jobs are requested"
                );
                continue;
            };
            self.wanted.push(runner.key.clone());
            if let Some(fleet) = self.fleets.get_mut(&runner.key) {
                fleet.provider.configure(&fleet.own.settings(settings), runner.request_concurrency);
                fleet.labels = labels(runner);
                continue;
            }
            match self.start(runner, settings, runners) {
                Ok(fleet) => drop(self.fleets.insert(runner.key.clone(), fleet)),
                Err(error) => tracing::error!(runner = runner.name, error, "no jobs are requested for this runner"),
            }
        }
        self.retire(has_jobs);
        self.show();
    }

    /// Ends the providers of runners that are gone, or have another executor, and have no jobs any more.
    pub(crate) fn retire(&mut self, has_jobs: impl Fn(&RunnerKey) -> bool) {
        while let Some(ended) = self.ending.try_join_next() {
            self.forget(ended);
        }
        let wanted: BTreeSet<&RunnerKey> = self.wanted.iter().collect();
        let gone = |key: &&RunnerKey| !wanted.contains(key) && !has_jobs(key);
        let gone: Vec<RunnerKey> = self.fleets.keys().filter(gone).cloned().collect();
        for key in &gone {
            if let Some(Fleet { provider, labels, .. }) = self.fleets.remove(key) {
                tracing::info!(
                    runner = labels.runner_name,
                    "it is gone from the configuration: its instances are removed"
                );
                let key = key.clone();
                self.ending.spawn(async move {
                    let left = provider.retire(RETIRE_LIMIT).await;
                    told(
                        &labels.runner_name,
                        &left,
                        "they are not removed by anyone any more: remove them at the provider",
                    );
                    key
                });
            }
        }
        if !gone.is_empty() {
            self.stale = true;
            self.show();
        }
    }

    /// A fleet has ended: of its runner nothing stays, unless it is in the file again.
    fn forget(&mut self, ended: Result<RunnerKey, JoinError>) {
        let Ok(key) = ended else { return };
        if let Some(instances) = &self.instances
            && !self.fleets.contains_key(&key)
        {
            Shelf { folder: &instances.books }.forget(&key);
        }
    }

    /// Operators see the fleets of the file in its order, then those that end.
    fn show(&self) {
        let Some(shown) = &self.shown else { return };
        let ending = self.fleets.keys().filter(|key| !self.wanted.contains(key));
        let fleets = self.wanted.iter().chain(ending).filter_map(|key| self.fleets.get(key));
        shown.set(fleets.map(|fleet| (fleet.labels.clone(), Arc::clone(&fleet.provider))).collect());
    }

    fn start(
        &mut self,
        runner: &RunnerSettings,
        settings: &Arc<AutoscalerSettings>,
        runners: &[Arc<RunnerSettings>],
    ) -> Result<Fleet, String> {
        let instances = self.instances.as_ref().ok_or("this manager has no instances")?;
        // What still has jobs, or still removes its instances, keeps its books.
        let busy = self.turns.iter().filter(|(_, turn)| turn.try_lock().is_err()).map(|(key, _)| key);
        let known = runners.iter().map(|runner| &runner.key).chain(self.fleets.keys()).chain(busy);
        let own = Shelf { folder: &instances.books }.take(runner, &known.cloned().collect())?;
        let name = if runner.name.is_empty() { runner.key.to_string() } else { runner.name.clone() };
        let provider = InstanceExecutor::start(InstanceOptions {
            name,
            settings: own.settings(settings),
            find_plugin: instances.find_plugin,
            requests: runner.request_concurrency,
            books: own.books.clone(),
            turn: Arc::clone(self.turns.entry(runner.key.clone()).or_default()),
            executable: Arc::clone(&instances.executable),
        });
        if self.is_complete {
            // No job of an earlier start will ask for a lease of its books any more.
            provider.expected_all();
        }
        if self.is_draining {
            provider.drain();
        }
        Ok(Fleet { capacity: provider.capacity(), provider, own, labels: labels(runner) })
    }

    /// Tells of instances that no runner has any more.
    fn tell_orphans(&self) {
        let Some(instances) = self.instances.as_ref().filter(|instances| instances.books.exists()) else { return };
        let unix = crate::clock::unix_now();
        let shelf = Shelf { folder: &instances.books };
        shelf.forget_others(self.wanted.iter().chain(self.fleets.keys()));
        match shelf.orphans(self.wanted.iter(), unix) {
            Ok(orphans) => orphans.iter().for_each(|orphan| {
                tracing::warn!(
                    runner = orphan.runner,
                    instances = orphan.instances.join(", "),
                    books = %orphan.books.display(),
                    "these instances are of a runner that is not in the configuration with executor `instance` any more: \
                     nobody uses or removes them, and they may cost money; put the runner back and take it out while the \
                     manager runs, or remove them at the provider, and then the books"
                );
            }),
            Err(error) => tracing::error!(error, "the books of earlier fleets cannot be read"),
        }
    }

    /// No jobs are requested any more: nothing is kept idle.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
        self.fleets.values().for_each(|fleet| fleet.provider.drain());
    }

    /// All jobs of an earlier start have been taken up.
    pub(crate) fn expected_all(&mut self) {
        self.is_complete = true;
        self.tell_orphans();
        self.fleets.values().for_each(|fleet| fleet.provider.expected_all());
    }

    /// How many jobs each runner can have by its provider; nothing where that is as it was told before.
    pub(crate) fn capacities(&mut self, runners: &[Arc<RunnerSettings>]) -> Vec<(RunnerKey, Capacity)> {
        if !std::mem::take(&mut self.stale) {
            return Vec::new();
        }
        let of_host = self.of_host.borrow_and_update().clone();
        let capacity = |runner: &Arc<RunnerSettings>| {
            let fleet = self.fleets.get_mut(&runner.key).filter(|_| runner.executor == INSTANCE);
            let capacity = fleet.map_or_else(|| of_host.clone(), |fleet| fleet.capacity.borrow_and_update().clone());
            (runner.key.clone(), capacity)
        };
        runners.iter().map(capacity).collect()
    }

    /// The coordinator answered a job request of the runner. `at_once`: with a job, and without holding the request.
    pub(crate) fn answered(&self, runner: &RunnerKey, at_once: bool) {
        if let Some(fleet) = self.fleets.get(runner) {
            fleet.provider.answered(at_once);
        }
    }

    /// Waits until a capacity is another one than was seen. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        let fleets = self.fleets.values_mut().map(|fleet| &mut fleet.capacity);
        let all = std::iter::once(&mut self.of_host).chain(fleets);
        let changes = all.map(|capacity| {
            async move {
                if capacity.changed().await.is_err() {
                    // A provider that is gone tells nothing more.
                    std::future::pending().await
                }
            }
            .boxed()
        });
        let ended = tokio::select! {
            _ = select_all(changes) => None,
            Some(ended) = self.ending.join_next() => Some(ended),
        };
        match ended {
            Some(ended) => self.forget(ended),
            None => self.stale = true,
        }
    }

    /// Ends all fleets, each within about `limit`.
    pub(crate) async fn stop(&mut self, limit: Duration) {
        let fleets = std::mem::take(&mut self.fleets);
        let stopped = join_all(fleets.into_values().map(|Fleet { provider, labels, .. }| async move {
            let left = provider.stop(limit).await;
            told(&labels.runner_name, &left, FOUND_AGAIN);
        }));
        let retired = async { while self.ending.join_next().await.is_some() {} };
        let _ = tokio::join!(stopped, tokio::time::timeout(limit, retired));
    }
}

/// Logs the instances of each runner that the books in `folder` name, for a manager that is ended before it has done so.
pub fn log_instances_left(folder: &Path) {
    if !folder.exists() {
        return;
    }
    match (Shelf { folder }).orphans(std::iter::empty(), crate::clock::unix_now()) {
        Ok(fleets) => fleets.iter().for_each(|fleet| told(&fleet.runner, &fleet.instances, FOUND_AGAIN)),
        Err(error) => tracing::error!(error, "the books of the instances cannot be read: which are left is not known"),
    }
}

fn told(runner: &str, left: &[String], what_then: &str) {
    if left.is_empty() {
        tracing::info!(runner, "no instance is left");
    } else {
        tracing::info!(runner, left = left.join(", "), "these instances are left; {what_then}");
    }
}

/// For jobs of a runner that has no instances any more.
struct Nowhere {
    capacity: watch::Sender<Capacity>,
}

impl Nowhere {
    const WHY: &str = "its runner is not in the configuration any more, or has no instances";
}

#[async_trait]
impl Executor for Nowhere {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, _: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        Err(ExecutorError::NotAcquired(format!("no instance can be had for the job: {}", Self::WHY)))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        let environment = format!("instance {}", record.environment);
        Err(ExecutorError::Lost { environment, message: Self::WHY.to_owned() })
    }
}
