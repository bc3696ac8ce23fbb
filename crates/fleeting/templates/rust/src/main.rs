//! A fleeting plugin. Its instances are only names in memory: replace them with calls to your provider.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    self, ConnectInfo, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The keys of `plugin_config`. The command `fleeting-plugin-toy settings` prints these comments as the reference.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Config {
    /// Name of the group.
    name: String,
    /// Maximum number of instances.
    max_size: u32,
    /// Whether instances can be suspended.
    suspendable: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { name: "group".to_owned(), max_size: 100, suspendable: false }
    }
}

struct Plugin {
    config: Config,
    settings: Settings,
    /// Number of instances created so far, and the existing instances. Replace this with queries to your provider.
    instances: Mutex<(u32, BTreeMap<InstanceId, InstanceState>)>,
}

type Ids = Vec<InstanceId>;

impl Plugin {
    fn instances(&self) -> MutexGuard<'_, (u32, BTreeMap<InstanceId, InstanceState>)> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state of the instances, up to the first one that does not exist.
    fn set_state(&self, ids: Ids, state: InstanceState) -> Result<Ids, PartialFailure<Ids>> {
        let (mut instances, mut succeeded) = (self.instances(), Vec::new());
        for id in ids {
            match instances.1.get_mut(&id) {
                Some(current) => *current = state,
                None => {
                    return Err(PartialFailure { succeeded, error: format!("instance {id} does not exist").into() });
                }
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

    /// Check the settings and log in to the provider. An error should name the key and how to fix it.
    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        if config.max_size == 0 {
            return Err("max_size must be at least 1".into());
        }
        let (id, can_suspend) = (format!("toy/{}", config.name), config.suspendable);
        let init = Init { id, max_size: config.max_size, can_suspend };
        Ok((Self { config, settings, instances: Mutex::default() }, init))
    }

    /// List every instance of the group, even if its state is uncertain.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut instances = self.instances();
        let listed = instances.1.clone().into_iter().collect();
        // A real provider changes the states itself.
        instances.1.retain(|_, state| *state != InstanceState::Deleting);
        for state in instances.1.values_mut() {
            *state = match *state {
                InstanceState::Creating | InstanceState::Resuming => InstanceState::Running,
                InstanceState::Suspending => InstanceState::Suspended,
                other => other,
            };
        }
        Ok(listed)
    }

    /// Request `n` more instances without waiting for them. An error also has the number of accepted instances.
    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let mut instances = self.instances();
        for accepted in 0..n {
            if instances.1.len() >= self.config.max_size as usize {
                return Err(PartialFailure { succeeded: accepted, error: "the group is full".into() });
            }
            instances.0 += 1;
            let id = InstanceId::new(format!("instance-{}", instances.0));
            instances.1.insert(id, InstanceState::Creating);
        }
        tracing::info!(n, "instances requested");
        Ok(n)
    }

    /// Delete these instances. A missing instance counts as deleted.
    async fn decrease(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        let mut instances = self.instances();
        for id in &ids {
            if let Some(state) = instances.1.get_mut(id) {
                *state = InstanceState::Deleting;
            }
        }
        Ok(ids)
    }

    /// Fill in the values that the user left empty in `connector_config`: user name, key, address.
    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        self.heartbeat(id).await?;
        Ok(ConnectInfo {
            connector: self.settings.connector.clone(),
            external_addr: String::new(),
            internal_addr: "127.0.0.1".to_owned(),
            expires: None,
        })
    }

    /// This call and the following ones are optional. Without this one, every running instance counts as healthy.
    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        let exists = self.instances().1.contains_key(&id);
        if exists { Ok(()) } else { Err(format!("instance {id} does not exist").into()) }
    }

    async fn suspend(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        self.set_state(ids, InstanceState::Suspending)
    }

    async fn resume(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        self.set_state(ids, InstanceState::Resuming)
    }
}

fn main() -> ExitCode {
    sdk::main::<Plugin>()
}
