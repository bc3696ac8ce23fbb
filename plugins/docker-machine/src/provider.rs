//! Calls of the protocol, and background tasks.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Semaphore;

use crate::config::{Config, Names};
use crate::group::Machines;
use crate::machine;

/// Each removal is a process that calls the cloud.
const MAX_CONCURRENT_REMOVALS: usize = 16;

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const MAX_REMOVAL_DELAY: Duration = Duration::from_secs(600);
const MIN_REMOVAL_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct DockerMachine {
    inner: Arc<Inner>,
}

struct Inner {
    docker_machine: machine::DockerMachine,
    names: Names,
    settings: Settings,
    max_size: usize,
    removal_attempts: u32,
    removal_delay: Duration,
    machines: Mutex<Machines>,
    creations: Semaphore,
    removals: Semaphore,
    /// Directory with a file for each machine in creation, which gets the output of docker-machine. A file that exists
    /// at startup belongs to an interrupted creation.
    creation_markers: PathBuf,
}

impl Inner {
    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a machine, unless it is no longer needed when the creation starts.
    ///
    /// A creation in progress is completed before the machine is removed. If it were interrupted, the provider would
    /// keep the machine.
    async fn create(self: Arc<Self>, name: String, stop: tokio_util::sync::CancellationToken) {
        let permit = tokio::select! {
            permit = self.creations.acquire() => permit,
            () = stop.cancelled() => {
                tracing::info!(machine = name, "creation canceled before it started");
                return self.finish_removal(&name);
            }
        };
        tracing::info!(machine = name, "creating machine");
        let result = self.docker_machine.create(&name, &self.creation_markers.join(&name)).await;
        drop(permit);
        match result.map_err(|error| error.to_string()) {
            // If the marker remained, the next start of the plugin would remove the machine although jobs run on it.
            Ok(()) if self.machines().is_being_created(&name) && !remove_marker(&self.creation_markers, &name) => {
                tracing::error!(machine = name, "failed to record that the machine was created, removing it");
                self.machines().mark_removing(name.clone());
                self.remove(name).await;
            }
            Ok(()) if self.machines().mark_created(&name) => tracing::info!(machine = name, "machine created"),
            Ok(()) => self.remove(name).await,
            Err(cause) => {
                tracing::error!(machine = name, cause, "failed to create machine, removing it");
                self.machines().mark_removing(name.clone());
                self.remove(name).await;
            }
        }
    }

    /// Retries until the removal succeeds, because a remaining machine costs money.
    async fn remove(self: Arc<Self>, name: String) {
        let mut delay = self.removal_delay;
        for attempt in 1_u32.. {
            // With `force`, docker-machine deletes its local state even if the provider fails.
            let force = attempt > self.removal_attempts;
            if force {
                tracing::error!(
                    machine = name,
                    attempts = self.removal_attempts,
                    "failed to remove machine; deleting its local state even if the provider fails, so check the provider and delete the machine there"
                );
            }
            let removed = {
                let _permit = self.removals.acquire().await;
                self.docker_machine.remove(&name, force).await
            };
            match removed {
                Ok(()) => {
                    tracing::info!(machine = name, "machine removed");
                    return self.finish_removal(&name);
                }
                Err(error) => tracing::warn!(machine = name, attempt, force, %error, "failed to remove machine"),
            }
            tokio::time::sleep(delay).await;
            if force {
                delay = (delay * 2).clamp(MIN_REMOVAL_DELAY, MAX_REMOVAL_DELAY);
            }
        }
    }

    /// Waits for a docker-machine process that a killed plugin started, then removes its machine.
    async fn remove_orphan(self: Arc<Self>, name: String) {
        let timeout = self.docker_machine.create_timeout();
        let exit = async {
            while find_creation_process(&name).is_some() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(timeout, exit).await.is_err()
            && let Some(pid) = find_creation_process(&name)
        {
            tracing::error!(machine = name, "creation exceeded create_timeout_s, stopping it");
            let _ = kill_process(pid, Signal::KILL);
        }
        self.remove(name).await;
    }

    fn finish_removal(&self, name: &str) {
        remove_marker(&self.creation_markers, name);
        self.machines().mark_removed(name);
    }

    fn spawn_removal(self: &Arc<Self>, name: String) {
        tokio::spawn(Arc::clone(self).remove(name));
    }
}

/// Returns whether the marker no longer exists.
fn remove_marker(creation_markers: &Path, name: &str) -> bool {
    let marker = creation_markers.join(name);
    match std::fs::remove_file(&marker) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::error!(machine = name, path = %marker.display(), %error, "failed to remove a creation marker; delete the file");
            false
        }
        _ => true,
    }
}

/// Finds the docker-machine process that creates a machine. Its arguments contain the machine's name.
fn find_creation_process(name: &str) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let arguments: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        (arguments.contains(&&b"create"[..]) && arguments.contains(&name.as_bytes())).then_some(pid)
    });
    pids.next()
}

#[async_trait]
impl Provider for DockerMachine {
    const NAME: &'static str = "docker-machine";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        config.check()?;
        config.warn_of_old_keys();
        let storage = config.storage()?;
        let creation_markers = storage.join("muster-creating");
        std::fs::create_dir_all(&creation_markers)
            .map_err(|error| format!("storage_path: failed to create {}: {error}", creation_markers.display()))?;
        let names = config.names();
        let init = Init {
            id: format!("docker-machine/{}/{}{}", config.driver, config.prefix, config.machine_name),
            max_size: config.max_size,
            can_suspend: false,
        };
        let concurrent_creations = match config.max_growth_rate {
            0 => Semaphore::MAX_PERMITS,
            rate => rate as usize,
        };
        let inner = Arc::new(Inner {
            names,
            settings,
            max_size: config.max_size as usize,
            removal_attempts: config.removal_attempts(),
            removal_delay: Duration::from_secs(config.removal_interval_s),
            machines: Mutex::default(),
            creations: Semaphore::new(concurrent_creations),
            removals: Semaphore::new(MAX_CONCURRENT_REMOVALS),
            creation_markers,
            docker_machine: machine::DockerMachine::new(config, storage),
        });
        // The call also checks that docker-machine can be run.
        let all = inner.docker_machine.first_list().await?;
        let (own, others): (Vec<&String>, Vec<&String>) =
            all.keys().partition(|name| inner.names.may_belong_to_group(name));
        tracing::info!(
            group = init.id,
            machines = own.len(),
            other_machines = others.len(),
            "ready; machines of other groups are ignored"
        );
        for marker in std::fs::read_dir(&inner.creation_markers)?.flatten() {
            let name = marker.file_name().to_string_lossy().into_owned();
            if inner.names.may_belong_to_group(&name) {
                tracing::warn!(machine = name, "removing machine whose creation was interrupted");
                inner.machines().mark_removing(name.clone());
                tokio::spawn(Arc::clone(&inner).remove_orphan(name));
            }
        }
        Ok((Self { inner }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut listed = self.inner.docker_machine.list().await?;
        listed.retain(|name, _| self.inner.names.may_belong_to_group(name));
        let (instances, remove) = self.inner.machines().process_list(&listed);
        remove.into_iter().for_each(|name| self.inner.spawn_removal(name));
        Ok(instances)
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        for accepted in 0..n {
            let mut machines = self.inner.machines();
            if machines.len() >= self.inner.max_size {
                let error = format!("the group has reached max_size = {}", self.inner.max_size);
                return Err(PartialFailure { succeeded: accepted, error: error.into() });
            }
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let name = self.inner.names.new_name(seconds, rand::random());
            // The marker is created first, so that a crash leaves no unknown machine.
            let marker =
                std::fs::File::create(self.inner.creation_markers.join(&name)).and_then(|file| file.sync_all());
            if let Err(error) = marker {
                let error = format!("failed to create a file in {}: {error}", self.inner.creation_markers.display());
                return Err(PartialFailure { succeeded: accepted, error: error.into() });
            }
            let stop = machines.begin_creation(name.clone());
            tokio::spawn(Arc::clone(&self.inner).create(name, stop));
        }
        Ok(n)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        for id in &ids {
            if self.inner.machines().begin_removal(id.as_str()) {
                self.inner.spawn_removal(id.as_str().to_owned());
            }
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        if !self.inner.machines().contains(id.as_str()) {
            return Err(format!("unknown instance {id}").into());
        }
        let details = self.inner.docker_machine.connection_details(id.as_str()).await?;
        let user = &self.inner.settings.connector;
        let or_default =
            |value: &str, default: &str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
        let key = if user.key.is_empty() && user.password.is_empty() {
            tokio::fs::read(&details.key_path).await.map_err(|error| {
                format!("machine {id}: failed to read SSH key {}: {error}", details.key_path.display())
            })?
        } else {
            user.key.clone()
        };
        Ok(ConnectInfo {
            connector: ConnectorConfig {
                os: or_default(&user.os, "linux"),
                protocol: or_default(&user.protocol, "ssh"),
                protocol_port: if user.protocol_port == 0 { details.port } else { user.protocol_port },
                username: or_default(&user.username, &details.username),
                key,
                ..user.clone()
            },
            // docker-machine has only one address of the machine.
            external_addr: details.address.clone(),
            internal_addr: details.address,
            expires: None,
        })
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        match self.inner.docker_machine.status(id.as_str()).await?.as_str() {
            "Running" => Ok(()),
            state => Err(format!("machine {id} has the state {state:?} in docker-machine").into()),
        }
    }
}
