//! The calls of the protocol, and the work between them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    ConnectInfo, ConnectorConfig, Error, Init, InstanceId, InstanceState, Partial, Provider, Settings,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Semaphore;

use crate::config::{Config, Names};
use crate::group::Machines;
use crate::machine;

/// Removals at the same time: each is a process that talks to the cloud.
const REMOVALS_AT_ONCE: usize = 16;

/// Between two looks at a creation that nobody waits for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Between two tries to remove by force, at least and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// A group of machines.
pub(crate) struct DockerMachine {
    inner: Arc<Inner>,
}

struct Inner {
    docker_machine: machine::DockerMachine,
    names: Names,
    settings: Settings,
    max_size: usize,
    removals: u32,
    removal_pause: Duration,
    machines: Mutex<Machines>,
    creations: Semaphore,
    removing: Semaphore,
    /// One file for each machine in creation, with what docker-machine says: what is still there after a crash is half made.
    marks: PathBuf,
}

impl Inner {
    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a machine until it is ready. One that is not wanted any more while it waits for its turn is not made; one
    /// that is being made is made to its end, and removed then: half made, its provider would have it for ever.
    async fn create(self: Arc<Self>, name: String, stop: tokio_util::sync::CancellationToken) {
        let turn = tokio::select! {
            turn = self.creations.acquire() => turn,
            () = stop.cancelled() => return self.removed(&name),
        };
        tracing::info!(machine = name, "machine is being created");
        let made = self.docker_machine.create(&name, &self.marks.join(&name)).await;
        drop(turn);
        match made.map_err(|error| error.to_string()) {
            Ok(()) if self.machines().created(&name) => {
                unmark(&self.marks, &name);
                tracing::info!(machine = name, "machine was created");
            }
            Ok(()) => self.remove(name).await,
            Err(cause) => {
                tracing::error!(machine = name, cause, "machine was not created; what there is of it is removed");
                self.machines().removing(name.clone());
                self.remove(name).await;
            }
        }
    }

    /// Until it is gone: a machine that is forgotten costs money.
    async fn remove(self: Arc<Self>, name: String) {
        let mut pause = self.removal_pause;
        for attempt in 1_u32.. {
            let by_force = attempt > self.removals;
            if by_force {
                tracing::error!(
                    machine = name,
                    attempts = self.removals,
                    "machine could not be removed and may still run at its provider: remove it there; docker-machine forgets it now"
                );
            }
            let removed = {
                let _turn = self.removing.acquire().await;
                self.docker_machine.remove(&name, by_force).await
            };
            match removed {
                Ok(()) => return self.removed(&name),
                Err(error) => tracing::warn!(machine = name, attempt, by_force, %error, "machine could not be removed"),
            }
            tokio::time::sleep(pause).await;
            if by_force {
                pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        }
    }

    /// Waits for the docker-machine of a plugin that was killed, which goes on by itself; then what it made is removed.
    async fn remove_orphan(self: Arc<Self>, name: String) {
        let limit = self.docker_machine.create_limit();
        let ended = async {
            while creator(&name).is_some() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        if tokio::time::timeout(limit, ended).await.is_err()
            && let Some(pid) = creator(&name)
        {
            tracing::error!(machine = name, "its creation takes longer than create_limit_s and is ended");
            let _ = kill_process(pid, Signal::KILL);
        }
        self.remove(name).await;
    }

    fn removed(&self, name: &str) {
        unmark(&self.marks, name);
        self.machines().gone(name);
        tracing::info!(machine = name, "machine was removed");
    }

    fn begin_removal(self: &Arc<Self>, name: String) {
        tokio::spawn(Arc::clone(self).remove(name));
    }
}

fn unmark(marks: &Path, name: &str) {
    if let Err(error) = std::fs::remove_file(marks.join(name))
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::error!(machine = name, %error, "the mark of a machine in creation is left: it is removed at the next start");
    }
}

/// The process that creates a machine: nobody else has the machine's name in its arguments.
fn creator(name: &str) -> Option<Pid> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        (words.contains(&&b"create"[..]) && words.contains(&name.as_bytes())).then_some(pid)
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
        let marks = storage.join("muster-creating");
        std::fs::create_dir_all(&marks).map_err(|error| format!("storage_path: {}: {error}", marks.display()))?;
        let names = config.names();
        let init = Init {
            id: format!("docker-machine/{}/{}{}", config.driver, config.prefix, config.machine_name),
            max_size: config.max_size,
            can_suspend: false,
        };
        let growth = match config.max_growth_rate {
            0 => Semaphore::MAX_PERMITS,
            rate => rate as usize,
        };
        let inner = Arc::new(Inner {
            names,
            settings,
            max_size: config.max_size as usize,
            removals: config.removals(),
            removal_pause: Duration::from_secs(config.removal_interval_s),
            machines: Mutex::default(),
            creations: Semaphore::new(growth),
            removing: Semaphore::new(REMOVALS_AT_ONCE),
            marks,
            docker_machine: machine::DockerMachine::new(config, storage),
        });
        // Also says at once whether docker-machine can be run.
        let all = inner.docker_machine.first_list().await?;
        let (ours, others): (Vec<&String>, Vec<&String>) = all.keys().partition(|name| inner.names.is_ours(name));
        tracing::info!(
            group = init.id,
            machines = ours.len(),
            of_others = others.len(),
            "ready; others' machines are left alone"
        );
        for mark in std::fs::read_dir(&inner.marks)?.flatten() {
            let name = mark.file_name().to_string_lossy().into_owned();
            if inner.names.is_ours(&name) {
                tracing::warn!(machine = name, "machine is removed: it was half made when the plugin ended");
                inner.machines().removing(name.clone());
                tokio::spawn(Arc::clone(&inner).remove_orphan(name));
            }
        }
        Ok((Self { inner }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut listed = self.inner.docker_machine.list().await?;
        listed.retain(|name, _| self.inner.names.is_ours(name));
        let (instances, remove) = self.inner.machines().look(&listed);
        remove.into_iter().for_each(|name| self.inner.begin_removal(name));
        Ok(instances)
    }

    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>> {
        for done in 0..n {
            let mut machines = self.inner.machines();
            if machines.len() >= self.inner.max_size {
                let error = format!("the group is full: max_size = {}", self.inner.max_size);
                return Err(Partial { succeeded: done, error: error.into() });
            }
            let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let name = self.inner.names.make(seconds, rand::random());
            // Before anything is created: a crash from here on leaves no machine that nobody knows.
            let mark = std::fs::File::create(self.inner.marks.join(&name)).and_then(|file| file.sync_all());
            if let Err(error) = mark {
                let error = format!("{}: {error}", self.inner.marks.display());
                return Err(Partial { succeeded: done, error: error.into() });
            }
            let stop = machines.create(name.clone());
            tokio::spawn(Arc::clone(&self.inner).create(name, stop));
        }
        Ok(n)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        for id in &ids {
            if self.inner.machines().remove(id.as_str()) {
                self.inner.begin_removal(id.as_str().to_owned());
            }
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        if !self.inner.machines().has(id.as_str()) {
            return Err(format!("there is no instance {id}").into());
        }
        let reach = self.inner.docker_machine.reach(id.as_str()).await?;
        let set = &self.inner.settings.connector;
        let or = |set: &str, own: &str| if set.is_empty() { own.to_owned() } else { set.to_owned() };
        let key = if set.key.is_empty() && set.password.is_empty() {
            tokio::fs::read(&reach.key_path)
                .await
                .map_err(|error| format!("machine {id}: its SSH key {}: {error}", reach.key_path.display()))?
        } else {
            set.key.clone()
        };
        Ok(ConnectInfo {
            connector: ConnectorConfig {
                os: or(&set.os, "linux"),
                protocol: or(&set.protocol, "ssh"),
                protocol_port: if set.protocol_port == 0 { reach.port } else { set.protocol_port },
                username: or(&set.username, &reach.username),
                key,
                ..set.clone()
            },
            // docker-machine knows one address, by which it reaches the machine itself.
            external_addr: reach.address.clone(),
            internal_addr: reach.address,
            expires: None,
        })
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        match self.inner.docker_machine.status(id.as_str()).await?.as_str() {
            "Running" => Ok(()),
            state => Err(format!("machine {id} is {state:?} for docker-machine").into()),
        }
    }
}
