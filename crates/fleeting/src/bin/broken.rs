//! A plugin with one deliberate fault, which its settings choose. The conformance kit is tested with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use muster_fleeting::sdk::{self, ConnectInfo, Error, Init, InstanceId, InstanceState, Partial, Provider, Settings};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings.
#[derive(Debug, Deserialize, JsonSchema)]
struct Config {
    /// How it is broken; `not`: it is not.
    manner: Option<String>,
    /// A key of its own, so that it can tell the two apart: the SDK does not.
    #[serde(rename = "MANNER")]
    loud_manner: Option<String>,
    /// A key that the kit sends to see whether unknown ones are ignored.
    muster_unknown_key: Option<serde_json::Value>,
    /// A file that says that a process has the group.
    lock: Option<PathBuf>,
}

impl Config {
    /// What it cannot know without being broken in this manner.
    fn check(self) -> Result<(String, Option<PathBuf>), Error> {
        let is_loud = self.loud_manner.is_some();
        let manner = self.loud_manner.or(self.manner).ok_or("there is no manner")?;
        match manner.as_str() {
            "wants-its-case" if is_loud => return Err("there is no key MANNER".into()),
            "knows-all-keys" if self.muster_unknown_key.is_some() => {
                return Err("there is no key muster_unknown_key".into());
            }
            _ => {}
        }
        let lock = self.lock.filter(|_| manner == "keeps-its-lock");
        if let Some(lock) = lock.as_deref().filter(|lock| lock.exists()) {
            // The second attempt succeeds, because the lock file was removed.
            std::fs::remove_file(lock)?;
            return Err("another process has the group".into());
        }
        Ok((manner, lock))
    }
}

struct Broken {
    manner: String,
    lock: Option<PathBuf>,
    settings: Settings,
    instances: Mutex<BTreeMap<InstanceId, InstanceState>>,
    made: AtomicU32,
    looks: AtomicU32,
    reached: AtomicU32,
}

type Ids = Vec<InstanceId>;

impl Broken {
    fn is(&self, manner: &str) -> bool {
        self.manner == manner
    }

    fn instances(&self) -> std::sync::MutexGuard<'_, BTreeMap<InstanceId, InstanceState>> {
        self.instances.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn set(&self, ids: &[InstanceId], state: InstanceState) {
        let mut instances = self.instances();
        for id in ids {
            instances.entry(id.clone()).and_modify(|now| *now = state);
        }
    }

    fn next(&self, state: InstanceState) -> InstanceState {
        match state {
            InstanceState::Creating if self.is("never-up") => state,
            InstanceState::Creating | InstanceState::Resuming => InstanceState::Running,
            InstanceState::Suspending => InstanceState::Suspended,
            InstanceState::Running if self.is("backwards") => InstanceState::Creating,
            InstanceState::Running if self.is("loses") => InstanceState::Timeout,
            InstanceState::Running if self.is("odd-state") => InstanceState::Unknown(42),
            other => other,
        }
    }
}

#[async_trait]
impl Provider for Broken {
    const NAME: &'static str = "broken";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        let (manner, lock) = config.check()?;
        if settings.connector.username.is_empty() {
            match manner.as_str() {
                "dies-without-settings" => std::process::abort(),
                "waits-for-settings" => std::future::pending().await,
                _ => {}
            }
        }
        let id = if manner == "nameless" { String::new() } else { "broken/group".to_owned() };
        let max_size = if manner == "sizeless" { 0 } else { 10 };
        let (instances, made, looks, reached) = <(_, _, _, _)>::default();
        let broken = Self { manner, lock, settings, instances, made, looks, reached };
        Ok((broken, Init { id, max_size, can_suspend: true }))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        match self.manner.as_str() {
            "hangs" if looks > 2 => std::future::pending().await,
            "crashes" if looks > 2 => std::process::abort(),
            "fails" if looks > 2 => return Err("the cloud is closed".into()),
            _ => {}
        }
        let mut instances = self.instances();
        let mut seen: Vec<_> = instances.clone().into_iter().collect();
        if self.is("forgets") && looks % 4 == 3 {
            seen.pop();
        }
        if self.is("twice") {
            seen.extend(seen.clone());
        }
        instances.retain(|_, state| *state != InstanceState::Deleting || self.is("never-gone"));
        for state in instances.values_mut() {
            *state = self.next(*state);
        }
        Ok(seen)
    }

    async fn increase(&self, n: u32) -> Result<u32, Partial<u32>> {
        let makes = match self.manner.as_str() {
            "makes-one" => 1,
            "makes-more" => n + 1,
            "makes-none" => 0,
            "crashes-in-increase" => std::process::abort(),
            "refuses" => return Err(Partial::nothing("the cloud is full")),
            _ => n,
        };
        if let Some(lock) = &self.lock {
            std::fs::write(lock, "").map_err(Partial::from)?;
        }
        for _ in 0..makes {
            let id = InstanceId::new(format!("i-{}", self.made.fetch_add(1, Ordering::Relaxed)));
            self.instances().insert(id, InstanceState::Creating);
        }
        Ok(n)
    }

    async fn decrease(&self, ids: Ids) -> Result<Ids, Partial<Ids>> {
        if let Some(lock) = &self.lock {
            // The file may have been removed already.
            let _ = std::fs::remove_file(lock);
        }
        if let [id] = ids.as_slice()
            && !self.instances().contains_key(id)
        {
            match self.manner.as_str() {
                "mourns" => return Err(Partial::nothing(format!("there is no instance {id}"))),
                "waits-for-the-dead" => std::future::pending().await,
                _ => {}
            }
        }
        match self.manner.as_str() {
            "removes-none" => return Ok(ids),
            "removes-all" => self.instances().values_mut().for_each(|state| *state = InstanceState::Deleting),
            "removes-silently" if ids.len() > 1 => {
                self.set(&ids, InstanceState::Deleting);
                return Err(Partial::nothing("one of them was not there"));
            }
            "removes-others" => return Ok(vec![InstanceId::new("i-99")]),
            _ => self.set(&ids, InstanceState::Deleting),
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        if !self.instances().contains_key(&id) {
            return Err(if self.is("wordless") { String::new() } else { format!("there is no instance {id}") }.into());
        }
        if self.is("one-at-a-time") && self.reached.fetch_add(1, Ordering::Relaxed) > 0 {
            return std::future::pending().await;
        }
        let (mut connector, mut internal, mut external) =
            (self.settings.connector.clone(), "127.0.0.1".to_owned(), String::new());
        match self.manner.as_str() {
            "homeless" => internal.clear(),
            "outside" => (internal, external) = (String::new(), "192.0.2.1".to_owned()),
            "knows-better" => connector.username = "root".to_owned(),
            _ => {}
        }
        let expires = self.is("expired").then_some(1);
        Ok(ConnectInfo { connector, external_addr: external, internal_addr: internal, expires })
    }

    async fn heartbeat(&self, _: InstanceId) -> Result<(), Error> {
        if self.is("ill") { Err("it does not feel well".into()) } else { Ok(()) }
    }

    async fn suspend(&self, ids: Ids) -> Result<Ids, Partial<Ids>> {
        if self.is("sleepless") {
            return Ok(ids);
        }
        self.set(&ids, InstanceState::Suspending);
        let (known, unknown): (Ids, Ids) = ids.into_iter().partition(|id| self.instances().contains_key(id));
        match unknown.first() {
            None => Ok(known),
            Some(id) => {
                let succeeded = if self.is("forgets-sleep") { Vec::new() } else { known };
                Err(Partial { succeeded, error: format!("there is no instance {id}").into() })
            }
        }
    }

    async fn resume(&self, ids: Ids) -> Result<Ids, Partial<Ids>> {
        self.set(&ids, InstanceState::Resuming);
        Ok(ids)
    }

    async fn shutdown(&self) -> Result<(), Error> {
        if self.is("clings") { Err("the key cannot be removed".into()) } else { Ok(()) }
    }
}

fn main() -> ExitCode {
    sdk::main::<Broken>()
}
