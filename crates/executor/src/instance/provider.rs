//! Executor for the instances of one `[[runners]]` entry: capacity and leases of its scaler.
//!
//! ```text
//! run:     start the plugins and the scaler (with retries) --> reserve a slot for each job request that may be in flight
//! acquire: reservation --> slot of an instance with an agent --> the plugin's preparation for the job (else another slot)
//!          --> with vm_isolation: a virtual machine with an agent on the instance (else another slot)
//! ```
//!
//! A job request is sent only if a slot is reserved for it, so no job is received for which no instance is expected. An instance is ready
//! when its agent answers, so a job finds an open connection.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use muster_config::settings::AutoscalerSettings;
use muster_fleeting::host::{Counts, Meter, PluginSpec};
use muster_fleeting::model::{ConnectInfo, ConnectorConfig, InstanceId};
use muster_job::error_chain;
use muster_remote::{KnownHosts, Session};
use muster_taskscaler::driver::{FileLedger, Reservation, Scaler};
use muster_taskscaler::fleet::name_among;
use muster_taskscaler::ledger::RowKey;
use muster_taskscaler::types::TaskKey;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;

use super::acquire::UnderWay;
use super::claims::PendingClaims;
use super::connect::{Addresses, dial, ensure_supported, trace_lines};
use super::isolation::{Isolation, NestedMachine};
use super::lease::{HeldLease, leased};
use super::resources::Usage;
use super::settings;
use super::{files, work};
use crate::deploy::{Agents, Dialed, Executable, RemoteMachine};
use crate::{Capacity, Elastic, EnvironmentRequest, Executor, ExecutorError, Lease, LeaseRecord, SlotKey, Slots};

/// Options of an executor for the instances of one runner.
#[derive(Debug, Clone)]
pub struct InstanceOptions {
    /// Name of the runner, for logs and as the name of its group.
    pub name: String,
    /// Settings in `[runners.autoscaler]`.
    pub settings: Arc<AutoscalerSettings>,
    /// Returns how to start the plugin that `plugin` names, or the reason why this is not possible. Called before each attempt.
    pub find_plugin: fn(&str) -> Result<PluginSpec, String>,
    /// Maximum number of job requests in flight.
    pub requests: usize,
    /// File of the scaler's ledger. Its directory exists.
    pub books: PathBuf,
    /// Lock of the ledger. An executor that is shutting down holds it until its last instance is deleted.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Agent for machines of the manager's platform.
    pub executable: Arc<Executable>,
}

/// Executor for the instances of one runner.
pub struct InstanceExecutor {
    pub(super) shared: Arc<Shared>,
    work: Mutex<Option<JoinHandle<()>>>,
}

/// State that the executor shares with its leases.
pub(super) struct Shared {
    pub(super) options: InstanceOptions,
    agents: Arc<Agents>,
    hosts: OnceLock<KnownHosts>,
    /// Settings that the scaler uses. Before it runs, these are the newest settings.
    settings: Mutex<Arc<AutoscalerSettings>>,
    /// Newest settings from the configuration file.
    newest: Mutex<Arc<AutoscalerSettings>>,
    /// Notified if the settings changed while the scaler could not be started.
    pub(super) changed: Notify,
    pub(super) requests: AtomicUsize,
    pub(super) intake: Mutex<Intake>,
    pub(super) turn: Mutex<Option<OwnedMutexGuard<()>>>,
    scaler: watch::Sender<Option<Scaler>>,
    pub(super) capacity: watch::Sender<Capacity>,
    /// Number of jobs that wait for a slot or have one.
    pub(super) under_way: AtomicUsize,
    pub(super) promises: Mutex<Vec<Reservation>>,
    /// Notified if reservations may be missing or possible again.
    pub(super) again: Notify,
    pub(super) slots: Slots,
    pub(super) instances: Mutex<HashMap<InstanceId, Arc<RemoteMachine>>>,
    /// Virtual machines of jobs, if `vm_isolation` is set.
    pub(super) isolation: Arc<Isolation>,
    /// Whether the log says that jobs run without cgroups.
    pub(super) warned_no_cgroup: Once,
    /// Resources that the instances use.
    pub(super) usage: Usage,
    /// Counters of the plugin of each group, by name of the group.
    meters: Mutex<BTreeMap<String, Meter>>,
    pending_claims: Mutex<PendingClaims>,
}

/// Whether the manager requests jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Intake {
    /// Jobs are requested.
    #[default]
    Open,
    /// No more jobs are requested, because the manager is shutting down or the runner was removed.
    Closed,
}

impl InstanceExecutor {
    /// Starts the plugins and the scaler in the background. Failures are logged and retried.
    #[must_use]
    pub fn start(options: InstanceOptions) -> Arc<Self> {
        let shared = Arc::new(Shared {
            settings: Mutex::new(Arc::clone(&options.settings)),
            newest: Mutex::new(Arc::clone(&options.settings)),
            changed: Notify::new(),
            requests: AtomicUsize::new(options.requests),
            intake: Mutex::default(),
            turn: Mutex::default(),
            agents: Arc::new(Agents::new(Arc::clone(&options.executable))),
            options,
            hosts: OnceLock::new(),
            scaler: watch::Sender::new(None),
            capacity: watch::Sender::new(Capacity {
                jobs: 0,
                limit_reason: Some("its plugin has not been started yet".into()),
            }),
            under_way: AtomicUsize::new(0),
            promises: Mutex::default(),
            again: Notify::new(),
            slots: Slots::new(usize::MAX),
            instances: Mutex::default(),
            isolation: Arc::default(),
            warned_no_cgroup: Once::new(),
            usage: Usage::default(),
            meters: Mutex::default(),
            pending_claims: Mutex::default(),
        });
        let work = tokio::spawn(work::work(Arc::clone(&shared)));
        Arc::new(Self { shared, work: Mutex::new(Some(work)) })
    }

    /// Applies new settings.
    ///
    /// Policies and `requests` take effect at once. All other settings are used only if the scaler has not been started yet.
    pub fn apply_settings(&self, settings: &Arc<AutoscalerSettings>, requests: usize) {
        self.shared.requests.store(requests, Ordering::Relaxed);
        self.shared.again.notify_one();
        self.shared.newest.lock().clone_from(settings);
        let mut own = self.shared.settings.lock();
        match &*self.shared.scaler.borrow() {
            Some(scaler) => work::set_policies(scaler, settings, &self.shared.options.name),
            None if *own != *settings => {
                own.clone_from(settings);
                self.shared.changed.notify_one();
            }
            None => {}
        }
    }

    /// Stops requesting jobs: no slot is reserved and no idle instance is kept. Jobs that were received are served.
    pub fn drain(&self) {
        *self.shared.intake.lock() = Intake::Closed;
        self.shared.promises.lock().clear();
        self.shared.again.notify_one();
        if let Some(scaler) = self.scaler() {
            scaler.drain();
        }
    }

    /// Returns the scaler. `None` before it runs and after it was stopped.
    #[must_use]
    pub fn scaler(&self) -> Option<Scaler> {
        self.shared.scaler.borrow().clone()
    }

    /// Stops the scaler and its plugins within about `limit`.
    ///
    /// Instances are deleted if the configuration says so. Returns the names of those that are left.
    pub async fn stop(&self, limit: Duration) -> Vec<String> {
        let left = self.end(limit, false).await;
        self.shared.turn.lock().take();
        left
    }

    /// Stops like [`Self::stop`], for a runner that was removed from the configuration.
    ///
    /// Deletes all its instances, and after the last one its ledger.
    pub async fn remove_all_and_stop(&self, limit: Duration) -> Vec<String> {
        let left = self.end(limit, true).await;
        // Without the lock, this executor has not read the ledger.
        let turn = self.shared.turn.lock().take();
        if turn.is_some()
            && left.is_empty()
            && let Err(error) = files::discard(&self.shared.options.books)
        {
            tracing::warn!(error = error_chain(&error), "the books of a runner that is gone are left");
        }
        left
    }

    async fn end(&self, limit: Duration, remove: bool) -> Vec<String> {
        // A scaler that has not started does not know the instances in the ledger, which it must delete.
        if remove && self.scaler().is_none() && self.shared.options.books.exists() {
            let _ = tokio::time::timeout(limit, self.shared.scaler()).await;
        }
        let work = self.work.lock().take();
        if let Some(work) = work {
            work.abort();
            // Only the end of the task matters.
            let _ = work.await;
        }
        self.shared.promises.lock().clear();
        self.shared.instances.lock().clear();
        let began = tokio::time::Instant::now();
        // Creating a virtual machine may take longer than that. The deletion of instances needs the other half of the time.
        self.shared.isolation.idle(limit / 2).await;
        let limit = limit.saturating_sub(began.elapsed());
        let Some(scaler) = self.shared.scaler.send_replace(None) else {
            return FileLedger::rows(&self.shared.options.books)
                .map_or_else(|_| Vec::new(), |rows| instances_of(&rows));
        };
        if remove {
            scaler.delete_all_on_shutdown();
        }
        let limit = if remove { limit } else { limit.min(settings::shutdown_limit(&self.shared.settings())) };
        scaler.shutdown(limit).await.into_iter().map(|instance| instance.id).collect()
    }
}

#[async_trait]
impl Executor for InstanceExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.shared.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        self.place_for(key, job).await
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        // The claim also ends if the caller stops waiting.
        let task_key = record.task_key().unwrap_or_default();
        let _guard = ClaimGuard { shared: &self.shared, task_key };
        self.restore_expected(record, task_key).await
    }

    fn elastic(&self) -> Option<&dyn Elastic> {
        Some(self)
    }
}

#[async_trait]
impl Elastic for InstanceExecutor {
    fn request_answered(&self, at_once: bool) {
        if let Some(scaler) = self.scaler() {
            scaler.answered(at_once);
        }
    }

    fn announce_lease(&self, record: &LeaseRecord) {
        let Some(task_key) = record.task_key() else { return };
        self.shared.isolation.expect(record);
        self.shared.pending_claims.lock().task_keys().insert(task_key.to_owned());
    }

    fn leases_announced(&self) {
        self.shared.pending_claims.lock().announced();
        self.shared.isolation.expected_all();
        self.shared.settle();
    }

    async fn has_suspended(&self, task_key: &str) -> bool {
        self.shared.scaler().await.has_environment(task_key.to_owned()).await.unwrap_or_default()
    }
}

impl InstanceExecutor {
    async fn restore_expected(&self, record: &LeaseRecord, task_key: &str) -> Result<Lease, ExecutorError> {
        let counted = UnderWay::count(&self.shared);
        let lost = |message: &str| ExecutorError::Lost {
            environment: format!("instance {}", record.environment),
            message: message.to_owned(),
        };
        // This waits until the plugin has started, however long that takes: the job runs on the instance meanwhile and loses nothing.
        let scaler = self.shared.scaler().await;
        let lease = scaler.claim(TaskKey::new(task_key)).await;
        let lease = lease.ok_or_else(|| lost("it was gone when the manager started again"))?;
        let nested = match (record.vm(), &self.shared.settings().isolation) {
            (None, _) => None,
            (Some(machine), Some(settings)) => {
                Some(NestedMachine::again(&self.shared, &lease, machine.clone(), settings.clone()))
            }
            (Some(machine), None) => {
                let id = &machine.id;
                return Err(lost(&format!(
                    "the job ran in its virtual machine {id}, and vm_isolation was switched off"
                )));
            }
        };
        let taken = self.shared.slots.take_again(&record.slot).ok_or_else(|| self.slot_taken(record.slot.id))?;
        let held = HeldLease::new(lease, Arc::clone(&self.shared), taken);
        Ok(leased(if let Some(nested) = nested { held.with(nested) } else { held }, counted))
    }

    pub(super) fn slot_taken(&self, slot: u32) -> ExecutorError {
        ExecutorError::SlotTaken { environment: self.shared.options.name.clone(), slot }
    }
}

/// Marks a lease of an earlier start as claimed, or as no longer needed, when it is dropped.
struct ClaimGuard<'a> {
    shared: &'a Shared,
    task_key: &'a str,
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        self.shared.claimed(self.task_key);
    }
}

impl Shared {
    /// Returns the settings that are in use.
    pub(super) fn settings(&self) -> Arc<AutoscalerSettings> {
        Arc::clone(&self.settings.lock())
    }

    /// Returns the settings in the configuration file, which apply to anything that is started from now on.
    pub(super) fn newest(&self) -> Arc<AutoscalerSettings> {
        Arc::clone(&self.newest.lock())
    }

    /// Returns the known host keys of the instances.
    pub(super) fn hosts(&self) -> &KnownHosts {
        self.hosts.get_or_init(|| {
            let path = files::hosts(&self.options.books);
            KnownHosts::kept_in(&path).unwrap_or_else(|error| {
                let (runner, path) = (&self.options.name, path.display());
                tracing::error!(runner, %path, %error, "the host keys of earlier starts are not known: the first ones are believed");
                KnownHosts::default()
            })
        })
    }

    /// Publishes the running scaler, which was started with `settings`. Policies that changed meanwhile are applied.
    pub(super) fn runs(&self, scaler: &Scaler, settings: &Arc<AutoscalerSettings>) {
        let mut newest = self.settings.lock();
        if *newest != *settings {
            work::set_policies(scaler, &newest, &self.options.name);
            newest.clone_from(settings);
        }
        self.scaler.send_replace(Some(scaler.clone()));
        if *self.intake.lock() == Intake::Closed {
            scaler.drain();
        }
    }

    /// Waits until the scaler runs, and returns it. Cancel-safe.
    pub(super) async fn scaler(&self) -> Scaler {
        let mut scaler = self.scaler.subscribe();
        // The sender is a field of `self`.
        let running = scaler.wait_for(Option::is_some).await.ok().and_then(|scaler| scaler.clone());
        match running {
            Some(scaler) => scaler,
            None => std::future::pending().await,
        }
    }

    /// Returns the reason why no jobs are requested now. `None` means that jobs are requested.
    pub(super) fn no_requests(&self) -> Option<String> {
        let why = self.capacity.borrow().limit_reason.as_ref().map(ToString::to_string);
        why.filter(|_| self.promises.lock().is_empty())
    }

    /// Returns the meter that counts all starts and calls of a group's plugin.
    pub(super) fn meter(&self, group: &str) -> Meter {
        self.meters.lock().entry(group.to_owned()).or_default().clone()
    }

    /// Returns the counts of the plugin of each group.
    pub(super) fn plugin_counts(&self) -> Vec<(String, Counts)> {
        self.meters.lock().iter().map(|(group, meter)| (group.clone(), meter.counts())).collect()
    }

    /// Returns the name of an instance, which is unique among all groups of the runner.
    pub(super) fn name(&self, group: &str, id: &str) -> InstanceId {
        InstanceId::new(name_among(self.settings.lock().groups.len(), group, id))
    }

    pub(super) fn instance(&self, group: &str, id: &InstanceId) -> Arc<RemoteMachine> {
        let mut instances = self.instances.lock();
        let name = self.name(group, id.as_str());
        Arc::clone(instances.entry(name.clone()).or_insert_with(|| self.place(name.as_str())))
    }

    /// Returns a machine that has not been reached yet.
    pub(super) fn place(&self, name: &str) -> Arc<RemoteMachine> {
        Arc::new(RemoteMachine::new(format!("instance {name}"), Arc::clone(&self.agents)))
    }

    /// Combines a session with an instance and the trace lines for it.
    pub(super) fn dialed(
        &self,
        (group, id): (&str, &InstanceId),
        session: Box<dyn Session>,
        addresses: &Addresses,
    ) -> Dialed {
        let name = self.name(group, id.as_str());
        let shown = settings::trace_addresses(&self.settings());
        Dialed { session, trace_lines: trace_lines(name.as_str(), addresses, shown) }
    }

    /// Checks that there is an agent for the platform that a machine is said to have.
    pub(super) fn ensure_supported(&self, name: &str, connector: &ConnectorConfig) -> Result<(), String> {
        ensure_supported(&self.agents, name, connector)
    }

    pub(super) async fn dial<D: Future<Output = Result<ConnectInfo, String>>>(
        &self,
        (group, id): (&str, &InstanceId),
        details: impl Fn() -> D,
        is_new: bool,
    ) -> Result<(Box<dyn Session>, Addresses), String> {
        let settings = self.settings();
        let of = settings.groups.iter().find(|of| of.name == group);
        let connector = of.map_or(&settings.connector, |of| &of.connector);
        let name = self.name(group, id.as_str());
        // With virtual machines, no agent runs on the instance itself.
        let runs_agent = settings.isolation.is_none();
        let details = || {
            let (asked, name) = (details(), name.clone());
            async move {
                let info = asked.await?;
                if runs_agent {
                    self.ensure_supported(name.as_str(), &info.connector)?;
                }
                Ok(info)
            }
        };
        dial(name.as_str(), details, settings::dial_options(connector), self.hosts(), is_new).await
    }

    /// Records that a lease of an earlier start was claimed, or is no longer needed.
    fn claimed(&self, task_key: &str) {
        self.pending_claims.lock().task_keys().remove(task_key);
        self.settle();
    }

    /// Notifies the scaler if all leases of an earlier start have been claimed.
    pub(super) fn settle(&self) {
        if self.pending_claims.lock().are_complete()
            && let Some(scaler) = &*self.scaler.borrow()
        {
            scaler.claims_complete();
        }
    }

    /// Publishes the number of jobs that can be served, and the reason why there are no more.
    pub(super) fn publish(&self, promises: usize, why: Option<Arc<str>>) {
        let jobs = self.under_way.load(Ordering::Relaxed) + promises;
        let capacity = Capacity { jobs, limit_reason: why };
        self.capacity.send_if_modified(|told| {
            let changed = *told != capacity;
            *told = capacity;
            changed
        });
    }
}

/// Returns the IDs of the instances in the ledger.
fn instances_of(rows: &std::collections::BTreeMap<RowKey, muster_taskscaler::ledger::Row>) -> Vec<String> {
    let id = |key: &RowKey| if let RowKey::Instance { id, .. } = key { Some(id.clone()) } else { None };
    rows.keys().filter_map(id).collect()
}
