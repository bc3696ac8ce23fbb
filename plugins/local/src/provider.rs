//! The group: instances in terms of the protocol.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Extension, Init, InstanceId, InstanceState, Notice, PartialFailure, Platform,
    Provider, Settings,
};
use russh::keys::{Algorithm, PrivateKey};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cgroup::{self, Cgroups};
use crate::cloud_simulator::CloudSimulator;
use crate::config::{Config, Isolation};
use crate::instance::{self, Reach, Running, Start};
use crate::persistent::{self, InstanceRecord};
use crate::run_dir::RunDir;
use crate::suspend;

/// Name of the only offer.
pub(crate) const OFFER: &str = "local";
/// Maximum number of notices that a host can lag behind. Older ones are dropped.
const MAX_NOTICES: usize = 256;
/// Timeout for stopping all instances at shutdown. The host's timeout is 30 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const STOP_PAUSE: Duration = Duration::from_millis(10);

/// A group of instances on this host.
pub(crate) struct Local {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    namespaces: bool,
    root: PathBuf,
    /// The directory, unless instances are persistent.
    place: Option<RunDir>,
    /// Part of the names of new instances, which makes them unique even if the next plugin gets the same process ID.
    run: u32,
    /// Locks the directory for this plugin if instances are persistent.
    _lock: Option<std::fs::File>,
    cgroups: Option<Cgroups>,
    notices: broadcast::Sender<Notice>,
    group: Mutex<GroupState>,
}

struct GroupState {
    instances: BTreeMap<InstanceId, Entry>,
    made: u64,
    simulator: CloudSimulator,
    /// True if the last request exceeded the capacity.
    out_of_stock: bool,
}

struct Entry {
    state: InstanceState,
    /// Connection details, once the instance is running.
    reach: Option<Reach>,
    /// Stops the instance.
    end: CancellationToken,
}

impl Local {
    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Subscribes to notices.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Notice> {
        self.inner.notices.subscribe()
    }

    /// Returns the number of instances that can currently be created.
    pub(crate) fn available(&self) -> u32 {
        self.inner.remaining_capacity(&self.inner.group())
    }

    pub(crate) fn pid(&self, id: &InstanceId) -> Option<u32> {
        self.inner.group().instances.get(id).and_then(|entry| entry.reach.as_ref()).map(|reach| reach.pid)
    }

    pub(crate) fn host_key(&self, id: &InstanceId) -> Option<String> {
        self.inner.group().instances.get(id).and_then(|entry| entry.reach.as_ref()).map(|reach| reach.host_key.clone())
    }
}

impl Inner {
    /// Returns the remaining capacity within `max_size` and `capacity`.
    fn remaining_capacity(&self, group: &GroupState) -> u32 {
        let used = u32::try_from(group.instances.len()).unwrap_or(u32::MAX);
        let stock = if self.config.capacity == 0 { u32::MAX } else { self.config.capacity };
        self.config.max_size.min(stock).saturating_sub(used)
    }

    fn tell(&self, notice: Notice) {
        // Sending fails if no host listens, which is fine.
        let _ = self.notices.send(notice);
    }

    fn group(&self) -> MutexGuard<'_, GroupState> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Manages an instance from its creation to its end.
    async fn run_instance(self: Arc<Self>, id: InstanceId, end: CancellationToken) {
        let (delay, fails, loss) = {
            let mut group = self.group();
            (group.simulator.boot_delay(), group.simulator.fails_to_boot(), group.simulator.preemption_after())
        };
        tokio::select! {
            () = end.cancelled() => return self.gone(&id),
            () = tokio::time::sleep(delay) => {}
        }
        let started = if fails { Err("boot failure (boot_failure_rate)".into()) } else { self.start(&id).await };
        match started {
            Ok((running, cgroup)) => self.watch(id, running, cgroup, end, loss).await,
            Err(error) => {
                tracing::error!(%id, error = error.to_string(), "instance failed to start");
                persistent::clear(&self.root, id.as_str()).await;
                self.set(&id, InstanceState::Timeout);
            }
        }
    }

    /// Watches a running instance until it ends.
    async fn watch(
        self: Arc<Self>,
        id: InstanceId,
        mut running: Running,
        cgroup: Option<cgroup::InstanceCgroup>,
        end: CancellationToken,
        loss: Option<Duration>,
    ) {
        let lost = async {
            let Some(after) = loss else { return std::future::pending().await };
            let notice = Duration::from_secs_f64(self.config.preemption_notice_s);
            tokio::time::sleep(after.saturating_sub(notice)).await;
            if !notice.is_zero() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let at = i64::try_from((now + notice).as_secs()).ok();
                let reason = "preempted (preemptions_per_minute)".to_owned();
                self.tell(Notice::Interruption { instance: id.clone(), at, reason });
                tokio::time::sleep(notice).await;
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = lost => tracing::warn!(%id, "instance preempted (preemptions_per_minute)"),
            () = running.ended() => tracing::warn!(%id, "instance exited"),
        }
        running.end().await;
        if let Some(cgroup) = cgroup {
            cgroup.remove().await;
        }
        persistent::clear(&self.root, id.as_str()).await;
        self.gone(&id);
    }

    /// Restores the instances of an earlier plugin. Removes those that have ended or whose start was interrupted.
    async fn restore_instances(self: &Arc<Self>) -> Result<(), Error> {
        for id in persistent::unrecorded(&self.root)? {
            tracing::info!(id, "removing instance whose start was interrupted");
            persistent::clear(&self.root, &id).await;
        }
        for (id, record) in persistent::recorded(&self.root)? {
            let id = InstanceId::new(id);
            match (record.process()?, &record) {
                (Some(free), InstanceRecord { listens: Some((port, host_key)), key, .. }) => {
                    tracing::info!(%id, pid = free.pid, "restored instance of an earlier process");
                    let (host_key, key) = (host_key.clone(), key.clone().into_bytes());
                    let reach = Reach { port: *port, key, host_key, pid: free.pid };
                    let (end, running) = (CancellationToken::new(), Running::attach(free, reach.clone()));
                    let is_suspended = suspend::is_suspended(reach.pid);
                    let state = if is_suspended { InstanceState::Suspended } else { InstanceState::Running };
                    let entry = Entry { state, reach: Some(reach), end: end.clone() };
                    let loss = {
                        let mut group = self.group();
                        group.instances.insert(id.clone(), entry);
                        group.simulator.preemption_after()
                    };
                    tokio::spawn(Arc::clone(self).watch(id, running, None, end, loss));
                }
                (Some(free), _) => {
                    free.end().await;
                    persistent::clear(&self.root, id.as_str()).await;
                }
                (None, _) => persistent::clear(&self.root, id.as_str()).await,
            }
        }
        Ok(())
    }

    async fn start(&self, id: &InstanceId) -> Result<(Running, Option<cgroup::InstanceCgroup>), Error> {
        let directory = self.root.join(id.as_str());
        DirBuilder::new().mode(0o700).create(&directory)?;
        let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519)?;
        let cgroup = self.cgroups.as_ref().map(|cgroups| cgroups.group(id.as_str())).transpose()?;
        let record = self.config.persistent_instances.then(|| persistent::path(&self.root, id.as_str()));
        let running = Running::start(Start {
            directory: &directory,
            key: &key,
            namespaces: self.namespaces,
            cgroup: cgroup.as_ref(),
            record: record.as_deref(),
        });
        let running = match running.await {
            Ok(running) => running,
            Err(error) => {
                if let Some(cgroup) = cgroup {
                    cgroup.remove().await;
                }
                return Err(error.into());
            }
        };
        let mut group = self.group();
        if let Some(entry) = group.instances.get_mut(id) {
            entry.reach = Some(running.reach.clone());
            if entry.state == InstanceState::Creating {
                entry.state = InstanceState::Running;
            }
        }
        Ok((running, cgroup))
    }

    fn set(&self, id: &InstanceId, state: InstanceState) {
        if let Some(entry) = self.group().instances.get_mut(id) {
            entry.state = state;
        }
    }

    /// Suspends or resumes instances. Returns those that succeeded.
    fn set_suspended(
        &self,
        ids: Vec<InstanceId>,
        suspended: bool,
    ) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let mut done = Vec::new();
        for id in ids {
            let mut group = self.group();
            let entry = group.instances.get_mut(&id);
            let Some((entry, pid)) =
                entry.and_then(|entry| entry.reach.as_ref().map(|reach| reach.pid).map(|pid| (entry, pid)))
            else {
                return Err(PartialFailure {
                    succeeded: done,
                    error: format!("instance {id} does not exist or is not running").into(),
                });
            };
            if !matches!(entry.state, InstanceState::Running | InstanceState::Suspended) {
                return Err(PartialFailure {
                    succeeded: done,
                    error: format!("instance {id} is {}", entry.state).into(),
                });
            }
            if !suspend::set(pid, suspended) {
                suspend::set(pid, !suspended);
                return Err(PartialFailure {
                    succeeded: done,
                    error: format!("instance {id} starts processes faster than they can be stopped").into(),
                });
            }
            entry.state = if suspended { InstanceState::Suspended } else { InstanceState::Running };
            done.push(id);
        }
        Ok(done)
    }

    fn gone(&self, id: &InstanceId) {
        let mut group = self.group();
        group.instances.remove(id);
        tracing::info!(%id, "instance deleted");
        self.report_restock(&mut group);
    }

    /// Reports stock again once there is capacity.
    fn report_restock(&self, group: &mut GroupState) {
        if group.out_of_stock && self.remaining_capacity(group) > 0 {
            group.out_of_stock = false;
            self.tell(Notice::StockChange { offer: OFFER.to_owned(), available: true });
        }
    }
}

/// Creates the cgroups for limits, if limits are set and possible.
fn limits(config: &Config) -> Option<Cgroups> {
    let limits = config.limits();
    if limits.is_none() {
        return None;
    }
    match Cgroups::new(limits) {
        Ok(cgroups) => Some(cgroups),
        Err(error) => {
            tracing::warn!(
                error,
                "max_memory_mib, max_cpus and max_processes have NO effect: failed to create cgroups"
            );
            None
        }
    }
}

#[async_trait]
impl Provider for Local {
    const NAME: &'static str = "local";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        config.check()?;
        let namespaces = match config.isolation {
            Isolation::None => false,
            Isolation::Auto if !config.persistent_instances => instance::namespaces_work().await,
            _ if instance::namespaces_work().await => true,
            _ => {
                return Err("isolation = \"namespaces\" and persistent_instances need user namespaces, which this system does not allow, or unshare (util-linux) is \
                            missing; use \"auto\", or allow them (sysctl kernel.unprivileged_userns_clone)"
                    .into());
            }
        };
        let base = match config.directory.as_os_str().is_empty() {
            true => std::env::temp_dir(),
            false => {
                std::fs::create_dir_all(&config.directory)
                    .map_err(|error| format!("directory = {}: {error}", config.directory.display()))?;
                std::path::absolute(&config.directory)?
            }
        };
        let made = |error| format!("failed to create a directory for instances in {}: {error}", base.display());
        let place = if config.persistent_instances { None } else { Some(RunDir::make(&base).map_err(made)?) };
        let root = place.as_ref().map_or(base, |place| place.path().to_owned());
        let lock = if config.persistent_instances { Some(persistent::lock(&root).await?) } else { None };
        let init =
            Init { id: format!("local/{}", config.name), max_size: config.max_size, can_suspend: config.suspendable };
        tracing::info!(group = init.id, namespaces, directory = %root.display(), "ready");
        let simulator = CloudSimulator::new(config.clone());
        let cgroups = limits(&config);
        let group = Mutex::new(GroupState { instances: BTreeMap::new(), made: 0, simulator, out_of_stock: false });
        let notices = broadcast::channel(MAX_NOTICES).0;
        let inner = Arc::new(Inner {
            config,
            settings,
            namespaces,
            root,
            place,
            run: rand::random(),
            _lock: lock,
            cgroups,
            notices,
            group,
        });
        if inner.config.persistent_instances {
            inner.restore_instances().await?;
        }
        Ok((Self { inner }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut group = self.inner.group();
        let seen = group.instances.iter().map(|(id, entry)| (id.clone(), entry.state)).collect();
        // An instance that failed to start is reported once.
        group.instances.retain(|_, entry| entry.state != InstanceState::Timeout);
        self.inner.report_restock(&mut group);
        Ok(seen)
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        tokio::time::sleep(Duration::from_millis(self.inner.config.request_delay_ms)).await;
        let mut group = self.inner.group();
        let remaining_capacity = self.inner.remaining_capacity(&group);
        let config = &self.inner.config;
        if n > remaining_capacity && config.capacity > 0 && config.capacity < config.max_size && !group.out_of_stock {
            group.out_of_stock = true;
            self.inner.tell(Notice::StockChange { offer: OFFER.to_owned(), available: false });
        }
        if remaining_capacity == 0 {
            return Err(PartialFailure::nothing(if group.out_of_stock {
                format!("the cloud is out of stock: capacity = {}", config.capacity)
            } else {
                format!("the group has reached max_size = {}", config.max_size)
            }));
        }
        let granted = group.simulator.accept_create(n.min(remaining_capacity), Instant::now()).map_err(|reason| {
            tracing::info!(n, reason, "request rejected");
            PartialFailure::nothing(reason)
        })?;
        for _ in 0..granted {
            group.made += 1;
            let id = InstanceId::new(persistent::name(self.inner.run, group.made));
            let end = CancellationToken::new();
            tracing::info!(%id, "creating instance");
            group.instances.insert(id.clone(), Entry { state: InstanceState::Creating, reach: None, end: end.clone() });
            tokio::spawn(Arc::clone(&self.inner).run_instance(id, end));
        }
        Ok(granted)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let mut group = self.inner.group();
        // An instance that failed to start has no resources, only a state to report.
        group.instances.retain(|id, entry| entry.state != InstanceState::Timeout || !ids.contains(id));
        for id in &ids {
            if let Some(entry) = group.instances.get_mut(id) {
                // A suspended instance cannot handle signals: resume it.
                if let (InstanceState::Suspended, Some(reach)) = (entry.state, &entry.reach) {
                    suspend::set(reach.pid, false);
                }
                entry.state = InstanceState::Deleting;
                entry.end.cancel();
            }
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let group = self.inner.group();
        let entry = group.instances.get(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        let Reach { port, key, .. } =
            entry.reach.clone().ok_or_else(|| format!("instance {id} is {}, so it has no address", entry.state))?;
        let set = &self.inner.settings.connector;
        let or = |set: &str, own: &str| if set.is_empty() { own.to_owned() } else { set.to_owned() };
        let address = format!("127.0.0.1:{port}");
        Ok(ConnectInfo {
            connector: ConnectorConfig {
                os: or(&set.os, "linux"),
                arch: or(&set.arch, &Platform::this().arch),
                protocol: or(&set.protocol, "ssh"),
                username: or(&set.username, &instance::user()),
                key,
                ..set.clone()
            },
            external_addr: address.clone(),
            internal_addr: address,
            expires: None,
        })
    }

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.inner.set_suspended(ids, true)
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.inner.set_suspended(ids, false)
    }

    /// Stops instances that are not persistent before the plugin exits.
    async fn shutdown(&self) -> Result<(), Error> {
        if self.inner.config.persistent_instances {
            return Ok(());
        }
        for entry in self.inner.group().instances.values() {
            if let (InstanceState::Suspended, Some(reach)) = (entry.state, &entry.reach) {
                suspend::set(reach.pid, false);
            }
            entry.end.cancel();
        }
        let lives = || self.inner.group().instances.values().any(|entry| entry.state != InstanceState::Timeout);
        let end = Instant::now() + STOP_TIMEOUT;
        while lives() {
            if Instant::now() >= end {
                return Err("instances did not stop in time; the next plugin removes their remains".into());
            }
            tokio::time::sleep(STOP_PAUSE).await;
        }
        self.inner.place.iter().for_each(RunDir::remove);
        self.inner.cgroups.iter().for_each(Cgroups::remove);
        Ok(())
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Some(self)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let mut group = self.inner.group();
        let fails = group.simulator.fails_heartbeat();
        match group.instances.get(&id) {
            Some(entry) if entry.state == InstanceState::Running && fails => {
                Err(format!("instance {id} does not respond (heartbeat_failure_rate)").into())
            }
            Some(entry) if entry.state == InstanceState::Running => Ok(()),
            Some(entry) => Err(format!("instance {id} is {}", entry.state).into()),
            None => Err(format!("unknown instance {id}").into()),
        }
    }
}
