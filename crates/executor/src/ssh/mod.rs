//! Executor for an existing machine that is reached over SSH: `executor = "ssh"` with `[runners.ssh]`.
//!
//! ```text
//! acquire: slot --> session (host key verified) --> agent on the machine --> lease
//! last lease dropped --> session closed; the agent exits when it is idle
//! ```
//!
//! All jobs of a runner share one session and one agent. A session exists only while jobs use it. The manager neither
//! creates nor deletes the machine, and no other machine can take its jobs.

mod error;
mod host_keys;
mod machine;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use futures::future::BoxFuture;
use muster_agent_api::client::AgentConnection;
use muster_config::settings::{RunnerKey, RunnerSettings, SshSettings};
use parking_lot::Mutex;
use tokio::sync::watch;

use self::machine::SshMachine;
use crate::deploy::{Agents, Executable, RemoteMachine, directories};
use crate::registry::{ConfigureError, ExecutorKind};
use crate::{
    Capacity, Directories, EnvironmentRequest, ExecutionEnvironment, Executor, ExecutorError, HeldSlot, Lease,
    LeaseRecord, SlotKey, Slots,
};

pub use error::SshError;

/// Name of the executor in the configuration.
pub const NAME: &str = "ssh";

/// Executors of all runners with `executor = "ssh"`.
pub struct SshExecutors {
    agents: Arc<Agents>,
    /// Maximum number of concurrent jobs of one runner.
    slots: usize,
    runners: Mutex<BTreeMap<RunnerKey, Arc<SshExecutor>>>,
}

impl SshExecutors {
    /// Returns an empty collection. `executable` is the agent for machines of the manager's platform.
    #[must_use]
    pub fn new(executable: Arc<Executable>, slots: usize) -> Self {
        Self { agents: Arc::new(Agents::new(executable)), slots, runners: Mutex::default() }
    }
}

#[async_trait]
impl ExecutorKind for SshExecutors {
    fn configure(
        &self,
        runner: &Arc<RunnerSettings>,
        _: &[Arc<RunnerSettings>],
    ) -> Result<Arc<dyn Executor>, ConfigureError> {
        let settings = runner.ssh.as_ref().ok_or("executor `ssh` requires [runners.ssh]")?;
        let machine = SshMachine::new(settings)?;
        let mut runners = self.runners.lock();
        let executor = runners.entry(runner.key.clone()).or_insert_with(|| {
            let (agents, slots) = (Arc::clone(&self.agents), Slots::new(self.slots));
            let capacity = watch::Sender::new(Capacity::of(self.slots));
            let current = Mutex::new(CurrentMachine {
                settings: Arc::clone(settings),
                machine: machine.clone(),
                environment: Weak::new(),
            });
            Arc::new(SshExecutor { agents, slots, capacity, current })
        });
        executor.apply(settings, machine);
        Ok(Arc::clone(executor) as Arc<dyn Executor>)
    }

    fn remove(&self, runner: &RunnerKey) -> Option<BoxFuture<'static, ()>> {
        self.runners.lock().remove(runner);
        None
    }
}

struct SshExecutor {
    agents: Arc<Agents>,
    slots: Slots,
    capacity: watch::Sender<Capacity>,
    current: Mutex<CurrentMachine>,
}

struct CurrentMachine {
    settings: Arc<SshSettings>,
    machine: SshMachine,
    /// Environment of the jobs that use this machine. Jobs with earlier settings have another environment.
    environment: Weak<SshEnvironment>,
}

impl SshExecutor {
    fn apply(&self, settings: &Arc<SshSettings>, machine: SshMachine) {
        let mut current = self.current.lock();
        if current.settings != *settings {
            *current = CurrentMachine { settings: Arc::clone(settings), machine, environment: Weak::new() };
        }
    }

    /// Jobs that run at the same time share the environment.
    fn environment(&self) -> Arc<SshEnvironment> {
        let mut current = self.current.lock();
        if let Some(environment) = current.environment.upgrade() {
            return environment;
        }
        let machine = current.machine.clone();
        let remote = RemoteMachine::new(machine.name(), Arc::clone(&self.agents));
        let environment = Arc::new(SshEnvironment { machine, remote });
        current.environment = Arc::downgrade(&environment);
        environment
    }

    fn environment_named(&self, name: &str) -> Option<Arc<SshEnvironment>> {
        Some(self.environment()).filter(|environment| environment.machine.name() == name)
    }
}

fn lease(environment: Arc<SshEnvironment>, held_slot: HeldSlot) -> Lease {
    let record = LeaseRecord::local(environment.machine.name(), held_slot.slot.clone());
    Lease::new(record, environment, Box::new(held_slot))
}

#[async_trait]
impl Executor for SshExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        let held_slot = self.slots.wait_for_free(key).await;
        let environment = self.environment();
        // A job whose machine cannot be reached fails with the reason, before it counts as started.
        let connected = environment.connect().await;
        connected.map_err(|error| ExecutorError::NotAcquired(error.to_string()))?;
        Ok(lease(environment, held_slot))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        let environment = self.environment_named(&record.environment).ok_or_else(|| ExecutorError::Lost {
            environment: format!("machine {}", record.environment),
            message: "[runners.ssh] now names another machine".to_owned(),
        })?;
        let taken = || ExecutorError::SlotTaken { environment: record.environment.clone(), slot: record.slot.id };
        Ok(lease(environment, self.slots.reacquire(&record.slot).ok_or_else(taken)?))
    }

    fn environment_without_lease(&self, record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        self.environment_named(&record.environment).map(|environment| environment as Arc<dyn ExecutionEnvironment>)
    }
}

struct SshEnvironment {
    machine: SshMachine,
    remote: RemoteMachine,
}

#[async_trait]
impl ExecutionEnvironment for SshEnvironment {
    async fn connect(&self) -> Result<AgentConnection, ExecutorError> {
        Ok(self.remote.connect(&self.machine).await?.0)
    }

    async fn directories(&self) -> Result<Directories, ExecutorError> {
        Ok(directories(&self.remote.connect(&self.machine).await?.1))
    }

    fn trace_lines(&self) -> Vec<String> {
        self.remote.trace_lines()
    }
}
