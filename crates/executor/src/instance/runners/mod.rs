//! Executors of all runners that use instances (`instance`, `docker-autoscaler`, `docker+machine`), with their ledgers
//! and the operator socket.
//!
//! When a runner was removed and its last job has ended, its instances and its ledger are deleted. When the manager
//! exits, the next start of the manager uses the remaining instances again.

mod fleet_list;
mod ledger_dir;
mod operator_socket;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use muster_config::settings::{AutoscalerSettings, RunnerKey, RunnerSettings};
use muster_fleeting::host::PluginSpec;
use muster_job::error_chain;
use muster_taskscaler::driver::LedgerError;
use muster_taskscaler::fleet::FleetFromDisk;
use parking_lot::Mutex;

use self::fleet_list::Fleets;
use self::ledger_dir::{LedgerDir, LedgerDirError, OrphanedLedger, RunnerLedger};
use self::operator_socket::OperatorSocket;
use self::removal::Removal;
use super::group_plugins::unix_now;
use super::provider::{InstanceExecutor, InstanceOptions};
use super::remaining::Remaining;
use crate::Executor;
use crate::deploy::Executable;
use crate::port::Elastic as _;
use crate::registry::{ConfigureError, ExecutorKind};

pub use self::fleet_list::{Fleet, FleetList};

/// Name of the executor in the configuration.
pub const NAME: &str = "instance";
/// Initial and maximum pause before a ledger is opened again.
const OPEN_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Options of the executors for instances.
#[derive(Debug, Clone)]
pub struct InstancesOptions {
    /// Directory of the scalers' ledgers.
    pub ledgers: PathBuf,
    /// Agent for instances of the manager's platform.
    pub executable: Arc<Executable>,
    /// Returns how to start the plugin of this name, or the reason why this is impossible.
    pub find_plugin: fn(&str) -> Result<PluginSpec, String>,
}

/// Executors of all runners that use instances.
pub struct InstanceExecutors(Arc<Inner>);

struct Inner {
    options: InstancesOptions,
    listed: Arc<FleetList>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    fleets: BTreeMap<RunnerKey, RunnerFleet>,
    /// Removals in progress.
    removals: Vec<Removal>,
    /// Runners that use instances, in the order of the configuration.
    configured: Vec<RunnerKey>,
    /// Locks of the ledgers, also of fleets that are shutting down.
    ledger_locks: BTreeMap<RunnerKey, Arc<tokio::sync::Mutex<()>>>,
    phase: ManagerPhase,
    /// `None` before the first fleet is created.
    operator_socket: Option<OperatorSocket>,
}

/// Phase of the manager. It only moves forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ManagerPhase {
    /// Leases of an earlier manager process are being announced.
    #[default]
    Restoring,
    /// All leases of an earlier manager process have been announced.
    Working,
    Draining,
}

struct RunnerFleet {
    fleet: Fleet,
    ledger: RunnerLedger,
}

impl InstanceExecutors {
    /// Returns an empty collection.
    #[must_use]
    pub fn new(options: InstancesOptions) -> Self {
        Self(Arc::new(Inner { options, listed: Arc::default(), state: Mutex::default() }))
    }

    /// Returns the list of all fleets.
    #[must_use]
    pub fn fleets(&self) -> Arc<FleetList> {
        Arc::clone(&self.0.listed)
    }
}

#[async_trait]
impl ExecutorKind for InstanceExecutors {
    fn configure(
        &self,
        runner: &Arc<RunnerSettings>,
        runners: &[Arc<RunnerSettings>],
    ) -> Result<Arc<dyn Executor>, ConfigureError> {
        let missing = || format!("executor `{}` requires [runners.autoscaler]", runner.executor);
        let settings = runner.autoscaler.as_ref().ok_or_else(missing)?;
        let mut state = self.0.state.lock();
        if let Some(known) = state.fleets.get_mut(&runner.key) {
            known.fleet.executor.apply_settings(&known.ledger.settings(settings), runner.request_concurrency);
            known.fleet.runner = Arc::clone(runner);
        } else {
            // The new executor uses the remaining instances.
            let removals = state.removals.iter().filter(|removal| removal.fleet.runner.key == runner.key);
            removals.for_each(|removal| removal.limit(Duration::ZERO));
            let fleet = self.0.start(&mut state, runner, settings, runners);
            state.fleets.insert(runner.key.clone(), fleet);
        }
        let executor = state.fleets.get(&runner.key).map(|known| Arc::clone(&known.fleet.executor));
        executor.map(|executor| executor as Arc<dyn Executor>).ok_or_else(|| "the runner was removed".into())
    }

    fn configured(&self, runners: &[RunnerKey]) {
        let mut state = self.0.state.lock();
        state.configured = runners.to_vec();
        self.0.publish(&mut state);
    }

    fn remove(&self, runner: &RunnerKey) -> Option<BoxFuture<'static, ()>> {
        let mut state = self.0.state.lock();
        let RunnerFleet { fleet, .. } = state.fleets.remove(runner)?;
        tracing::info!(
            runner = fleet.runner.name,
            "runner was removed from the configuration or has another executor, deleting its instances"
        );
        let (removal, remove) = self.0.removal(fleet);
        state.removals.push(removal);
        Some(remove.boxed())
    }

    fn leases_announced(&self) {
        let mut state = self.0.state.lock();
        state.phase = state.phase.max(ManagerPhase::Working);
        self.0.warn_about_orphaned_ledgers(&state);
        let removed = state.removals.iter().map(|removal| &removal.fleet);
        let fleets = state.fleets.values().map(|known| &known.fleet).chain(removed);
        fleets.for_each(|fleet| fleet.executor.leases_announced());
    }

    fn drain(&self) {
        let mut state = self.0.state.lock();
        state.phase = ManagerPhase::Draining;
        state.fleets.values().for_each(|known| known.fleet.executor.drain());
    }

    async fn stop(&self, timeout: Duration) {
        let (fleets, removals) = {
            let mut state = self.0.state.lock();
            (std::mem::take(&mut state.fleets), std::mem::take(&mut state.removals))
        };
        removals.iter().for_each(|removal| removal.limit(timeout));
        let stopped = join_all(fleets.into_values().map(|RunnerFleet { fleet, .. }| async move {
            let remaining = fleet.executor.stop(timeout).await;
            log_stopped(&fleet.runner.name, remaining, RemainingUse::NextStart);
        }));
        tokio::join!(stopped, join_all(removals.iter().map(Removal::ended)));
    }
}

impl Inner {
    fn ledger_dir(&self) -> LedgerDir<'_> {
        LedgerDir { directory: &self.options.ledgers }
    }

    /// Starts the executor of a runner, which waits until the runner's ledger is open.
    fn start(
        self: &Arc<Self>,
        state: &mut State,
        runner: &Arc<RunnerSettings>,
        settings: &Arc<AutoscalerSettings>,
        runners: &[Arc<RunnerSettings>],
    ) -> RunnerFleet {
        let configured: BTreeSet<RunnerKey> = runners.iter().map(|runner| runner.key.clone()).collect();
        let (ledger, error) = match self.open_ledger(state, runner, &configured) {
            Ok(ledger) => (ledger, None),
            Err(error) => (self.ledger_dir().unopened(runner), Some(error_chain(&error))),
        };
        let name = if runner.name.is_empty() { runner.key.to_string() } else { runner.name.clone() };
        let options = InstanceOptions {
            name,
            settings: ledger.settings(settings),
            find_plugin: self.options.find_plugin,
            requests: runner.request_concurrency,
            ledger: ledger.path.clone(),
            ledger_lock: Arc::clone(state.ledger_locks.entry(runner.key.clone()).or_default()),
            executable: Arc::clone(&self.options.executable),
        };
        let opened = open_ledger(Arc::downgrade(self), Arc::clone(runner), configured, error.clone());
        let executor = InstanceExecutor::start(options, opened);
        if let Some(error) = error {
            executor.shared.publish_capacity(0, Some(error.into()));
        }
        if state.phase >= ManagerPhase::Working {
            // No job of an earlier manager process will claim a lease in this ledger anymore.
            executor.leases_announced();
        }
        if state.phase == ManagerPhase::Draining {
            executor.drain();
        }
        RunnerFleet { fleet: Fleet { runner: Arc::clone(runner), executor }, ledger }
    }

    fn open_ledger(
        &self,
        state: &State,
        runner: &RunnerSettings,
        configured: &BTreeSet<RunnerKey>,
    ) -> Result<RunnerLedger, LedgerDirError> {
        // The runner must not adopt the ledger of a runner that still has jobs, or whose instances are still being
        // deleted.
        let busy = state.ledger_locks.iter().filter(|(_, lock)| lock.try_lock().is_err()).map(|(key, _)| key);
        let in_use = state.configured.iter().chain(state.fleets.keys()).chain(busy);
        self.ledger_dir().open_for(runner, &configured.iter().chain(in_use).cloned().collect())
    }

    /// Opens the ledger of a runner whose executor waits for it. Does nothing if the runner was removed.
    fn open_ledger_again(&self, runner: &RunnerKey, configured: &BTreeSet<RunnerKey>) -> Result<(), LedgerDirError> {
        let mut state = self.state.lock();
        let Some(known) = state.fleets.get(runner) else { return Ok(()) };
        let current = Arc::clone(&known.fleet.runner);
        let ledger = self.open_ledger(&state, &current, configured)?;
        if let (Some(known), Some(settings)) = (state.fleets.get_mut(runner), &current.autoscaler) {
            known.fleet.executor.apply_settings(&ledger.settings(settings), current.request_concurrency);
            known.ledger = ledger;
        }
        Ok(())
    }

    /// Publishes the list of fleets, those of configured runners first and those of removed runners last. Opens the
    /// operator socket for the first fleet.
    fn publish(&self, state: &mut State) {
        let ending = state.fleets.keys().filter(|key| !state.configured.contains(key));
        let fleets = state.configured.iter().chain(ending).filter_map(|key| state.fleets.get(key));
        let removed = state.removals.iter().map(|removal| &removal.fleet);
        let removed = removed.filter(|fleet| !state.fleets.contains_key(&fleet.runner.key));
        let fleets: Fleets = fleets.map(|known| &known.fleet).chain(removed).cloned().collect();
        let has_fleets = !fleets.is_empty();
        self.listed.replace(fleets);
        if has_fleets && state.operator_socket.is_none() {
            state.operator_socket = Some(OperatorSocket::start(&self.options.ledgers, Arc::clone(&self.listed)));
        }
    }

    /// Warns about ledgers that belong to no configured runner, and deletes owner files without a ledger.
    fn warn_about_orphaned_ledgers(&self, state: &State) {
        if !self.options.ledgers.exists() {
            return;
        }
        let ledgers = self.ledger_dir();
        ledgers.remove_stale_owners(state.configured.iter().chain(state.fleets.keys()));
        match ledgers.orphans(state.configured.iter(), unix_now()) {
            Ok(orphans) => orphans.iter().for_each(|orphan| match &orphan.remaining {
                Ok(remaining) => tracing::warn!(
                    runner = orphan.runner,
                    requests = remaining.requests,
                    instances = remaining.instances.join(", "),
                    ledger = %orphan.ledger.display(),
                    "instances, or requests whose instances may still appear, belong to a runner that was removed from the \
                     configuration; no manager uses or deletes the instances, and they may cost money. Add the runner \
                     again and remove it while the manager runs, or delete the instances at the provider and then the \
                     ledger"
                ),
                Err(error) => tracing::error!(
                    runner = orphan.runner,
                    ledger = %orphan.ledger.display(),
                    error,
                    "failed to read the ledger of a runner that was removed from the configuration, so its instances are unknown and may \
                     cost money; delete them at the provider and then the ledger"
                ),
            }),
            Err(error) => tracing::error!(error = error_chain(&error), "failed to read the ledgers of earlier fleets"),
        }
    }
}

/// Waits until the ledger of a runner is open. `error` is the error of the first attempt, or `None` if it succeeded.
async fn open_ledger(
    executors: Weak<Inner>,
    runner: Arc<RunnerSettings>,
    configured: BTreeSet<RunnerKey>,
    mut error: Option<String>,
) {
    let (mut wait, cap) = OPEN_BACKOFF;
    while let Some(cause) = error {
        tracing::error!(
            runner = runner.name,
            error = cause,
            wait_ms = wait.as_millis(),
            "failed to open the ledger, retrying; this runner requests no jobs meanwhile"
        );
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(cap);
        let opened = executors.upgrade().map_or(Ok(()), |all| all.open_ledger_again(&runner.key, &configured));
        error = opened.err().map(|error| error_chain(&error));
    }
}

/// Reads the fleets whose ledgers are in `directory`, with the names of their runners.
///
/// `unix` is the current time in seconds since 1970. If a ledger has no readable owner file, the report has the names
/// of the instance groups instead.
///
/// # Errors
/// [`LedgerError`] if the directory cannot be read.
pub fn read_fleets(directory: &Path, unix: i64) -> Result<Vec<FleetFromDisk>, LedgerError> {
    LedgerDir { directory }.fleets(unix)
}

/// Logs the instances in the ledgers of `directory`, for a manager that exits before it could delete them.
pub fn log_remaining_instances(directory: &Path) {
    if !directory.exists() {
        return;
    }
    match (LedgerDir { directory }).orphans(std::iter::empty(), unix_now()) {
        Ok(fleets) => fleets.into_iter().for_each(|OrphanedLedger { runner, remaining, .. }| match remaining {
            Ok(remaining) => log_remaining(&runner, &remaining, RemainingUse::NextStart),
            Err(error) => tracing::error!(
                runner,
                error,
                "failed to read a ledger, so the remaining instances of its runner are unknown"
            ),
        }),
        Err(error) => {
            tracing::error!(
                error = error_chain(&error),
                "failed to read the ledgers, so the remaining instances are unknown"
            )
        }
    }
}

/// What happens to the instances that an executor leaves at the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemainingUse {
    NextStart,
    /// The runner was configured again during its removal.
    NewExecutor,
    None,
}

impl RemainingUse {
    fn hint(self) -> &'static str {
        match self {
            Self::NextStart => "the next start of the manager uses them, or reports them if their runner was removed",
            Self::NewExecutor => "the runner was added again and uses them",
            Self::None => "delete them at the provider, because no manager will",
        }
    }
}

fn log_stopped(runner: &str, remaining: Result<Remaining, LedgerError>, remaining_use: RemainingUse) {
    match remaining {
        Ok(remaining) => log_remaining(runner, &remaining, remaining_use),
        Err(error) => tracing::error!(
            runner,
            error = error_chain(&error),
            "failed to read the ledger, so the remaining instances are unknown; {}",
            remaining_use.hint()
        ),
    }
}

fn log_remaining(runner: &str, Remaining { instances, requests }: &Remaining, remaining_use: RemainingUse) {
    let (is_empty, hint) = (instances.is_empty(), remaining_use.hint());
    let instances = instances.join(", ");
    if *requests > 0 {
        tracing::warn!(
            runner,
            requests,
            instances,
            "requested instances may still appear, in addition to the remaining instances; {hint}"
        );
    } else if is_empty {
        tracing::info!(runner, "all instances deleted");
    } else if remaining_use == RemainingUse::None {
        tracing::warn!(runner, instances, "instances remain; {hint}");
    } else {
        tracing::info!(runner, instances, "instances remain; {hint}");
    }
}

#[cfg(test)]
mod tests {
    use muster_job::Secret;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ledger_that_could_not_be_opened_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let ledgers = dir.path().join("instances");
        std::fs::write(&ledgers, "").unwrap();
        let executors = InstanceExecutors::new(InstancesOptions {
            ledgers: ledgers.clone(),
            executable: Arc::new(Executable::new("/nonexistent/muster")),
            find_plugin: |_| Err("no plugin".to_owned()),
        });
        let base = RunnerSettings::new("https://one.example/".parse().unwrap(), Secret::new("token"), 0);
        let runner = Arc::new(RunnerSettings { autoscaler: Some(Arc::default()), ..base });
        let executor = executors.configure(&runner, std::slice::from_ref(&runner)).unwrap();
        let mut capacity = executor.capacity();
        let reason = capacity.borrow_and_update().limit_reason.clone().unwrap();
        assert!(reason.starts_with("failed to create directory"), "{reason}");
        std::fs::remove_file(&ledgers).unwrap();
        let has_opened = |reason: &str| reason.contains("no plugin");
        let opened = capacity.wait_for(|capacity| capacity.limit_reason.as_deref().is_some_and(has_opened));
        tokio::time::timeout(OPEN_BACKOFF.1, opened).await.unwrap().unwrap();
        let mut files = std::fs::read_dir(&ledgers).unwrap().flatten().map(|file| file.path());
        assert!(files.any(|file| file.extension().is_some_and(|extension| extension == "owner")));
    }
}
