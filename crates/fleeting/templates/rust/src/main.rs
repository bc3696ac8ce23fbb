//! A plugin for instance groups. As it is, its instances are names in memory: replace what says so by calls of your
//! provider.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    self, ConnectInfo, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// What stands in `plugin_config`. The comments become the reference that `settings` prints.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Config {
    /// Name of the group.
    name: String,
    /// The most instances.
    max_size: u32,
    /// Instances can be put to sleep.
    suspendable: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { name: "group".to_owned(), max_size: 100, suspendable: false }
    }
}

/// The group.
struct Plugin {
    config: Config,
    settings: Settings,
    /// Your provider knows these, and how many there were; ask it instead.
    instances: Mutex<(u32, BTreeMap<InstanceId, InstanceState>)>,
}

type Ids = Vec<InstanceId>;

impl Plugin {
    fn instances(&self) -> MutexGuard<'_, (u32, BTreeMap<InstanceId, InstanceState>)> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves those that are there to `state`, up to the first that is not.
    fn set(&self, ids: Ids, state: InstanceState) -> Result<Ids, PartialFailure<Ids>> {
        let (mut instances, mut succeeded) = (self.instances(), Vec::new());
        for id in ids {
            match instances.1.get_mut(&id) {
                Some(now) => *now = state,
                None => return Err(PartialFailure { succeeded, error: format!("there is no instance {id}").into() }),
            }
            succeeded.push(id);
        }
        Ok(succeeded)
    }
}

#[async_trait]
impl Provider for Plugin {
    const NAME: &'static str = "toy";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    /// Check the settings here, and log in to the provider: an error names the key and the remedy.
    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        if config.max_size == 0 {
            return Err("max_size must be at least 1".into());
        }
        let (id, can_suspend) = (format!("toy/{}", config.name), config.suspendable);
        let init = Init { id, max_size: config.max_size, can_suspend };
        Ok((Self { config, settings, instances: Mutex::default() }, init))
    }

    /// List every instance of the group, also one that you could not look at closely.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut instances = self.instances();
        let seen = instances.1.clone().into_iter().collect();
        // A real provider moves them on by itself.
        instances.1.retain(|_, state| *state != InstanceState::Deleting);
        for state in instances.1.values_mut() {
            *state = match *state {
                InstanceState::Creating | InstanceState::Resuming => InstanceState::Running,
                InstanceState::Suspending => InstanceState::Suspended,
                other => other,
            };
        }
        Ok(seen)
    }

    /// Ask for `n` more and do not wait for them. Say how many requests the provider took, also beside an error.
    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let mut instances = self.instances();
        for done in 0..n {
            if instances.1.len() >= self.config.max_size as usize {
                return Err(PartialFailure { succeeded: done, error: "the group is full".into() });
            }
            instances.0 += 1;
            let id = InstanceId::new(format!("instance-{}", instances.0));
            instances.1.insert(id, InstanceState::Creating);
        }
        tracing::info!(n, "instances requested");
        Ok(n)
    }

    /// Remove exactly these. One that is not there is gone: that is a success.
    async fn decrease(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        let mut instances = self.instances();
        for id in &ids {
            if let Some(state) = instances.1.get_mut(id) {
                *state = InstanceState::Deleting;
            }
        }
        Ok(ids)
    }

    /// Fill what the user left empty in `connector_config`: user name, key, address.
    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        self.heartbeat(id).await?;
        Ok(ConnectInfo {
            connector: self.settings.connector.clone(),
            external_addr: String::new(),
            internal_addr: "127.0.0.1".to_owned(),
            expires: None,
        })
    }

    /// This and what follows may be left out: then a running instance is a healthy one, and none can sleep.
    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let is_there = self.instances().1.contains_key(&id);
        if is_there { Ok(()) } else { Err(format!("there is no instance {id}").into()) }
    }

    async fn suspend(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        self.set(ids, InstanceState::Suspending)
    }

    async fn resume(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        self.set(ids, InstanceState::Resuming)
    }
}

fn main() -> ExitCode {
    sdk::main::<Plugin>()
}
