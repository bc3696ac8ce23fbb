//! Executor for the instances of one `[[runners]]` entry: capacity and leases of its scaler.
//!
//! ```text
//! run:     start the plugins and the scaler (with retries) --> reserve a slot for each job request that may be in flight
//! acquire: reservation --> slot of an instance with an agent --> the plugin's preparation for the job (else another slot)
//!          --> with vm_isolation: a virtual machine with an agent on the instance (else another slot)
//! ```
//!
//! A job request is sent only if a slot is reserved for it. An instance is ready when its agent answers, so each job
//! starts with an open connection.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
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
use muster_taskscaler::driver::{FileLedger, LedgerError, Reservation, Scaler};
use muster_taskscaler::fleet::name_among;
use muster_taskscaler::types::TaskKey;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, watch};
use tokio::task::JoinHandle;

use super::acquire::ActiveJobGuard;
use super::claims::PendingClaims;
use super::connect::{Addresses, dial, ensure_supported, trace_lines};
use super::isolation::{Isolation, NestedMachine};
use super::lease::{HeldLease, into_lease};
use super::remaining::Remaining;
use super::resources::InstanceUsageTracker;
use super::settings;
use super::{files, work};
use crate::deploy::{Agents, DeployError, Dialed, Executable, RemoteMachine};
use crate::{Capacity, Elastic, EnvironmentRequest, Executor, ExecutorError, Lease, LeaseRecord, SlotKey, Slots};

/// Longer than any manager runs.
const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

/// Options of an executor for the instances of one runner.
#[derive(Debug, Clone)]
pub struct InstanceOptions {
    /// Name of the runner, and of its instance group if the settings list no groups.
    pub name: String,
    /// Settings in `[runners.autoscaler]`.
    pub settings: Arc<AutoscalerSettings>,
    /// Returns how to start the plugin of this name, or the reason why this is impossible. Called before each start.
    pub find_plugin: fn(&str) -> Result<PluginSpec, String>,
    /// Maximum number of job requests in flight.
    pub requests: usize,
    /// Path of the scaler's ledger, in an existing directory.
    pub ledger: PathBuf,
    /// Lock of the ledger, which an executor holds until it has stopped.
    pub ledger_lock: Arc<tokio::sync::Mutex<()>>,
    /// Agent for machines of the manager's platform.
    pub executable: Arc<Executable>,
}

/// Executor for the instances of one runner.
pub struct InstanceExecutor {
    pub(super) shared: Arc<ExecutorContext>,
    work: Mutex<Option<JoinHandle<()>>>,
}

/// State that an executor shares with its leases and its background tasks.
pub(super) struct ExecutorContext {
    pub(super) options: InstanceOptions,
    agents: Arc<Agents>,
    known_hosts: OnceLock<KnownHosts>,
    /// Settings with which the scaler was started. Before it runs, the newest settings.
    settings: Mutex<Arc<AutoscalerSettings>>,
    /// Settings in the configuration file.
    newest_settings: Mutex<Arc<AutoscalerSettings>>,
    pub(super) settings_changed: Notify,
    pub(super) requests: AtomicUsize,
    pub(super) intake: Mutex<Intake>,
    pub(super) ledger_lock: Mutex<Option<OwnedMutexGuard<()>>>,
    scaler: watch::Sender<Option<Scaler>>,
    pub(super) capacity: watch::Sender<Capacity>,
    pub(super) active_jobs: AtomicUsize,
    pub(super) reservations: Mutex<Vec<Reservation>>,
    pub(super) reservations_changed: Notify,
    pub(super) slots: Slots,
    pub(super) instances: Mutex<HashMap<InstanceId, Arc<RemoteMachine>>>,
    pub(super) isolation: Arc<Isolation>,
    pub(super) warned_no_cgroup: Once,
    pub(super) usage: InstanceUsageTracker,
    /// Counters of each group's plugin.
    meters: Mutex<BTreeMap<String, Meter>>,
    pending_claims: Mutex<PendingClaims>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Intake {
    /// Jobs are requested.
    #[default]
    Open,
    /// No more jobs are requested, because the manager is shutting down or the runner was removed.
    Closed,
}

impl InstanceExecutor {
    /// Starts the plugins and the scaler in the background, after `ledger_opened`. Failures are logged and retried.
    #[must_use]
    pub fn start(options: InstanceOptions, ledger_opened: impl Future<Output = ()> + Send + 'static) -> Arc<Self> {
        let shared = Arc::new(ExecutorContext {
            settings: Mutex::new(Arc::clone(&options.settings)),
            newest_settings: Mutex::new(Arc::clone(&options.settings)),
            settings_changed: Notify::new(),
            requests: AtomicUsize::new(options.requests),
            intake: Mutex::default(),
            ledger_lock: Mutex::default(),
            agents: Arc::new(Agents::new(Arc::clone(&options.executable))),
            options,
            known_hosts: OnceLock::new(),
            scaler: watch::Sender::new(None),
            capacity: watch::Sender::new(Capacity {
                jobs: 0,
                limit_reason: Some("the plugin has not been started yet".into()),
            }),
            active_jobs: AtomicUsize::new(0),
            reservations: Mutex::default(),
            reservations_changed: Notify::new(),
            slots: Slots::new(usize::MAX),
            instances: Mutex::default(),
            isolation: Arc::default(),
            warned_no_cgroup: Once::new(),
            usage: InstanceUsageTracker::default(),
            meters: Mutex::default(),
            pending_claims: Mutex::default(),
        });
        let work = work::run(Arc::clone(&shared));
        let work = tokio::spawn(async {
            ledger_opened.await;
            work.await;
        });
        Arc::new(Self { shared, work: Mutex::new(Some(work)) })
    }

    /// Applies new settings.
    ///
    /// Policies and `requests` take effect at once. Other settings take effect when the scaler or a plugin next starts.
    pub fn apply_settings(&self, settings: &Arc<AutoscalerSettings>, requests: usize) {
        self.shared.requests.store(requests, Ordering::Relaxed);
        self.shared.reservations_changed.notify_one();
        self.shared.newest_settings.lock().clone_from(settings);
        let mut scaler_settings = self.shared.settings.lock();
        match &*self.shared.scaler.borrow() {
            Some(scaler) => work::set_policies(scaler, settings, &self.shared.options.name),
            None if *scaler_settings != *settings => {
                scaler_settings.clone_from(settings);
                self.shared.settings_changed.notify_one();
            }
            None => {}
        }
    }

    /// Stops requesting jobs, and no longer keeps idle instances. Received jobs are served.
    pub fn drain(&self) {
        *self.shared.intake.lock() = Intake::Closed;
        self.shared.reservations.lock().clear();
        self.shared.reservations_changed.notify_one();
        if let Some(scaler) = self.scaler() {
            scaler.drain();
        }
    }

    /// Returns the scaler. `None` before it runs and after it was stopped.
    #[must_use]
    pub fn scaler(&self) -> Option<Scaler> {
        self.shared.scaler.borrow().clone()
    }

    /// Stops the scaler and its plugins within about `timeout`. Returns what remains.
    ///
    /// Deletes the instances without jobs if `delete_instances_on_shutdown` is set.
    ///
    /// # Errors
    /// [`LedgerError`] if the ledger cannot be read. The remaining instances are then unknown.
    pub async fn stop(&self, timeout: Duration) -> Result<Remaining, LedgerError> {
        let remaining = self.shut_down(timeout, settings::shutdown_timeout(&self.shared.settings())).await;
        self.shared.ledger_lock.lock().take();
        remaining
    }

    /// Stops the executor of a runner that no longer needs instances. Returns what remains.
    ///
    /// Deletes all instances, and then the ledger. After `must_end` has returned a timeout, stops within about that time,
    /// even if instances remain.
    ///
    /// # Errors
    /// [`LedgerError`] if the ledger cannot be read. The ledger is then kept.
    pub async fn remove_all_and_stop(
        &self,
        must_end: impl Future<Output = Duration>,
    ) -> Result<Remaining, LedgerError> {
        let timeout = tokio::select! {
            () = self.delete_all() => Duration::ZERO,
            timeout = must_end => timeout,
        };
        let remaining = self.shut_down(timeout, timeout).await;
        // An executor without the lock has not read the ledger, so it must not delete it.
        let ledger_lock = self.shared.ledger_lock.lock().take();
        if ledger_lock.is_some()
            && remaining.as_ref().is_ok_and(Remaining::is_empty)
            && let Err(error) = files::discard(&self.shared.options.ledger)
        {
            tracing::warn!(error = error_chain(&error), "failed to delete the ledger of a removed runner");
        }
        remaining
    }

    /// Deletes all instances. Waits for the plugins and the provider without a timeout. Cancel-safe.
    async fn delete_all(&self) {
        self.drain();
        // Waits for the scaler, because only a running scaler can delete the instances in the ledger. Does not wait if
        // the ledger is damaged, because then no scaler starts.
        let has_instances = self.remaining().is_ok_and(|remaining| !remaining.is_empty());
        let scaler = if has_instances { Some(self.shared.scaler().await) } else { self.scaler() };
        if let Some(scaler) = scaler {
            scaler.delete_all_on_shutdown();
            scaler.shutdown(UNLIMITED).await;
        }
    }

    fn remaining(&self) -> Result<Remaining, LedgerError> {
        FileLedger::rows(&self.shared.options.ledger).map(|rows| Remaining::in_ledger(&rows))
    }

    async fn shut_down(&self, timeout: Duration, scaler_timeout: Duration) -> Result<Remaining, LedgerError> {
        let work = self.work.lock().take();
        if let Some(work) = work {
            work.abort();
            let _ = work.await;
        }
        self.shared.reservations.lock().clear();
        self.shared.instances.lock().clear();
        let began = tokio::time::Instant::now();
        // Creating a virtual machine may take longer than `timeout`, so half of the time is kept for the deletion of
        // instances.
        self.shared.isolation.wait_idle(timeout / 2).await;
        let timeout = timeout.saturating_sub(began.elapsed()).min(scaler_timeout);
        if let Some(scaler) = self.shared.scaler.send_replace(None) {
            let _ = scaler.shutdown(timeout).await;
        }
        // The ledger also has the requests whose instances have not appeared.
        self.remaining()
    }
}

#[async_trait]
impl Executor for InstanceExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.shared.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        self.acquire_environment(key, job).await
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        // Marks the lease as claimed even if the caller stops waiting.
        let mut guard = ClaimGuard { shared: &self.shared, record, is_restored: false };
        let restored = self.claim_and_restore(record).await;
        guard.is_restored = restored.is_ok();
        restored
    }

    fn elastic(&self) -> Option<&dyn Elastic> {
        Some(self)
    }
}

#[async_trait]
impl Elastic for InstanceExecutor {
    fn request_answered(&self, is_immediate_job: bool) {
        if let Some(scaler) = self.scaler() {
            scaler.job_request_answered(is_immediate_job);
        }
    }

    fn announce_lease(&self, record: &LeaseRecord) {
        let Some(task_key) = record.task_key() else { return };
        self.shared.isolation.track_lease(record);
        self.shared.pending_claims.lock().task_keys().insert(task_key.to_owned());
    }

    fn leases_announced(&self) {
        self.shared.pending_claims.lock().mark_announced();
        self.shared.isolation.mark_all_tracked();
        self.shared.check_claims();
    }

    async fn has_suspended_environment(&self, task_key: &str) -> bool {
        self.shared.scaler().await.has_environment(task_key.to_owned()).await.unwrap_or_default()
    }
}

impl InstanceExecutor {
    async fn claim_and_restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        let active_job = ActiveJobGuard::new(&self.shared);
        let lost = |message: &str| ExecutorError::Lost {
            environment: format!("instance {}", record.environment),
            message: message.to_owned(),
        };
        // Waits for the plugin without a timeout, because the job continues to run on the instance.
        let scaler = self.shared.scaler().await;
        let lease = scaler.claim(TaskKey::new(record.task_key().unwrap_or_default())).await;
        let lease = lease.ok_or_else(|| lost("it no longer existed when the manager was restarted"))?;
        let held_slot =
            self.shared.slots.reacquire(&record.slot).ok_or_else(|| self.slot_taken_error(record.slot.id))?;
        let nested = match (record.vm(), &self.shared.settings().isolation) {
            (None, _) => None,
            (Some(machine), Some(settings)) => {
                Some(NestedMachine::restore(&self.shared, &lease, machine.clone(), settings.clone()))
            }
            (Some(machine), None) => {
                let id = &machine.id;
                return Err(lost(&format!("the job ran in virtual machine {id}, but vm_isolation is no longer set")));
            }
        };
        let held = HeldLease::new(lease, Arc::clone(&self.shared), held_slot);
        Ok(into_lease(if let Some(nested) = nested { held.with_vm(nested) } else { held }, active_job))
    }

    pub(super) fn slot_taken_error(&self, slot: u32) -> ExecutorError {
        ExecutorError::SlotTaken { environment: self.shared.options.name.clone(), slot }
    }
}

/// When dropped, marks a lease of an earlier manager process as claimed.
///
/// If the lease was not restored, its virtual machine no longer belongs to a job.
struct ClaimGuard<'a> {
    shared: &'a ExecutorContext,
    record: &'a LeaseRecord,
    is_restored: bool,
}

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        // First, so that the machine is deleted as an orphan when its instance is prepared.
        if !self.is_restored {
            self.shared.isolation.untrack_lease(self.record);
        }
        self.shared.mark_claimed(self.record.task_key().unwrap_or_default());
    }
}

impl ExecutorContext {
    pub(super) fn settings(&self) -> Arc<AutoscalerSettings> {
        Arc::clone(&self.settings.lock())
    }

    /// Returns the settings in the configuration file. Plugins that start from now on use them.
    pub(super) fn newest_settings(&self) -> Arc<AutoscalerSettings> {
        Arc::clone(&self.newest_settings.lock())
    }

    pub(super) fn known_hosts(&self) -> &KnownHosts {
        self.known_hosts.get_or_init(|| {
            let path = files::known_hosts_path(&self.options.ledger);
            KnownHosts::load(&path).unwrap_or_else(|error| {
                let (runner, path) = (&self.options.name, path.display());
                tracing::error!(runner, %path, %error, "failed to read the known host keys; the next key of each instance will be trusted");
                KnownHosts::default()
            })
        })
    }

    /// Publishes the scaler, which was started with `settings`. If there are newer settings, applies their policies.
    pub(super) fn scaler_started(&self, scaler: &Scaler, settings: &Arc<AutoscalerSettings>) {
        let mut current = self.settings.lock();
        if *current != *settings {
            // Only the policies of newer settings can be applied to a running scaler.
            work::set_policies(scaler, &current, &self.options.name);
            current.clone_from(settings);
        }
        self.scaler.send_replace(Some(scaler.clone()));
        if *self.intake.lock() == Intake::Closed {
            scaler.drain();
        }
    }

    /// Waits until the scaler runs, and returns it. Cancel-safe.
    pub(super) async fn scaler(&self) -> Scaler {
        let mut scaler = self.scaler.subscribe();
        // Cannot fail, because the sender is a field of `self`.
        let running = scaler.wait_for(Option::is_some).await.ok().and_then(|scaler| scaler.clone());
        match running {
            Some(scaler) => scaler,
            None => std::future::pending().await,
        }
    }

    /// Returns the reason why no jobs are requested. `None` means that jobs are requested.
    pub(super) fn requests_paused_reason(&self) -> Option<String> {
        let reason = self.capacity.borrow().limit_reason.as_ref().map(ToString::to_string);
        reason.filter(|_| self.reservations.lock().is_empty())
    }

    pub(super) fn meter(&self, group: &str) -> Meter {
        self.meters.lock().entry(group.to_owned()).or_default().clone()
    }

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
        Arc::clone(instances.entry(name.clone()).or_insert_with(|| self.new_machine(name.as_str())))
    }

    pub(super) fn new_machine(&self, name: &str) -> Arc<RemoteMachine> {
        Arc::new(RemoteMachine::new(format!("instance {name}"), Arc::clone(&self.agents)))
    }

    /// Adds the trace lines about the connection to a session with an instance.
    pub(super) fn with_trace_lines(
        &self,
        (group, id): (&str, &InstanceId),
        session: Box<dyn Session>,
        addresses: &Addresses,
    ) -> Dialed {
        let name = self.name(group, id.as_str());
        let shown = settings::trace_addresses(&self.settings());
        Dialed { session, trace_lines: trace_lines(name.as_str(), addresses, shown) }
    }

    pub(super) fn ensure_supported(&self, name: &str, connector: &ConnectorConfig) -> Result<(), DeployError> {
        ensure_supported(&self.agents, name, connector)
    }

    pub(super) async fn dial<E: Display, D: Future<Output = Result<ConnectInfo, E>>>(
        &self,
        (group, id): (&str, &InstanceId),
        request_details: impl Fn() -> D,
        is_new: bool,
    ) -> Result<(Box<dyn Session>, Addresses), DeployError> {
        let settings = self.settings();
        let own_group = settings.groups.iter().find(|known| known.name == group);
        let connector = own_group.map_or(&settings.connector, |own| &own.connector);
        let name = self.name(group, id.as_str());
        // With virtual machines, no agent runs on the instance itself.
        let runs_agent = settings.isolation.is_none();
        let checked_details = || {
            let (details, name) = (request_details(), name.clone());
            async move {
                let info = details.await.map_err(|error| DeployError::NoSession(error.to_string()))?;
                if runs_agent {
                    self.ensure_supported(name.as_str(), &info.connector)?;
                }
                Ok(info)
            }
        };
        let options = settings::dial_options(connector);
        let (session, addresses) = dial(name.as_str(), checked_details, options, self.known_hosts(), is_new).await?;
        self.instance(group, id).set_on_this_host(addresses.are_of_this_host());
        Ok((session, addresses))
    }

    fn mark_claimed(&self, task_key: &str) {
        self.pending_claims.lock().task_keys().remove(task_key);
        self.check_claims();
    }

    pub(super) fn check_claims(&self) {
        if self.pending_claims.lock().are_complete()
            && let Some(scaler) = &*self.scaler.borrow()
        {
            scaler.claims_complete();
        }
    }

    pub(super) fn publish_capacity(&self, reservations: usize, limit_reason: Option<Arc<str>>) {
        let jobs = self.active_jobs.load(Ordering::Relaxed) + reservations;
        let capacity = Capacity { jobs, limit_reason };
        self.capacity.send_if_modified(|published| {
            let changed = *published != capacity;
            *published = capacity;
            changed
        });
    }
}
