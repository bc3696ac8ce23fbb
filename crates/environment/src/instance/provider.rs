//! The provider: capacity and leases of the scaler of one `[[runners]]` entry.
//!
//! ```text
//! work:    start the plugin and its scaler (again and again) --> keep as many promises of a slot as requests may be in flight
//! acquire: a promise --> a slot of an instance that the agent is on
//! ```
//!
//! A job request is sent only where a promise stands behind it: so no job is taken that no instance is in sight for. An
//! instance is ready when its agent answers; a job that gets one finds the connection open.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use muster_fleeting::connector::{KnownHosts, Session};
use muster_fleeting::host::PluginSpec;
use muster_fleeting::model::{ConnectInfo, InstanceId};
use muster_job::JobId;
use muster_taskscaler::driver::{AcquireFailure, Prepare, Reservation, Scaler, Up};
use muster_taskscaler::words::Key;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::executable::Executable;
use super::lease::leased;
use super::reach::{Addresses, Dial, Instance, dial, run};
use super::settings::{AutoscalerSettings, GroupSettings};
use super::{members, share};
use crate::{Asking, Capacity, EnvironmentError, Lease, LeaseRecord, Provider, Slot, SlotKey, Slots, TakenSlot};

/// After a refused promise the scaler tells when one is possible; without a word it is asked again after this.
const PROMISE_NET: Duration = Duration::from_secs(10);
/// For leases of an earlier start, which the scaler has when it runs.
const RESTORE_LIMIT: Duration = Duration::from_secs(120);
/// Connections to instances that are gone are looked for this often at most.
const PRUNE_EVERY: Duration = Duration::from_secs(10);

/// What a provider works by.
#[derive(Debug, Clone)]
pub struct InstanceOptions {
    /// The entry's name, for logs and for the group.
    pub name: String,
    /// `[runners.autoscaler]`.
    pub settings: Arc<AutoscalerSettings>,
    /// The plugin of each group of the settings ([`AutoscalerSettings::all_groups`]), whose settings it gets.
    pub plugins: Vec<PluginSpec>,
    /// Job requests that may be in flight.
    pub requests: usize,
    /// The scaler's books; their directory exists.
    pub books: PathBuf,
    /// What the agent is.
    pub executable: Arc<Executable>,
}

/// The instances of one entry as a provider.
pub struct InstanceProvider {
    pub(super) shared: Arc<Shared>,
    work: Mutex<Option<JoinHandle<()>>>,
}

/// What the provider shares with its leases.
pub(super) struct Shared {
    pub(super) options: InstanceOptions,
    pub(super) groups: Vec<GroupSettings>,
    pub(super) hosts: KnownHosts,
    scaler: watch::Sender<Option<Scaler>>,
    capacity: watch::Sender<Capacity>,
    /// Jobs that wait for a slot or have one.
    under_way: AtomicUsize,
    promises: Mutex<Vec<Reservation>>,
    /// Promises may be missing, or possible again.
    again: Notify,
    slots: Slots,
    instances: Mutex<HashMap<InstanceId, Arc<Instance>>>,
    /// It was told that jobs run without their share.
    pub(super) told_no_share: AtomicBool,
    expected: Mutex<Expected>,
}

/// Leases of an earlier start.
#[derive(Default)]
struct Expected {
    claims: BTreeSet<String>,
    /// No more are announced.
    complete: bool,
}

impl InstanceProvider {
    /// Starts the plugin and its scaler, in the background: what fails is told in the log, and tried again.
    #[must_use]
    pub fn start(options: InstanceOptions) -> Arc<Self> {
        let shared = Arc::new(Shared {
            groups: options.settings.all_groups(&options.name),
            options,
            hosts: KnownHosts::default(),
            scaler: watch::Sender::new(None),
            capacity: watch::Sender::new(Capacity { jobs: 0, why: Some("its plugin has not been started yet".into()) }),
            under_way: AtomicUsize::new(0),
            promises: Mutex::default(),
            again: Notify::new(),
            slots: Slots::new(usize::MAX),
            instances: Mutex::default(),
            told_no_share: AtomicBool::new(false),
            expected: Mutex::default(),
        });
        let work = tokio::spawn(work(Arc::clone(&shared)));
        Arc::new(Self { shared, work: Mutex::new(Some(work)) })
    }

    /// Other policies (`[[runners.autoscaler.policy]]` takes effect without a restart).
    pub fn set_policies(&self, settings: &AutoscalerSettings) {
        let Some(scaler) = self.shared.scaler.borrow().clone() else { return };
        match settings.scaling(&self.shared.options.name, 0) {
            Ok((config, _)) => scaler.set_policies(config.policies),
            Err(error) => {
                tracing::error!(runner = self.shared.options.name, %error, "the policies stay as they were");
            }
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
        let work = self.work.lock().take();
        if let Some(work) = work {
            work.abort();
            // Only that it is over counts.
            let _ = work.await;
        }
        self.shared.promises.lock().clear();
        self.shared.instances.lock().clear();
        let Some(scaler) = self.shared.scaler.send_replace(None) else { return Vec::new() };
        let limit = self.shared.options.settings.shutdown_limit().map_or(limit, |own| own.min(limit));
        scaler.shutdown(limit).await.into_iter().map(|instance| instance.id).collect()
    }
}

#[async_trait]
impl Provider for InstanceProvider {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.shared.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, job: &Asking) -> Result<Lease, EnvironmentError> {
        let counted = UnderWay::count(&self.shared);
        let limit = self.shared.options.settings.instance_acquire_timeout;
        let began = tokio::time::Instant::now();
        let scaler = tokio::time::timeout(limit, self.shared.scaler()).await.map_err(|_| {
            let why = self.shared.capacity.borrow().why.clone().unwrap_or_default();
            let seconds = limit.as_secs();
            EnvironmentError::NotAcquired(format!(
                "unable to acquire instance within the configured timeout of {seconds}s: {why}"
            ))
        })?;
        let promise = self.shared.promises.lock().pop();
        let name = key_of(job.id);
        let promise = match promise {
            Some(promise) => promise.renamed(name),
            None => scaler.admit(name),
        };
        self.shared.again.notify_one();
        let left = limit.saturating_sub(began.elapsed());
        let request = share::request(key, job, &self.shared.options.settings);
        let lease = promise.acquire(request, left).await.map_err(|failure| {
            let failure = match failure {
                // The scaler's start may have taken a part of it.
                AcquireFailure::Timeout { why, .. } => AcquireFailure::Timeout { limit, why },
                failure => failure,
            };
            EnvironmentError::NotAcquired(failure.to_string())
        })?;
        let left = limit.saturating_sub(began.elapsed());
        if let Err(error) = lease.prepare_job(left).await {
            let instance = lease.instance();
            let text = format!("instance {instance}: its plugin could not prepare it for the job: {error}");
            return Err(EnvironmentError::NotAcquired(text));
        }
        let taken = self.shared.slots.take(key).ok_or_else(|| self.slot_taken(0))?;
        let instance = self.shared.instance(lease.group(), lease.instance());
        // The list of all has one, and this is the other.
        if Arc::strong_count(&instance) <= 2 {
            instance.found_free();
        }
        Ok(self.lease(lease, taken, counted))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, EnvironmentError> {
        let restored = self.restore_expected(record).await;
        self.shared.seen(&record.claim);
        restored
    }

    fn expect(&self, record: &LeaseRecord) {
        self.shared.expected.lock().claims.insert(record.claim.clone());
    }

    fn expected_all(&self) {
        self.shared.expected.lock().complete = true;
        self.shared.settle();
    }
}

impl InstanceProvider {
    async fn restore_expected(&self, record: &LeaseRecord) -> Result<Lease, EnvironmentError> {
        let counted = UnderWay::count(&self.shared);
        let lost = |message: &str| EnvironmentError::Lost {
            environment: format!("instance {}", record.environment),
            message: message.to_owned(),
        };
        let Ok(scaler) = tokio::time::timeout(RESTORE_LIMIT, self.shared.scaler()).await else {
            return Err(lost("its plugin cannot be started"));
        };
        let lease = scaler.claim(Key::new(&record.claim)).await;
        let lease = lease.ok_or_else(|| lost("it was gone when the manager started again"))?;
        let taken = self.shared.slots.take_again(&record.slot).ok_or_else(|| self.slot_taken(record.slot.id))?;
        Ok(self.lease(lease, taken, counted))
    }

    fn slot_taken(&self, slot: u32) -> EnvironmentError {
        EnvironmentError::SlotTaken { environment: self.shared.options.name.clone(), slot }
    }

    fn lease(&self, lease: muster_taskscaler::driver::Lease, taken: TakenSlot, counted: UnderWay) -> Lease {
        let slot: Slot = taken.slot.clone();
        let environment = lease.instance().as_str().to_owned();
        let record = LeaseRecord { environment, slot, claim: lease.key().as_str().to_owned() };
        let instance = self.shared.instance(lease.group(), lease.instance());
        let (environment, guard) = leased(lease, instance, Arc::clone(&self.shared), taken, counted);
        Lease::new(record, environment, guard)
    }
}

/// One more job that waits or has a slot, until this is dropped.
pub(super) struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn count(shared: &Arc<Shared>) -> Self {
        shared.under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        self.0.again.notify_one();
    }
}

impl Shared {
    /// The scaler, when it runs. Cancel-safe.
    async fn scaler(&self) -> Scaler {
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
        let why = self.capacity.borrow().why.as_ref().map(ToString::to_string);
        why.filter(|_| self.promises.lock().is_empty())
    }

    /// An instance's name among those of all groups.
    fn name(&self, group: &str, id: &str) -> InstanceId {
        if self.groups.len() > 1 { InstanceId::new(format!("{group}/{id}")) } else { InstanceId::new(id) }
    }

    fn instance(&self, group: &str, id: &InstanceId) -> Arc<Instance> {
        let mut instances = self.instances.lock();
        let name = self.name(group, id.as_str());
        let made = || {
            let (executable, told) = (Arc::clone(&self.options.executable), self.options.settings.told());
            Arc::new(Instance::new(name.as_str(), executable, told))
        };
        Arc::clone(instances.entry(name.clone()).or_insert_with(made))
    }

    pub(super) async fn dial<D: Future<Output = Result<ConnectInfo, String>>>(
        &self,
        (group, id): (&str, &InstanceId),
        details: impl Fn() -> D,
        is_new: bool,
    ) -> Result<(Box<dyn Session>, Addresses), String> {
        let of = self.groups.iter().find(|of| of.name == group);
        let use_external_addr = of.is_some_and(|of| of.connector.use_external_addr);
        let name = self.name(group, id.as_str());
        dial(name.as_str(), details, use_external_addr, &self.hosts, is_new).await
    }

    /// A lease of an earlier start was claimed, or is not wanted.
    fn seen(&self, claim: &str) {
        self.expected.lock().claims.remove(claim);
        self.settle();
    }

    /// Tells the scaler when no lease of an earlier start is left to be claimed.
    fn settle(&self) {
        let expected = self.expected.lock();
        if expected.complete
            && expected.claims.is_empty()
            && let Some(scaler) = &*self.scaler.borrow()
        {
            scaler.settled();
        }
    }

    /// Tells how many jobs there may be.
    pub(super) fn publish(&self, promises: usize, why: Option<Arc<str>>) {
        let jobs = self.under_way.load(Ordering::Relaxed) + promises;
        let capacity = Capacity { jobs, why };
        self.capacity.send_if_modified(|told| {
            let changed = *told != capacity;
            *told = capacity;
            changed
        });
    }
}

/// The provider's task.
async fn work(shared: Arc<Shared>) {
    let (scaler, members) = members::started(&shared).await;
    shared.scaler.send_replace(Some(scaler.clone()));
    shared.settle();
    // The first end where the plugin tells nothing by itself; the second never does.
    let members = members.into_iter().map(|member| member.follow(scaler.clone(), &shared.options.name));
    tokio::join!(futures::future::join_all(members), promise(&shared, &scaler));
}

/// Keeps as many promises as requests may be in flight.
async fn promise(shared: &Shared, scaler: &Scaler) {
    let mut refused: Option<Arc<str>> = None;
    let mut pruned = tokio::time::Instant::now();
    let mut room = scaler.room();
    loop {
        room.mark_unchanged();
        let why = keep_promises(shared, scaler).await;
        if why.is_some() && refused.is_none() {
            tracing::debug!(runner = shared.options.name, why = why.as_deref(), "no more jobs are requested for now");
        }
        refused = why;
        if pruned.elapsed() >= PRUNE_EVERY {
            prune(shared, scaler).await;
            pruned = tokio::time::Instant::now();
        }
        tokio::select! {
            () = shared.again.notified() => {}
            // A scaler that has ended has no more promises.
            changed = room.changed() => if changed.is_err() { return },
            // A net: it is told of each chance.
            () = tokio::time::sleep(PROMISE_NET), if refused.is_some() => {}
        }
    }
}

/// Makes the promises that are missing; why there are not more.
async fn keep_promises(shared: &Shared, scaler: &Scaler) -> Option<Arc<str>> {
    loop {
        let held = {
            let mut promises = shared.promises.lock();
            promises.retain(|promise| !promise.is_withdrawn());
            promises.len()
        };
        shared.publish(held, None);
        if held >= shared.options.requests.max(1) {
            return None;
        }
        match scaler.reserve(new_key()).await {
            Ok(promise) => shared.promises.lock().push(promise),
            Err(refusal) => {
                let why = refusal.map_or_else(|| "the taskscaler has ended".to_owned(), |why| why.to_string());
                let why: Arc<str> = why.into();
                shared.publish(shared.promises.lock().len(), Some(Arc::clone(&why)));
                return Some(why);
            }
        }
    }
}

/// Forgets the connections to instances that are gone.
async fn prune(shared: &Shared, scaler: &Scaler) {
    let Some(status) = scaler.status().await else { return };
    let known: BTreeSet<InstanceId> =
        status.instances.iter().map(|instance| shared.name(&instance.group, &instance.id)).collect();
    shared.instances.lock().retain(|id, _| {
        let is_known = known.contains(id);
        if !is_known {
            shared.hosts.forget(id);
        }
        is_known
    });
}

/// Makes an instance ready: the command of the configuration, then the agent.
pub(super) struct Ready(pub(super) Weak<Shared>);

#[async_trait]
impl Prepare for Ready {
    async fn prepare(&self, up: Up) -> Result<(), String> {
        let shared = self.0.upgrade().ok_or("the manager ends")?;
        let instance = shared.instance(&up.group, &up.id);
        if !up.host_keys.is_empty() {
            shared.hosts.pin(&shared.name(&up.group, up.id.as_str()), &up.host_keys);
        }
        let way = Way { shared: &shared, up: &up };
        // Once: what it removes or starts again may be in use by the jobs of an earlier start.
        if let Some(command) = shared.options.settings.instance_ready_command.as_ref().filter(|_| !up.again) {
            run(&way, command).await.map_err(|error| format!("instance_ready_command: {error}"))?;
        }
        instance.connect(&way).await.map(drop).map_err(|error| error.to_string())
    }
}

/// To an instance that no job has yet.
struct Way<'a> {
    shared: &'a Shared,
    up: &'a Up,
}

#[async_trait]
impl Dial for Way<'_> {
    async fn dial(&self) -> Result<(Box<dyn Session>, Addresses), String> {
        self.shared.dial((&self.up.group, &self.up.id), || self.up.connect_info(), true).await
    }
}

/// A job's name in the books: by it operators find the job's slot, and why it waits ([`muster_taskscaler::words::Key`]s are
/// unique, and a job may come more than once).
fn key_of(job: JobId) -> Key {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    Key::new(format!("job-{}-{unique:.8}", job.0))
}

fn new_key() -> Key {
    Key::new(uuid::Uuid::new_v4().simple().to_string())
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
