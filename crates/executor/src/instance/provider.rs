//! The provider: capacity and leases of the scaler of one `[[runners]]` entry.
//!
//! ```text
//! work:    start the plugin and its scaler (again and again) --> keep as many promises of a slot as requests may be in flight
//! acquire: a promise --> a slot of an instance that the agent is on --> what the plugin does before a job (else another slot)
//!          --> with vm_isolation: a virtual machine there, that the agent is on (else another slot)
//! ```
//!
//! A job request is sent only where a promise stands behind it: so no job is taken that no instance is in sight for. An
//! instance is ready when its agent answers; a job that gets one finds the connection open.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use muster_config::settings::AutoscalerSettings;
use muster_fleeting::host::{Counts, Meter, PluginSpec};
use muster_fleeting::model::{ConnectInfo, ConnectorConfig, InstanceId};
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

/// What a provider works by.
#[derive(Debug, Clone)]
pub struct InstanceOptions {
    /// The entry's name, for logs and for the group.
    pub name: String,
    /// `[runners.autoscaler]`.
    pub settings: Arc<AutoscalerSettings>,
    /// How to run a plugin, by what `plugin` says; or why there is none. It is asked again before each try.
    pub find_plugin: fn(&str) -> Result<PluginSpec, String>,
    /// Job requests that may be in flight.
    pub requests: usize,
    /// The scaler's books; their directory exists.
    pub books: PathBuf,
    /// Whoever has it has the books: a provider that ends may still be removing instances.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// What the agent is, on machines of the manager's kind.
    pub executable: Arc<Executable>,
}

/// The instances of one entry as a provider.
pub struct InstanceExecutor {
    pub(super) shared: Arc<Shared>,
    work: Mutex<Option<JoinHandle<()>>>,
}

/// What the provider shares with its leases.
pub(super) struct Shared {
    pub(super) options: InstanceOptions,
    agents: Arc<Agents>,
    hosts: OnceLock<KnownHosts>,
    /// Those that the scaler runs with; as long as there is none, the newest.
    settings: Mutex<Arc<AutoscalerSettings>>,
    /// As it stands in the file.
    newest: Mutex<Arc<AutoscalerSettings>>,
    /// They are others than those that did not do.
    pub(super) changed: Notify,
    pub(super) requests: AtomicUsize,
    pub(super) intake: Mutex<Intake>,
    pub(super) turn: Mutex<Option<OwnedMutexGuard<()>>>,
    scaler: watch::Sender<Option<Scaler>>,
    pub(super) capacity: watch::Sender<Capacity>,
    /// Jobs that wait for a slot or have one.
    pub(super) under_way: AtomicUsize,
    pub(super) promises: Mutex<Vec<Reservation>>,
    /// Promises may be missing, or possible again.
    pub(super) again: Notify,
    pub(super) slots: Slots,
    pub(super) instances: Mutex<HashMap<InstanceId, Arc<RemoteMachine>>>,
    /// The virtual machines, where each job has one on its instance.
    pub(super) isolation: Arc<Isolation>,
    /// The log says that jobs run without cgroups.
    pub(super) warned_no_cgroup: Once,
    /// What the instances use.
    pub(super) usage: Usage,
    /// What counts the plugin of each group, by the group's name.
    meters: Mutex<BTreeMap<String, Meter>>,
    pending_claims: Mutex<PendingClaims>,
}

/// Whether jobs are requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Intake {
    /// They are.
    #[default]
    Open,
    /// No more are: the manager is to exit, or its jobs are to end.
    Closed,
}

impl InstanceExecutor {
    /// Starts the plugin and its scaler, in the background: what fails is told in the log, and tried again.
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

    /// Other settings. Policies and `requests` take effect at once, the others as long as the plugin does not run.
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

    /// No more jobs are requested: nothing is kept idle or promised. Jobs that are there already are served.
    pub fn drain(&self) {
        *self.shared.intake.lock() = Intake::Closed;
        self.shared.promises.lock().clear();
        self.shared.again.notify_one();
        if let Some(scaler) = self.scaler() {
            scaler.drain();
        }
    }

    /// The scaler, once it runs.
    #[must_use]
    pub fn scaler(&self) -> Option<Scaler> {
        self.shared.scaler.borrow().clone()
    }

    /// Ends the scaler and its plugin within about `limit`; instances are removed where the configuration says so. Those
    /// that are left, by name.
    pub async fn stop(&self, limit: Duration) -> Vec<String> {
        let left = self.end(limit, false).await;
        self.shared.turn.lock().take();
        left
    }

    /// As [`Self::stop`], for a runner that is not in the configuration any more: all its instances are removed, and with
    /// the last one its books.
    pub async fn remove_all_and_stop(&self, limit: Duration) -> Vec<String> {
        let left = self.end(limit, true).await;
        // Without its turn it has not looked at the books.
        let turn = self.shared.turn.lock().take();
        if turn.is_some()
            && left.is_empty()
            && let Err(error) = files::discard(&self.shared.options.books)
        {
            tracing::warn!(error = causes(&error), "the books of a runner that is gone are left");
        }
        left
    }

    async fn end(&self, limit: Duration, remove: bool) -> Vec<String> {
        // One that has not started knows of no instances; those in the books it must know to remove them.
        if remove && self.scaler().is_none() && self.shared.options.books.exists() {
            let _ = tokio::time::timeout(limit, self.shared.scaler()).await;
        }
        let work = self.work.lock().take();
        if let Some(work) = work {
            work.abort();
            // Only that it is over counts.
            let _ = work.await;
        }
        self.shared.promises.lock().clear();
        self.shared.instances.lock().clear();
        let began = tokio::time::Instant::now();
        // One that is being made may take longer than there is time: the instances have their part of it, too.
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
        // Also where nobody waits for it any more.
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
        // However long its plugin takes to start: the job is on the instance meanwhile, and loses nothing.
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

/// A lease of an earlier start is claimed, or not wanted, when this is dropped.
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
    /// `[runners.autoscaler]` as it is acted on.
    pub(super) fn settings(&self) -> Arc<AutoscalerSettings> {
        Arc::clone(&self.settings.lock())
    }

    /// `[runners.autoscaler]` as it stands in the file: what is started anew is started with it.
    pub(super) fn newest(&self) -> Arc<AutoscalerSettings> {
        Arc::clone(&self.newest.lock())
    }

    /// The host keys of the instances.
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

    /// The scaler runs, with these settings. What was changed while it started, and can take effect, does.
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

    /// The scaler, when it runs. Cancel-safe.
    pub(super) async fn scaler(&self) -> Scaler {
        let mut scaler = self.scaler.subscribe();
        // The sender lives in `self`.
        let running = scaler.wait_for(Option::is_some).await.ok().and_then(|scaler| scaler.clone());
        match running {
            Some(scaler) => scaler,
            None => std::future::pending().await,
        }
    }

    /// Why no more jobs are requested now; none where they are.
    pub(super) fn no_requests(&self) -> Option<String> {
        let why = self.capacity.borrow().limit_reason.as_ref().map(ToString::to_string);
        why.filter(|_| self.promises.lock().is_empty())
    }

    /// What counts the plugin of a group, over all its starts.
    pub(super) fn meter(&self, group: &str) -> Meter {
        self.meters.lock().entry(group.to_owned()).or_default().clone()
    }

    /// The counts of each group's plugin.
    pub(super) fn plugin_counts(&self) -> Vec<(String, Counts)> {
        self.meters.lock().iter().map(|(group, meter)| (group.clone(), meter.counts())).collect()
    }

    /// An instance's name among those of all groups.
    pub(super) fn name(&self, group: &str, id: &str) -> InstanceId {
        InstanceId::new(name_among(self.settings.lock().groups.len(), group, id))
    }

    pub(super) fn instance(&self, group: &str, id: &InstanceId) -> Arc<RemoteMachine> {
        let mut instances = self.instances.lock();
        let name = self.name(group, id.as_str());
        Arc::clone(instances.entry(name.clone()).or_insert_with(|| self.place(name.as_str())))
    }

    /// A place for an agent that nobody has reached yet.
    pub(super) fn place(&self, name: &str) -> Arc<RemoteMachine> {
        Arc::new(RemoteMachine::new(format!("instance {name}"), Arc::clone(&self.agents)))
    }

    /// Returns a session with an instance, and what the trace shows of it.
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

    /// Checks that there is an agent for what a machine is said to be.
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
        // With virtual machines on it, no agent runs on the instance itself.
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

    /// A lease of an earlier start was claimed, or is not wanted.
    fn claimed(&self, task_key: &str) {
        self.pending_claims.lock().task_keys().remove(task_key);
        self.settle();
    }

    /// Tells the scaler when no lease of an earlier start is left to be claimed.
    pub(super) fn settle(&self) {
        if self.pending_claims.lock().are_complete()
            && let Some(scaler) = &*self.scaler.borrow()
        {
            scaler.claims_complete();
        }
    }

    /// Tells how many jobs there may be.
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

/// The instances that are in the books.
fn instances_of(rows: &std::collections::BTreeMap<RowKey, muster_taskscaler::ledger::Row>) -> Vec<String> {
    let id = |key: &RowKey| if let RowKey::Instance { id, .. } = key { Some(id.clone()) } else { None };
    rows.keys().filter_map(id).collect()
}

/// The error with its causes.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
