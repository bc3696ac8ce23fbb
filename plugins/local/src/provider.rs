//! The group: instances as the protocol sees them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Init, InstanceId, InstanceState, Partial, Provider, Settings,
};
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use tempfile::TempDir;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clouds_mood::Mood;
use crate::config::{Config, Isolation};
use crate::instance::{self, Running};

/// A group of instances on this host. They end with the plugin.
pub(crate) struct Local {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    settings: Settings,
    namespaces: bool,
    root: PathBuf,
    /// Keeps the directory where it is a temporary one.
    _temporary: Option<TempDir>,
    group: Mutex<Group>,
}

struct Group {
    instances: BTreeMap<InstanceId, Entry>,
    made: u64,
    mood: Mood,
}

struct Entry {
    state: InstanceState,
    /// Where it listens, and the key that lets in, once it runs.
    reach: Option<(u16, Vec<u8>)>,
    /// Ends it.
    end: CancellationToken,
}

impl Inner {
    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of one instance.
    async fn live(self: Arc<Self>, id: InstanceId, end: CancellationToken) {
        let (delay, fails, loss) = {
            let mut group = self.group();
            (group.mood.boot_delay(), group.mood.fails_to_boot(), group.mood.loss_after())
        };
        let directory = self.root.join(id.as_str());
        tokio::select! {
            () = end.cancelled() => return self.gone(&id),
            () = tokio::time::sleep(delay) => {}
        }
        let started = if fails { Err("it does not boot (boot_failure_rate)".into()) } else { self.start(&id).await };
        let mut running = match started {
            Ok(running) => running,
            Err(error) => {
                tracing::error!(%id, error = error.to_string(), "the instance did not come up");
                let _ = std::fs::remove_dir_all(&directory);
                return self.set(&id, InstanceState::Timeout);
            }
        };
        let lost = async {
            match loss {
                Some(after) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = end.cancelled() => {}
            () = lost => tracing::warn!(%id, "the instance is lost (losses_per_minute)"),
            () = running.ended() => tracing::warn!(%id, "the instance ended by itself"),
        }
        running.end().await;
        if let Err(error) = std::fs::remove_dir_all(&directory) {
            tracing::warn!(%id, %error, directory = %directory.display(), "the instance's directory is left");
        }
        self.gone(&id);
    }

    async fn start(&self, id: &InstanceId) -> Result<Running, Error> {
        let directory = self.root.join(id.as_str());
        std::fs::create_dir(&directory)?;
        let key = PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519)?;
        let running = Running::start(&directory, key.public_key(), self.namespaces).await?;
        let private = key.to_openssh(LineEnding::LF)?.as_bytes().to_vec();
        let mut group = self.group();
        if let Some(entry) = group.instances.get_mut(id) {
            entry.reach = Some((running.port, private));
            if entry.state == InstanceState::Creating {
                entry.state = InstanceState::Running;
            }
        }
        Ok(running)
    }

    fn set(&self, id: &InstanceId, state: InstanceState) {
        if let Some(entry) = self.group().instances.get_mut(id) {
            entry.state = state;
        }
    }

    fn gone(&self, id: &InstanceId) {
        self.group().instances.remove(id);
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
            Isolation::Auto => instance::namespaces_work().await,
            Isolation::Namespaces if instance::namespaces_work().await => true,
            Isolation::Namespaces => {
                return Err("isolation = \"namespaces\": this system does not permit user namespaces, or unshare (util-linux) is \
                            missing; use \"auto\", or permit them (sysctl kernel.unprivileged_userns_clone)"
                    .into());
            }
        };
        let temporary = match config.directory.as_os_str().is_empty() {
            true => Some(tempfile::Builder::new().prefix("fleeting-local-").tempdir()?),
            false => None,
        };
        let root = match &temporary {
            Some(temporary) => temporary.path().to_owned(),
            None => {
                std::fs::create_dir_all(&config.directory)
                    .map_err(|error| format!("directory = {}: {error}", config.directory.display()))?;
                std::path::absolute(&config.directory)?
            }
        };
        let init = Init { id: format!("local/{}", config.name), max_size: config.max_size, can_suspend: false };
        tracing::info!(group = init.id, namespaces, directory = %root.display(), "ready");
        let mood = Mood::new(config.clone());
        let group = Mutex::new(Group { instances: BTreeMap::new(), made: 0, mood });
        Ok((Self { inner: Arc::new(Inner { config, settings, namespaces, root, _temporary: temporary, group }) }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut group = self.inner.group();
        let seen = group.instances.iter().map(|(id, entry)| (id.clone(), entry.state)).collect();
        // One that never came up is told once.
        group.instances.retain(|_, entry| entry.state != InstanceState::Timeout);
        Ok(seen)
    }

    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>> {
        let mut group = self.inner.group();
        let used = u32::try_from(group.instances.len()).unwrap_or(u32::MAX);
        let room = self.inner.config.max_size.saturating_sub(used);
        if room == 0 {
            return Err(Partial::nothing(format!("the group is full: max_size = {}", self.inner.config.max_size)));
        }
        let granted = group.mood.grant(n.min(room), Instant::now()).map_err(Partial::nothing)?;
        for _ in 0..granted {
            group.made += 1;
            let id = InstanceId::new(format!("local-{}-{}", std::process::id(), group.made));
            let end = CancellationToken::new();
            group.instances.insert(id.clone(), Entry { state: InstanceState::Creating, reach: None, end: end.clone() });
            tokio::spawn(Arc::clone(&self.inner).live(id, end));
        }
        Ok(granted)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        let mut group = self.inner.group();
        for id in &ids {
            if let Some(entry) = group.instances.get_mut(id) {
                entry.state = InstanceState::Deleting;
                entry.end.cancel();
            }
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let group = self.inner.group();
        let entry = group.instances.get(&id).ok_or_else(|| format!("there is no instance {id}"))?;
        let (port, key) =
            entry.reach.clone().ok_or_else(|| format!("instance {id} is {} and cannot be reached", entry.state))?;
        let set = &self.inner.settings.connector;
        let or = |set: &str, own: &str| if set.is_empty() { own.to_owned() } else { set.to_owned() };
        let address = format!("127.0.0.1:{port}");
        Ok(ConnectInfo {
            connector: ConnectorConfig {
                os: or(&set.os, "linux"),
                arch: or(&set.arch, if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
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

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        match self.inner.group().instances.get(&id) {
            Some(entry) if entry.state == InstanceState::Running => Ok(()),
            Some(entry) => Err(format!("instance {id} is {}", entry.state).into()),
            None => Err(format!("there is no instance {id}").into()),
        }
    }
}
