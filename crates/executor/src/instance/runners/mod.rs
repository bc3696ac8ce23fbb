//! Executors of all runners that use instances (`instance`, `docker-autoscaler`, `docker+machine`), with their ledgers
//! and the operator socket.
//!
//! When a runner was removed and its last job has ended, its instances and its ledger are deleted. When the manager
//! exits, the next start of the manager uses the remaining instances again.

mod fleet_list;
mod ledger_dir;
mod operator_socket;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);
const NEXT_START_HINT: &str = "the next start of the manager uses them again";

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
    /// Runners that use instances, in the order of the configuration.
    configured: Vec<RunnerKey>,
    /// Locks of the ledgers, also of fleets that are shutting down.
    ledger_locks: BTreeMap<RunnerKey, Arc<tokio::sync::Mutex<()>>>,
    phase: ManagerPhase,
    /// `None` before the first fleet is created, and if the socket could not be opened.
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
            let fleet = self.0.start(&mut state, runner, settings, runners)?;
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
        let RunnerFleet { fleet, .. } = self.0.state.lock().fleets.remove(runner)?;
        let (shared, key) = (Arc::clone(&self.0), runner.clone());
        let name = fleet.runner.name.clone();
        tracing::info!(
            runner = name,
            "runner was removed from the configuration or has another executor, deleting its instances"
        );
        let removed = async move {
            let remaining = fleet.executor.remove_all_and_stop(REMOVE_TIMEOUT).await;
            log_stopped(&name, remaining, "delete them at the provider, because no manager will");
            // The owner file is kept if the runner has been configured again in the meantime.
            let state = shared.state.lock();
            if !state.fleets.contains_key(&key) {
                shared.ledger_dir().forget(&key);
            }
        };
        Some(removed.boxed())
    }

    fn leases_announced(&self) {
        let mut state = self.0.state.lock();
        state.phase = state.phase.max(ManagerPhase::Working);
        self.0.warn_about_orphaned_ledgers(&state);
        state.fleets.values().for_each(|known| known.fleet.executor.leases_announced());
    }

    fn drain(&self) {
        let mut state = self.0.state.lock();
        state.phase = ManagerPhase::Draining;
        state.fleets.values().for_each(|known| known.fleet.executor.drain());
    }

    async fn stop(&self, timeout: Duration) {
        let fleets = std::mem::take(&mut self.0.state.lock().fleets);
        join_all(fleets.into_values().map(|RunnerFleet { fleet, .. }| async move {
            let remaining = fleet.executor.stop(timeout).await;
            log_stopped(&fleet.runner.name, remaining, NEXT_START_HINT);
        }))
        .await;
    }
}

impl Inner {
    fn ledger_dir(&self) -> LedgerDir<'_> {
        LedgerDir { directory: &self.options.ledgers }
    }

    fn start(
        &self,
        state: &mut State,
        runner: &Arc<RunnerSettings>,
        settings: &Arc<AutoscalerSettings>,
        runners: &[Arc<RunnerSettings>],
    ) -> Result<RunnerFleet, LedgerDirError> {
        // The new runner must not adopt the ledger of a runner that still has jobs, or whose instances are still being
        // deleted.
        let busy = state.ledger_locks.iter().filter(|(_, lock)| lock.try_lock().is_err()).map(|(key, _)| key);
        let known: BTreeSet<RunnerKey> =
            runners.iter().map(|runner| &runner.key).chain(state.fleets.keys()).chain(busy).cloned().collect();
        let ledger = self.ledger_dir().open_for(runner, &known)?;
        let name = if runner.name.is_empty() { runner.key.to_string() } else { runner.name.clone() };
        let executor = InstanceExecutor::start(InstanceOptions {
            name,
            settings: ledger.settings(settings),
            find_plugin: self.options.find_plugin,
            requests: runner.request_concurrency,
            ledger: ledger.path.clone(),
            ledger_lock: Arc::clone(state.ledger_locks.entry(runner.key.clone()).or_default()),
            executable: Arc::clone(&self.options.executable),
        });
        if state.phase >= ManagerPhase::Working {
            // No job of an earlier manager process will claim a lease in this ledger anymore.
            executor.leases_announced();
        }
        if state.phase == ManagerPhase::Draining {
            executor.drain();
        }
        Ok(RunnerFleet { fleet: Fleet { runner: Arc::clone(runner), executor }, ledger })
    }

    /// Publishes the list of fleets, those of configured runners first. Opens the operator socket for the first fleet.
    fn publish(&self, state: &mut State) {
        let ending = state.fleets.keys().filter(|key| !state.configured.contains(key));
        let fleets = state.configured.iter().chain(ending).filter_map(|key| state.fleets.get(key));
        let fleets: Fleets = fleets.map(|known| known.fleet.clone()).collect();
        let has_fleets = !fleets.is_empty();
        self.listed.replace(fleets);
        if has_fleets && state.operator_socket.is_none() {
            let ledgers = &self.options.ledgers;
            match OperatorSocket::open(ledgers, Arc::clone(&self.listed)) {
                Ok(socket) => state.operator_socket = Some(socket),
                Err(error) => {
                    let ledgers = ledgers.display();
                    tracing::warn!(
                        %error, %ledgers,
                        "failed to open the operator socket; `muster fleet cordon`, `uncordon`, `drain` and `delete` cannot reach this manager"
                    );
                }
            }
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
                     configuration while the manager did not run; no manager uses or deletes the instances, and they may \
                     cost money. Add the runner again and remove it while the manager runs, or delete the instances at \
                     the provider and then the ledger"
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
            Ok(remaining) => log_remaining(&runner, &remaining, NEXT_START_HINT),
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

fn log_stopped(runner: &str, remaining: Result<Remaining, LedgerError>, hint: &str) {
    match remaining {
        Ok(remaining) => log_remaining(runner, &remaining, hint),
        Err(error) => tracing::error!(
            runner,
            error = error_chain(&error),
            "failed to read the ledger, so the remaining instances are unknown; {hint}"
        ),
    }
}

fn log_remaining(runner: &str, Remaining { instances, requests }: &Remaining, hint: &str) {
    let is_empty = instances.is_empty();
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
    } else {
        tracing::info!(runner, instances, "instances remain; {hint}");
    }
}
