//! Which provider has the environments of which runner.
//!
//! All runners of the executor `shell` share this host. A runner of the executor `instance` has instances of its own, whose
//! provider lives as long as the runner is in the file, and then until its last job has ended.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use muster_environment::instance::{Executable, InstanceOptions, InstanceProvider, PluginSpec};
use muster_environment::{Asking, Capacity, EnvironmentError, Lease, LeaseRecord, Provider, SlotKey};
use muster_telemetry::Telemetry;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::fleets::Shown;
use crate::observe::labels;
use crate::settings::{RunnerKey, RunnerSettings};

/// The executor of this host.
const SHELL: &str = "shell";
/// The executor of instances.
const INSTANCE: &str = "instance";
/// Hexadecimal digits of a runner's key in a file name.
const KEY_DIGITS: usize = 16;

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
    provider: Arc<InstanceProvider>,
    capacity: watch::Receiver<Capacity>,
}

/// The providers of all runners.
pub(crate) struct Providers {
    host: Arc<dyn Provider>,
    of_host: watch::Receiver<Capacity>,
    instances: Option<Instances>,
    /// Where operators see the fleets; none without instances.
    shown: Option<Shown>,
    fleets: BTreeMap<RunnerKey, Fleet>,
    /// Something is to be told that [`Self::capacities`] has not told yet.
    stale: bool,
}

impl Providers {
    /// Those of this host only.
    pub(crate) fn new(host: Arc<dyn Provider>) -> Self {
        Self { of_host: host.capacity(), host, instances: None, shown: None, fleets: BTreeMap::new(), stale: true }
    }

    /// Those of instances too, which operators see in `telemetry`.
    pub(crate) fn allow(&mut self, instances: Instances, telemetry: &Telemetry) {
        self.instances = Some(instances);
        self.shown = Some(Shown::new(telemetry));
    }

    /// Whether there can be environments for a runner.
    pub(crate) fn has(&self, runner: &RunnerSettings) -> bool {
        match runner.executor.as_str() {
            SHELL => true,
            INSTANCE => self.fleets.contains_key(&runner.key),
            _ => false,
        }
    }

    /// Where the runner's jobs run.
    pub(crate) fn of(&self, runner: &RunnerSettings) -> Arc<dyn Provider> {
        if runner.executor != INSTANCE {
            return Arc::clone(&self.host);
        }
        match self.fleets.get(&runner.key) {
            Some(fleet) => Arc::<InstanceProvider>::clone(&fleet.provider),
            None => Arc::new(Nowhere { capacity: watch::Sender::new(Capacity::of(0)) }),
        }
    }

    /// Other runners. Providers of runners that are gone end; `has_jobs` says which may not yet.
    pub(crate) fn configure(&mut self, runners: &[Arc<RunnerSettings>], has_jobs: impl Fn(&RunnerKey) -> bool) {
        self.stale = true;
        for runner in runners.iter().filter(|runner| runner.executor == INSTANCE) {
            let Some(settings) = &runner.autoscaler else {
                tracing::error!(
                    runner = runner.name,
                    "executor `instance` needs [runners.autoscaler]: no jobs are requested"
                );
                continue;
            };
            if let Some(fleet) = self.fleets.get(&runner.key) {
                fleet.provider.set_policies(settings);
                continue;
            }
            match self.start(runner) {
                Ok(fleet) => drop(self.fleets.insert(runner.key.clone(), fleet)),
                Err(error) => tracing::error!(runner = runner.name, error, "no jobs are requested for this runner"),
            }
        }
        let gone = |key: &RunnerKey| runners.iter().all(|runner| runner.key != *key) && !has_jobs(key);
        let gone: Vec<RunnerKey> = self.fleets.keys().filter(|key| gone(key)).cloned().collect();
        for key in gone {
            if let Some(fleet) = self.fleets.remove(&key) {
                tokio::spawn(end(key, fleet.provider, END_LIMIT));
            }
        }
        if let Some(shown) = &self.shown {
            let fleet = |runner: &Arc<RunnerSettings>| {
                Some((labels(runner), Arc::clone(&self.fleets.get(&runner.key)?.provider)))
            };
            shown.set(runners.iter().filter_map(fleet).collect());
        }
    }

    fn start(&self, runner: &RunnerSettings) -> Result<Fleet, String> {
        let instances = self.instances.as_ref().ok_or("this manager has no instances")?;
        let settings = runner.autoscaler.clone().ok_or("there is no [runners.autoscaler]")?;
        let digest = format!("{:x}", Sha256::digest(runner.key.as_str()));
        let own = format!("{}.books", digest.get(..KEY_DIGITS).unwrap_or(&digest));
        let folder = &instances.books;
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot create directory {}: {error}", folder.display()))?;
        let books = folder.join(own);
        let name = if runner.name.is_empty() { runner.key.to_string() } else { runner.name.clone() };
        let groups = settings.all_groups(&name);
        let plugins = groups.iter().map(|group| (instances.find_plugin)(&group.plugin)).collect::<Result<_, _>>()?;
        let provider = InstanceProvider::start(InstanceOptions {
            name,
            settings,
            plugins,
            requests: runner.request_concurrency,
            books,
            executable: Arc::clone(&instances.executable),
        });
        Ok(Fleet { capacity: provider.capacity(), provider })
    }

    /// All jobs of an earlier start have been taken up.
    pub(crate) fn expected_all(&self) {
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
        select_all(changes).await;
        self.stale = true;
    }

    /// Ends all fleets, each within about `limit`.
    pub(crate) async fn stop(&mut self, limit: Duration) {
        let fleets = std::mem::take(&mut self.fleets);
        join_all(fleets.into_iter().map(|(key, fleet)| end(key, fleet.provider, limit))).await;
    }
}

/// For the instances of a runner that was removed from the file.
const END_LIMIT: Duration = Duration::from_secs(60);

async fn end(runner: RunnerKey, provider: Arc<InstanceProvider>, limit: Duration) {
    let left = provider.stop(limit).await;
    if left.is_empty() {
        tracing::info!(%runner, "no instance is left");
    } else {
        tracing::info!(%runner, left = left.join(", "), "these instances are left; the next start finds them");
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
impl Provider for Nowhere {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, _: &SlotKey, _: &Asking) -> Result<Lease, EnvironmentError> {
        Err(EnvironmentError::NotAcquired(format!("no instance can be had for the job: {}", Self::WHY)))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, EnvironmentError> {
        let environment = format!("instance {}", record.environment);
        Err(EnvironmentError::Lost { environment, message: Self::WHY.to_owned() })
    }
}
