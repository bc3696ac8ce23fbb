//! A plugin with one deliberate fault, which its settings select.
//! The tests of the conformance kit use it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use muster_fleeting::sdk::{
    self, ConnectInfo, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// Configuration of the plugin.
#[derive(Debug, Deserialize, JsonSchema)]
struct Config {
    /// Name of the fault. `none` for a correct plugin.
    fault: Option<String>,
    /// The key `fault` in upper case.
    /// The SDK accepts keys in any letter case. A separate field shows which spelling was sent.
    #[serde(rename = "FAULT")]
    uppercase_fault: Option<String>,
    /// A key that the kit sends to check that unknown keys are ignored.
    muster_unknown_key: Option<serde_json::Value>,
    /// Lock file that marks the group as in use. Only the fault `stale_lock` uses it.
    lock: Option<PathBuf>,
}

impl Config {
    /// Returns the fault, and the lock file if the fault is `stale_lock`.
    fn check(self) -> Result<(String, Option<PathBuf>), Error> {
        let is_uppercase = self.uppercase_fault.is_some();
        let fault = self.uppercase_fault.or(self.fault).ok_or("no fault is configured")?;
        match fault.as_str() {
            "case_sensitive_keys" if is_uppercase => return Err("unknown key FAULT".into()),
            "rejects_unknown_keys" if self.muster_unknown_key.is_some() => {
                return Err("unknown key muster_unknown_key".into());
            }
            _ => {}
        }
        let lock = self.lock.filter(|_| fault == "stale_lock");
        if let Some(lock) = lock.as_deref().filter(|lock| lock.exists()) {
            // The next attempt succeeds, because this one removes the lock file.
            std::fs::remove_file(lock)?;
            return Err("another process uses the group".into());
        }
        Ok((fault, lock))
    }
}

struct FaultyProvider {
    fault: String,
    lock: Option<PathBuf>,
    settings: Settings,
    instances: Mutex<BTreeMap<InstanceId, InstanceState>>,
    created: AtomicU32,
    updates: AtomicU32,
    connect_infos: AtomicU32,
}

type Ids = Vec<InstanceId>;

impl FaultyProvider {
    fn has_fault(&self, fault: &str) -> bool {
        self.fault == fault
    }

    fn instances(&self) -> std::sync::MutexGuard<'_, BTreeMap<InstanceId, InstanceState>> {
        self.instances.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn set_state(&self, ids: &[InstanceId], state: InstanceState) {
        let mut instances = self.instances();
        for id in ids {
            instances.entry(id.clone()).and_modify(|current| *current = state);
        }
    }

    fn next_state(&self, state: InstanceState) -> InstanceState {
        match state {
            InstanceState::Creating if self.has_fault("never_running") => state,
            InstanceState::Creating | InstanceState::Resuming => InstanceState::Running,
            InstanceState::Suspending => InstanceState::Suspended,
            InstanceState::Running if self.has_fault("state_goes_back") => InstanceState::Creating,
            InstanceState::Running if self.has_fault("loses_instances") => InstanceState::Timeout,
            InstanceState::Running if self.has_fault("unknown_state") => InstanceState::Unknown(42),
            other => other,
        }
    }
}

#[async_trait]
impl Provider for FaultyProvider {
    const NAME: &'static str = "faulty";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        let (fault, lock) = config.check()?;
        if settings.connector.username.is_empty() {
            match fault.as_str() {
                "crash_without_settings" => std::process::abort(),
                "hang_without_settings" => std::future::pending().await,
                _ => {}
            }
        }
        let id = if fault == "empty_group_id" { String::new() } else { "faulty/group".to_owned() };
        let max_size = if fault == "zero_max_size" { 0 } else { 10 };
        let (instances, created, updates, connect_infos) = <(_, _, _, _)>::default();
        let provider = Self { fault, lock, settings, instances, created, updates, connect_infos };
        Ok((provider, Init { id, max_size, can_suspend: true }))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let updates = self.updates.fetch_add(1, Ordering::Relaxed);
        match self.fault.as_str() {
            "hanging_update" if updates > 2 => std::future::pending().await,
            "crash_in_update" if updates > 2 => std::process::abort(),
            "failing_update" if updates > 2 => return Err("the provider is not available".into()),
            _ => {}
        }
        let mut instances = self.instances();
        let mut listed: Vec<_> = instances.clone().into_iter().collect();
        if self.has_fault("missing_from_list") && updates % 4 == 3 {
            listed.pop();
        }
        if self.has_fault("duplicate_ids") {
            listed.extend(listed.clone());
        }
        instances.retain(|_, state| *state != InstanceState::Deleting || self.has_fault("never_deleted"));
        for state in instances.values_mut() {
            *state = self.next_state(*state);
        }
        Ok(listed)
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let count = match self.fault.as_str() {
            "creates_one" => 1,
            "creates_too_many" => n + 1,
            "creates_none" => 0,
            "crash_in_increase" => std::process::abort(),
            "failing_increase" => return Err(PartialFailure::none_succeeded("the provider is full")),
            _ => n,
        };
        if let Some(lock) = &self.lock {
            std::fs::write(lock, "").map_err(PartialFailure::from)?;
        }
        for _ in 0..count {
            let id = InstanceId::new(format!("i-{}", self.created.fetch_add(1, Ordering::Relaxed)));
            self.instances().insert(id, InstanceState::Creating);
        }
        Ok(n)
    }

    async fn decrease(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        if let Some(lock) = &self.lock {
            // The file may have been removed already.
            let _ = std::fs::remove_file(lock);
        }
        if let [id] = ids.as_slice()
            && !self.instances().contains_key(id)
        {
            match self.fault.as_str() {
                "missing_instance_error" => {
                    return Err(PartialFailure::none_succeeded(format!("instance {id} does not exist")));
                }
                "missing_instance_hang" => std::future::pending().await,
                _ => {}
            }
        }
        match self.fault.as_str() {
            "deletes_none" => return Ok(ids),
            "deletes_all" => self.instances().values_mut().for_each(|state| *state = InstanceState::Deleting),
            "unreported_deletion" if ids.len() > 1 => {
                self.set_state(&ids, InstanceState::Deleting);
                return Err(PartialFailure::none_succeeded("one of the instances does not exist"));
            }
            "reports_other_ids" => return Ok(vec![InstanceId::new("i-99")]),
            _ => self.set_state(&ids, InstanceState::Deleting),
        }
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        if !self.instances().contains_key(&id) {
            return Err(if self.has_fault("empty_error") {
                String::new()
            } else {
                format!("instance {id} does not exist")
            }
            .into());
        }
        if self.has_fault("hanging_second_call") && self.connect_infos.fetch_add(1, Ordering::Relaxed) > 0 {
            return std::future::pending().await;
        }
        let (mut connector, mut internal, mut external) =
            (self.settings.connector.clone(), "127.0.0.1".to_owned(), String::new());
        match self.fault.as_str() {
            "no_address" => internal.clear(),
            "external_address_only" => (internal, external) = (String::new(), "192.0.2.1".to_owned()),
            "overrides_username" => connector.username = "root".to_owned(),
            _ => {}
        }
        let expires = self.has_fault("expired_credentials").then_some(1);
        Ok(ConnectInfo { connector, external_addr: external, internal_addr: internal, expires })
    }

    async fn heartbeat(&self, _: InstanceId) -> Result<(), Error> {
        if self.has_fault("unhealthy") { Err("the instance is not healthy".into()) } else { Ok(()) }
    }

    async fn suspend(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        if self.has_fault("suspend_ignored") {
            return Ok(ids);
        }
        self.set_state(&ids, InstanceState::Suspending);
        let (known, unknown): (Ids, Ids) = ids.into_iter().partition(|id| self.instances().contains_key(id));
        match unknown.first() {
            None => Ok(known),
            Some(id) => {
                let succeeded = if self.has_fault("partial_suspend_unreported") { Vec::new() } else { known };
                Err(PartialFailure { succeeded, error: format!("instance {id} does not exist").into() })
            }
        }
    }

    async fn resume(&self, ids: Ids) -> Result<Ids, PartialFailure<Ids>> {
        self.set_state(&ids, InstanceState::Resuming);
        Ok(ids)
    }

    async fn shutdown(&self) -> Result<(), Error> {
        if self.has_fault("failing_shutdown") { Err("the key cannot be removed".into()) } else { Ok(()) }
    }
}

fn main() -> ExitCode {
    sdk::main::<FaultyProvider>()
}
