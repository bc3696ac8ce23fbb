//! The group: instances as the protocol sees them.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Extension, Init, InstanceId, InstanceState, Notice, Partial, Platform,
    Provider, Settings,
};
use russh::keys::{Algorithm, PrivateKey};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cgroup::{self, Cgroups};
use crate::clouds_mood::Mood;
use crate::config::{Config, Isolation};
use crate::instance::{self, Reach, Running, Start};
use crate::outlive::{self, Record};
use crate::place::Place;
use crate::sleep;

/// The name of the one offer.
pub(crate) const OFFER: &str = "local";
/// Notices that a host may be behind; older ones are dropped.
const NOTICES_MAX: usize = 256;
/// For all instances to end with the plugin; the host gives it 30 s.
const END_LIMIT: Duration = Duration::from_secs(15);
const END_PAUSE: Duration = Duration::from_millis(10);

/// A group of instances on this host.
pub(crate) struct Local {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    namespaces: bool,
    root: PathBuf,
    /// The directory, unless instances outlive the plugin.
    place: Option<Place>,
    /// Of the names of new instances. They never come back, also where the next plugin has the same process number.
    run: u32,
    /// Keeps it for this plugin alone where instances outlive it.
    _lock: Option<std::fs::File>,
    cgroups: Option<Cgroups>,
    notices: broadcast::Sender<Notice>,
    group: Mutex<Group>,
}

struct Group {
    instances: BTreeMap<InstanceId, Entry>,
    made: u64,
    mood: Mood,
    /// The last request was beyond the stock.
    out_of_stock: bool,
}

struct Entry {
    state: InstanceState,
    /// Once it runs.
    reach: Option<Reach>,
    /// Ends it.
    end: CancellationToken,
}

impl Local {
    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Hears of notices from now on.
    pub(crate) fn heard(&self) -> broadcast::Receiver<Notice> {
        self.inner.notices.subscribe()
    }

    /// How many instances can be had at the moment.
    pub(crate) fn available(&self) -> u32 {
        self.inner.room(&self.inner.group())
    }

    pub(crate) fn pid(&self, id: &InstanceId) -> Option<u32> {
        self.inner.group().instances.get(id).and_then(|entry| entry.reach.as_ref()).map(|reach| reach.pid)
    }

    pub(crate) fn host_key(&self, id: &InstanceId) -> Option<String> {
        self.inner.group().instances.get(id).and_then(|entry| entry.reach.as_ref()).map(|reach| reach.host_key.clone())
    }
}

impl Inner {
    /// Below `max_size` and stock.
    fn room(&self, group: &Group) -> u32 {
        let used = u32::try_from(group.instances.len()).unwrap_or(u32::MAX);
        let stock = if self.config.stock == 0 { u32::MAX } else { self.config.stock };
        self.config.max_size.min(stock).saturating_sub(used)
    }

    fn tell(&self, notice: Notice) {
        // Without a host that listens, nobody has to know.
        let _ = self.notices.send(notice);
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of one instance.
    async fn live(self: Arc<Self>, id: InstanceId, end: CancellationToken) {
        let (delay, fails, loss) = {
            let mut group = self.group();
            (group.mood.boot_delay(), group.mood.fails_to_boot(), group.mood.loss_after())
        };
        tokio::select! {
            () = end.cancelled() => return self.gone(&id),
            () = tokio::time::sleep(delay) => {}
        }
        let started = if fails { Err("it does not boot (boot_failure_rate)".into()) } else { self.start(&id).await };
        match started {
            Ok((running, cgroup)) => self.watch(id, running, cgroup, end, loss).await,
            Err(error) => {
                tracing::error!(%id, error = error.to_string(), "the instance did not come up");
                outlive::clear(&self.root, id.as_str()).await;
                self.set(&id, InstanceState::Timeout);
            }
        }
    }

    /// From its start to its end.
    async fn watch(
        self: Arc<Self>,
        id: InstanceId,
        mut running: Running,
        cgroup: Option<cgroup::Group>,
        end: CancellationToken,
        loss: Option<Duration>,
    ) {
        let lost = async {
            let Some(after) = loss else { return std::future::pending().await };
            let notice = Duration::from_secs_f64(self.config.notice_s);
            tokio::time::sleep(after.saturating_sub(notice)).await;
            if !notice.is_zero() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let at = i64::try_from((now + notice).as_secs()).ok();
                let reason = "the cloud takes it back (losses_per_minute)".to_owned();
                self.tell(Notice::Interruption { instance: id.clone(), at, reason });
                tokio::time::sleep(notice).await;
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = lost => tracing::warn!(%id, "the instance is lost (losses_per_minute)"),
            () = running.ended() => tracing::warn!(%id, "the instance ended by itself"),
        }
        running.end().await;
        if let Some(cgroup) = cgroup {
            cgroup.remove().await;
        }
        outlive::clear(&self.root, id.as_str()).await;
        self.gone(&id);
    }

    /// The instances of an earlier plugin go on; those that have ended meanwhile, or were not heard of, or only begun, are
    /// cleared away.
    async fn find_again(self: &Arc<Self>) -> Result<(), Error> {
        for id in outlive::unrecorded(&self.root)? {
            tracing::info!(id, "an instance that was only begun is cleared away");
            outlive::clear(&self.root, &id).await;
        }
        for (id, record) in outlive::recorded(&self.root)? {
            let id = InstanceId::new(id);
            match (record.process()?, &record) {
                (Some(free), Record { listens: Some((port, host_key)), key, .. }) => {
                    tracing::info!(%id, pid = free.pid, "an instance of an earlier start goes on");
                    let (host_key, key) = (host_key.clone(), key.clone().into_bytes());
                    let reach = Reach { port: *port, key, host_key, pid: free.pid };
                    let (end, running) = (CancellationToken::new(), Running::found(free, reach.clone()));
                    let is_suspended = sleep::is_suspended(reach.pid);
                    let state = if is_suspended { InstanceState::Suspended } else { InstanceState::Running };
                    let entry = Entry { state, reach: Some(reach), end: end.clone() };
                    let loss = {
                        let mut group = self.group();
                        group.instances.insert(id.clone(), entry);
                        group.mood.loss_after()
                    };
                    tokio::spawn(Arc::clone(self).watch(id, running, None, end, loss));
                }
                (Some(free), _) => {
                    free.end().await;
                    outlive::clear(&self.root, id.as_str()).await;
                }
                (None, _) => outlive::clear(&self.root, id.as_str()).await,
            }
        }
        Ok(())
    }

    async fn start(&self, id: &InstanceId) -> Result<(Running, Option<cgroup::Group>), Error> {
        let directory = self.root.join(id.as_str());
        DirBuilder::new().mode(0o700).create(&directory)?;
        let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519)?;
        let cgroup = self.cgroups.as_ref().map(|cgroups| cgroups.group(id.as_str())).transpose()?;
        let record = self.config.outlive_plugin.then(|| outlive::path(&self.root, id.as_str()));
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

    /// Suspends instances, or lets them go on; those that do.
    fn set_asleep(&self, ids: Vec<InstanceId>, asleep: bool) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        let mut done = Vec::new();
        for id in ids {
            let mut group = self.group();
            let entry = group.instances.get_mut(&id);
            let Some((entry, pid)) =
                entry.and_then(|entry| entry.reach.as_ref().map(|reach| reach.pid).map(|pid| (entry, pid)))
            else {
                return Err(Partial { succeeded: done, error: format!("there is no instance {id} that runs").into() });
            };
            if !matches!(entry.state, InstanceState::Running | InstanceState::Suspended) {
                return Err(Partial { succeeded: done, error: format!("instance {id} is {}", entry.state).into() });
            }
            if !sleep::set(pid, asleep) {
                sleep::set(pid, !asleep);
                return Err(Partial {
                    succeeded: done,
                    error: format!("instance {id} starts processes faster than they are stopped").into(),
                });
            }
            entry.state = if asleep { InstanceState::Suspended } else { InstanceState::Running };
            done.push(id);
        }
        Ok(done)
    }

    fn gone(&self, id: &InstanceId) {
        let mut group = self.group();
        group.instances.remove(id);
        tracing::info!(%id, "the instance is gone");
        self.restock(&mut group);
    }

    /// What went out of stock is back as soon as there is room.
    fn restock(&self, group: &mut Group) {
        if group.out_of_stock && self.room(group) > 0 {
            group.out_of_stock = false;
            self.tell(Notice::Stock { offer: OFFER.to_owned(), available: true });
        }
    }
}

/// The groups for limits, where some are wanted and possible.
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
                "memory_max_mib, cpus_max and processes_max are NOT in force: no cgroups can be made here"
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
            Isolation::Auto if !config.outlive_plugin => instance::namespaces_work().await,
            _ if instance::namespaces_work().await => true,
            _ => {
                return Err("isolation = \"namespaces\", and outlive_plugin: this system does not permit user namespaces, or unshare (util-linux) is \
                            missing; use \"auto\", or permit them (sysctl kernel.unprivileged_userns_clone)"
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
        let made = |error| format!("no directory for instances can be made in {}: {error}", base.display());
        let place = if config.outlive_plugin { None } else { Some(Place::make(&base).map_err(made)?) };
        let root = place.as_ref().map_or(base, |place| place.path().to_owned());
        let lock = if config.outlive_plugin { Some(outlive::lock(&root).await?) } else { None };
        let init =
            Init { id: format!("local/{}", config.name), max_size: config.max_size, can_suspend: config.suspendable };
        tracing::info!(group = init.id, namespaces, directory = %root.display(), "ready");
        let mood = Mood::new(config.clone());
        let cgroups = limits(&config);
        let group = Mutex::new(Group { instances: BTreeMap::new(), made: 0, mood, out_of_stock: false });
        let notices = broadcast::channel(NOTICES_MAX).0;
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
        if inner.config.outlive_plugin {
            inner.find_again().await?;
        }
        Ok((Self { inner }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut group = self.inner.group();
        let seen = group.instances.iter().map(|(id, entry)| (id.clone(), entry.state)).collect();
        // One that never came up is told once.
        group.instances.retain(|_, entry| entry.state != InstanceState::Timeout);
        self.inner.restock(&mut group);
        Ok(seen)
    }

    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>> {
        tokio::time::sleep(Duration::from_millis(self.inner.config.request_delay_ms)).await;
        let mut group = self.inner.group();
        let room = self.inner.room(&group);
        let config = &self.inner.config;
        if n > room && config.stock > 0 && config.stock < config.max_size && !group.out_of_stock {
            group.out_of_stock = true;
            self.inner.tell(Notice::Stock { offer: OFFER.to_owned(), available: false });
        }
        if room == 0 {
            return Err(Partial::nothing(if group.out_of_stock {
                format!("the cloud is out of stock: stock = {}", config.stock)
            } else {
                format!("the group is full: max_size = {}", config.max_size)
            }));
        }
        let granted = group.mood.grant(n.min(room), Instant::now()).map_err(|reason| {
            tracing::info!(n, reason, "a request is refused");
            Partial::nothing(reason)
        })?;
        for _ in 0..granted {
            group.made += 1;
            let id = InstanceId::new(outlive::name(self.inner.run, group.made));
            let end = CancellationToken::new();
            tracing::info!(%id, "an instance is made");
            group.instances.insert(id.clone(), Entry { state: InstanceState::Creating, reach: None, end: end.clone() });
            tokio::spawn(Arc::clone(&self.inner).live(id, end));
        }
        Ok(granted)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        let mut group = self.inner.group();
        // Of one that did not come up nothing is left but what is to be told of it.
        group.instances.retain(|id, entry| entry.state != InstanceState::Timeout || !ids.contains(id));
        for id in &ids {
            if let Some(entry) = group.instances.get_mut(id) {
                // What is stopped may not hear of its end.
                if let (InstanceState::Suspended, Some(reach)) = (entry.state, &entry.reach) {
                    sleep::set(reach.pid, false);
                }
                entry.state = InstanceState::Deleting;
                entry.end.cancel();
            }
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let group = self.inner.group();
        let entry = group.instances.get(&id).ok_or_else(|| format!("there is no instance {id}"))?;
        let Reach { port, key, .. } =
            entry.reach.clone().ok_or_else(|| format!("instance {id} is {} and cannot be reached", entry.state))?;
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

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        self.inner.set_asleep(ids, true)
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        self.inner.set_asleep(ids, false)
    }

    /// Instances that do not outlive the plugin end before it, in order: nothing of them is left.
    async fn shutdown(&self) -> Result<(), Error> {
        if self.inner.config.outlive_plugin {
            return Ok(());
        }
        for entry in self.inner.group().instances.values() {
            if let (InstanceState::Suspended, Some(reach)) = (entry.state, &entry.reach) {
                sleep::set(reach.pid, false);
            }
            entry.end.cancel();
        }
        let lives = || self.inner.group().instances.values().any(|entry| entry.state != InstanceState::Timeout);
        let end = Instant::now() + END_LIMIT;
        while lives() {
            if Instant::now() >= end {
                return Err("instances do not end; the next plugin clears away what is left of them".into());
            }
            tokio::time::sleep(END_PAUSE).await;
        }
        self.inner.place.iter().for_each(Place::remove);
        self.inner.cgroups.iter().for_each(Cgroups::remove);
        Ok(())
    }

    fn extension(&self) -> Option<&dyn Extension> {
        Some(self)
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let mut group = self.inner.group();
        let fails = group.mood.fails_a_heartbeat();
        match group.instances.get(&id) {
            Some(entry) if entry.state == InstanceState::Running && fails => {
                Err(format!("instance {id} does not answer (heartbeat_failure_rate)").into())
            }
            Some(entry) if entry.state == InstanceState::Running => Ok(()),
            Some(entry) => Err(format!("instance {id} is {}", entry.state).into()),
            None => Err(format!("there is no instance {id}").into()),
        }
    }
}
