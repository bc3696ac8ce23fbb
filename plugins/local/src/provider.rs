//! Implements the plugin protocol with a group of local instances.

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
use crate::instance::{self, ConnectionDetails, Running, Start};
use crate::persistent::{self, InstanceRecord};
use crate::run_dir::RunDir;
use crate::suspend;

/// Name of the only offer.
pub(crate) const OFFER: &str = "local";
/// Capacity of the channel of notices. A plugin host that falls behind loses the oldest notices.
const MAX_NOTICES: usize = 256;
/// Timeout for stopping all instances at shutdown. The plugin host's timeout is 30 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Local {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    namespaces: bool,
    /// Parent of the instances' directories.
    root: PathBuf,
    /// Temporary directory of this process. `None` if instances are persistent.
    run_dir: Option<RunDir>,
    /// Random number in the names of new instances, so that the names of two plugin processes differ.
    run: u32,
    /// Lock of the directory if instances are persistent.
    _lock: Option<std::fs::File>,
    cgroups: Option<Cgroups>,
    notices: broadcast::Sender<Notice>,
    group: Mutex<GroupState>,
}

struct GroupState {
    instances: BTreeMap<InstanceId, InstanceEntry>,
    created: u64,
    simulator: CloudSimulator,
    /// Whether the offer was reported as out of stock.
    out_of_stock: bool,
}

struct InstanceEntry {
    state: InstanceState,
    /// `None` until the instance runs.
    connection: Option<ConnectionDetails>,
    /// Canceled to stop the instance.
    stop: CancellationToken,
}

impl InstanceEntry {
    /// Stops the instance. Continues a suspended instance first, because it could not react otherwise.
    fn begin_stop(&mut self) {
        if let (InstanceState::Suspended, Some(connection)) = (self.state, &self.connection) {
            suspend::resume(connection.pid);
        }
        self.state = InstanceState::Deleting;
        self.stop.cancel();
    }
}

impl Local {
    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Notice> {
        self.inner.notices.subscribe()
    }

    pub(crate) fn available_instances(&self) -> u32 {
        self.inner.remaining_capacity(&self.inner.group())
    }

    pub(crate) fn pid(&self, id: &InstanceId) -> Option<u32> {
        Some(self.inner.group().instances.get(id)?.connection.as_ref()?.pid)
    }

    pub(crate) fn host_key(&self, id: &InstanceId) -> Option<String> {
        Some(self.inner.group().instances.get(id)?.connection.as_ref()?.host_key.clone())
    }
}

impl Inner {
    fn remaining_capacity(&self, group: &GroupState) -> u32 {
        let used = u32::try_from(group.instances.len()).unwrap_or(u32::MAX);
        let stock = if self.config.capacity == 0 { u32::MAX } else { self.config.capacity };
        self.config.max_size.min(stock).saturating_sub(used)
    }

    fn send_notice(&self, notice: Notice) {
        // Fails if no plugin host is subscribed.
        let _ = self.notices.send(notice);
    }

    fn group(&self) -> MutexGuard<'_, GroupState> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Manages an instance from its creation to its end.
    async fn run_instance(self: Arc<Self>, id: InstanceId, stop: CancellationToken) {
        let (delay, fails, preemption) = {
            let mut group = self.group();
            (group.simulator.boot_delay(), group.simulator.fails_to_boot(), group.simulator.preemption_after())
        };
        tokio::select! {
            () = stop.cancelled() => return self.remove_instance(&id),
            () = tokio::time::sleep(delay) => {}
        }
        let started = if fails { Err("boot failure (boot_failure_rate)".into()) } else { self.start(&id).await };
        match started {
            Ok((running, cgroup)) => self.watch(id, running, cgroup, stop, preemption).await,
            Err(error) => {
                tracing::error!(%id, error = error.to_string(), "instance failed to start");
                persistent::remove_files(&self.root, id.as_str()).await;
                self.set_state(&id, InstanceState::Timeout);
            }
        }
    }

    /// Watches a running instance until it ends or is stopped, and removes it.
    async fn watch(
        self: Arc<Self>,
        id: InstanceId,
        mut running: Running,
        cgroup: Option<cgroup::InstanceCgroup>,
        stop: CancellationToken,
        preemption: Option<Duration>,
    ) {
        let preempted = async {
            let Some(after) = preemption else { return std::future::pending().await };
            let notice = Duration::from_secs_f64(self.config.preemption_notice_s);
            tokio::time::sleep(after.saturating_sub(notice)).await;
            if !notice.is_zero() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let at = i64::try_from((now + notice).as_secs()).ok();
                let reason = "preempted (preemptions_per_minute)".to_owned();
                self.send_notice(Notice::Interruption { instance: id.clone(), at, reason });
                tokio::time::sleep(notice).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = preempted => {
                tracing::warn!(%id, "instance preempted (preemptions_per_minute)");
                self.group().instances.get_mut(&id).into_iter().for_each(InstanceEntry::begin_stop);
            }
            () = running.wait_exit() => tracing::warn!(%id, "instance exited"),
        }
        running.stop().await;
        if let Some(cgroup) = cgroup {
            cgroup.remove().await;
        }
        persistent::remove_files(&self.root, id.as_str()).await;
        self.remove_instance(&id);
    }

    /// Restores the instances of an earlier plugin. Removes those that have ended or whose start was interrupted.
    async fn restore_instances(self: &Arc<Self>) -> Result<(), Error> {
        for id in persistent::instances_without_record(&self.root)? {
            tracing::info!(id, "removing instance whose start was interrupted");
            persistent::remove_files(&self.root, &id).await;
        }
        for (id, record) in persistent::read_records(&self.root)? {
            let id = InstanceId::new(id);
            match (record.open_process()?, &record) {
                (Some(process), InstanceRecord { address: Some((port, host_key)), key, .. }) => {
                    tracing::info!(%id, pid = process.pid, "restored instance of an earlier process");
                    let (host_key, key) = (host_key.clone(), key.clone().into_bytes());
                    let connection = ConnectionDetails { port: *port, key, host_key, pid: process.pid };
                    let (stop, running) = (CancellationToken::new(), Running::attach(process, connection.clone()));
                    let is_suspended = suspend::is_suspended(connection.pid);
                    let state = if is_suspended { InstanceState::Suspended } else { InstanceState::Running };
                    let entry = InstanceEntry { state, connection: Some(connection), stop: stop.clone() };
                    let preemption = {
                        let mut group = self.group();
                        group.instances.insert(id.clone(), entry);
                        group.simulator.preemption_after()
                    };
                    tokio::spawn(Arc::clone(self).watch(id, running, None, stop, preemption));
                }
                (Some(process), _) => {
                    process.kill().await;
                    persistent::remove_files(&self.root, id.as_str()).await;
                }
                (None, _) => persistent::remove_files(&self.root, id.as_str()).await,
            }
        }
        Ok(())
    }

    async fn start(&self, id: &InstanceId) -> Result<(Running, Option<cgroup::InstanceCgroup>), Error> {
        let directory = self.root.join(id.as_str());
        DirBuilder::new().mode(0o700).create(&directory)?;
        let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519)?;
        let cgroup = self.cgroups.as_ref().map(|cgroups| cgroups.create(id.as_str())).transpose()?;
        let record = self.config.persistent_instances.then(|| persistent::record_path(&self.root, id.as_str()));
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
            entry.connection = Some(running.connection.clone());
            if entry.state == InstanceState::Creating {
                entry.state = InstanceState::Running;
            }
        }
        Ok((running, cgroup))
    }

    fn set_state(&self, id: &InstanceId, state: InstanceState) {
        if let Some(entry) = self.group().instances.get_mut(id) {
            entry.state = state;
        }
    }

    /// Suspends instances if `target` is `Suspended`, and resumes them otherwise. Returns the instances that reached
    /// `target`.
    fn change_state(
        &self,
        ids: Vec<InstanceId>,
        target: InstanceState,
    ) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let is_suspend = target == InstanceState::Suspended;
        let [change, revert]: [fn(u32) -> bool; 2] =
            if is_suspend { [suspend::suspend, suspend::resume] } else { [suspend::resume, suspend::suspend] };
        let mut succeeded = Vec::new();
        for id in ids {
            let mut group = self.group();
            let entry = group.instances.get_mut(&id);
            let Some((entry, pid)) = entry
                .and_then(|entry| entry.connection.as_ref().map(|connection| connection.pid).map(|pid| (entry, pid)))
            else {
                return Err(PartialFailure {
                    succeeded,
                    error: format!("instance {id} does not exist or is not running").into(),
                });
            };
            if !matches!(entry.state, InstanceState::Running | InstanceState::Suspended) {
                return Err(PartialFailure { succeeded, error: format!("instance {id} is {}", entry.state).into() });
            }
            if !change(pid) {
                revert(pid);
                let error = if is_suspend {
                    format!("instance {id} starts processes faster than they can be stopped")
                } else {
                    format!("failed to continue all processes of instance {id}")
                };
                return Err(PartialFailure { succeeded, error: error.into() });
            }
            entry.state = target;
            succeeded.push(id);
        }
        Ok(succeeded)
    }

    fn remove_instance(&self, id: &InstanceId) {
        let mut group = self.group();
        group.instances.remove(id);
        tracing::info!(%id, "instance deleted");
        self.report_restock(&mut group);
    }

    fn report_restock(&self, group: &mut GroupState) {
        if group.out_of_stock && self.remaining_capacity(group) > 0 {
            group.out_of_stock = false;
            self.send_notice(Notice::StockChange { offer: OFFER.to_owned(), available: true });
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
            Isolation::Auto if !config.persistent_instances => instance::can_create_namespaces().await,
            _ if instance::can_create_namespaces().await => true,
            _ => return Err(instance::no_namespaces_error(config.persistent_instances).into()),
        };
        let base = match config.directory.as_os_str().is_empty() {
            true => std::env::temp_dir(),
            false => {
                std::fs::create_dir_all(&config.directory)
                    .map_err(|error| format!("directory: failed to create {}: {error}", config.directory.display()))?;
                std::path::absolute(&config.directory)?
            }
        };
        let create_error = |error| format!("failed to create a directory for instances in {}: {error}", base.display());
        let run_dir =
            if config.persistent_instances { None } else { Some(RunDir::create(&base).map_err(create_error)?) };
        let root = run_dir.as_ref().map_or(base, |run_dir| run_dir.path().to_owned());
        let lock = if config.persistent_instances { Some(persistent::lock(&root).await?) } else { None };
        let init =
            Init { id: format!("local/{}", config.name), max_size: config.max_size, can_suspend: config.suspendable };
        tracing::info!(group = init.id, namespaces, directory = %root.display(), "ready");
        let simulator = CloudSimulator::new(config.clone());
        let cgroups = Cgroups::for_limits(config.limits());
        let group = Mutex::new(GroupState { instances: BTreeMap::new(), created: 0, simulator, out_of_stock: false });
        let notices = broadcast::channel(MAX_NOTICES).0;
        let inner = Arc::new(Inner {
            config,
            settings,
            namespaces,
            root,
            run_dir,
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
        let listed = group.instances.iter().map(|(id, entry)| (id.clone(), entry.state)).collect();
        // An instance that failed to start is reported once.
        group.instances.retain(|_, entry| entry.state != InstanceState::Timeout);
        self.inner.report_restock(&mut group);
        Ok(listed)
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        tokio::time::sleep(Duration::from_millis(self.inner.config.request_delay_ms)).await;
        let mut group = self.inner.group();
        let remaining_capacity = self.inner.remaining_capacity(&group);
        let config = &self.inner.config;
        if n > remaining_capacity && config.capacity > 0 && config.capacity < config.max_size && !group.out_of_stock {
            group.out_of_stock = true;
            self.inner.send_notice(Notice::StockChange { offer: OFFER.to_owned(), available: false });
        }
        if remaining_capacity == 0 {
            return Err(PartialFailure::none_succeeded(if group.out_of_stock {
                format!("the cloud is out of stock: capacity = {}", config.capacity)
            } else {
                format!("the group has reached max_size = {}", config.max_size)
            }));
        }
        let accepted = group.simulator.accept_create(n.min(remaining_capacity), Instant::now()).map_err(|reason| {
            tracing::info!(n, reason, "request rejected");
            PartialFailure::none_succeeded(reason)
        })?;
        for _ in 0..accepted {
            group.created += 1;
            let id = InstanceId::new(persistent::instance_name(self.inner.run, group.created));
            let stop = CancellationToken::new();
            tracing::info!(%id, "creating instance");
            let entry = InstanceEntry { state: InstanceState::Creating, connection: None, stop: stop.clone() };
            group.instances.insert(id.clone(), entry);
            tokio::spawn(Arc::clone(&self.inner).run_instance(id, stop));
        }
        Ok(accepted)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let mut group = self.inner.group();
        // An instance that failed to start has no process and no files, so only its entry is removed.
        group.instances.retain(|id, entry| entry.state != InstanceState::Timeout || !ids.contains(id));
        for id in &ids {
            group.instances.get_mut(id).into_iter().for_each(InstanceEntry::begin_stop);
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let group = self.inner.group();
        let entry = group.instances.get(&id).ok_or_else(|| format!("unknown instance {id}"))?;
        let ConnectionDetails { port, key, .. } = entry
            .connection
            .clone()
            .ok_or_else(|| format!("instance {id} is {}, so it has no address", entry.state))?;
        let user = &self.inner.settings.connector;
        let or_default =
            |value: &str, default: &str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
        let address = format!("127.0.0.1:{port}");
        Ok(ConnectInfo {
            connector: ConnectorConfig {
                os: or_default(&user.os, "linux"),
                arch: or_default(&user.arch, &Platform::this().arch),
                protocol: or_default(&user.protocol, "ssh"),
                username: or_default(&user.username, &instance::user()),
                key,
                ..user.clone()
            },
            external_addr: address.clone(),
            internal_addr: address,
            expires: None,
        })
    }

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.inner.change_state(ids, InstanceState::Suspended)
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        self.inner.change_state(ids, InstanceState::Running)
    }

    /// Stops instances that are not persistent.
    async fn shutdown(&self) -> Result<(), Error> {
        if self.inner.config.persistent_instances {
            return Ok(());
        }
        let is_active = |entry: &InstanceEntry| entry.state != InstanceState::Timeout;
        for entry in self.inner.group().instances.values_mut().filter(|entry| is_active(entry)) {
            entry.begin_stop();
        }
        let has_instances = || self.inner.group().instances.values().any(is_active);
        let deadline = Instant::now() + STOP_TIMEOUT;
        while has_instances() {
            if Instant::now() >= deadline {
                return Err("instances did not stop in time; the next plugin process removes their files".into());
            }
            tokio::time::sleep(STOP_POLL_INTERVAL).await;
        }
        self.inner.run_dir.iter().for_each(RunDir::remove);
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
