//! A plugin that makes nothing: its instances are entries of a map. For tests, and as the shortest whole example.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;

use async_trait::async_trait;
use muster_fleeting::sdk::{self, ConnectInfo, Error, Init, InstanceId, InstanceState, Partial, Provider, Settings};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the toy.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Config {
    /// The group's name.
    name: String,
    /// The most instances.
    max_size: u32,
    /// Instances can be put to sleep.
    suspendable: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { name: "toy".to_owned(), max_size: 100, suspendable: false }
    }
}

/// A group of entries.
struct Toy {
    settings: Settings,
    max_size: usize,
    group: Mutex<Group>,
}

#[derive(Default)]
struct Group {
    instances: BTreeMap<InstanceId, InstanceState>,
    made: u32,
}

impl Toy {
    fn group(&self) -> std::sync::MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Moves those that are there to `state`.
    fn set(&self, ids: Vec<InstanceId>, state: InstanceState) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        let mut group = self.group();
        let mut succeeded = Vec::new();
        for id in ids {
            match group.instances.get_mut(&id) {
                Some(now) => *now = state,
                None => return Err(Partial { succeeded, error: format!("there is no instance {id}").into() }),
            }
            succeeded.push(id);
        }
        Ok(succeeded)
    }
}

#[async_trait]
impl Provider for Toy {
    const NAME: &'static str = "toy";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        if config.max_size == 0 {
            return Err("max_size must be at least 1".into());
        }
        let init =
            Init { id: format!("toy/{}", config.name), max_size: config.max_size, can_suspend: config.suspendable };
        Ok((Self { settings, max_size: config.max_size as usize, group: Mutex::default() }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut group = self.group();
        let seen = group.instances.clone().into_iter().collect();
        // What was on its way has arrived by the next look.
        group.instances.retain(|_, state| *state != InstanceState::Deleting);
        for state in group.instances.values_mut() {
            *state = match *state {
                InstanceState::Creating | InstanceState::Resuming => InstanceState::Running,
                InstanceState::Suspending => InstanceState::Suspended,
                other => other,
            };
        }
        Ok(seen)
    }

    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>> {
        let mut group = self.group();
        for done in 0..n {
            if group.instances.len() >= self.max_size {
                return Err(Partial { succeeded: done, error: "the group is full".into() });
            }
            group.made += 1;
            let id = InstanceId::new(format!("toy-{}", group.made));
            group.instances.insert(id, InstanceState::Creating);
        }
        tracing::info!(n, "instances made");
        Ok(n)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        let mut group = self.group();
        for id in &ids {
            // One that is not there is gone, which is what was asked for.
            if let Some(state) = group.instances.get_mut(id) {
                *state = InstanceState::Deleting;
            }
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        if !self.group().instances.contains_key(&id) {
            return Err(format!("there is no instance {id}").into());
        }
        Ok(ConnectInfo {
            connector: self.settings.connector.clone(),
            external_addr: String::new(),
            internal_addr: "127.0.0.1".to_owned(),
            expires: None,
        })
    }

    async fn heartbeat(&self, id: InstanceId) -> Result<(), Error> {
        if self.group().instances.contains_key(&id) { Ok(()) } else { Err(format!("there is no instance {id}").into()) }
    }

    async fn suspend(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        self.set(ids, InstanceState::Suspending)
    }

    async fn resume(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, Partial<Vec<InstanceId>>> {
        self.set(ids, InstanceState::Resuming)
    }
}

fn main() -> ExitCode {
    sdk::main::<Toy>()
}
