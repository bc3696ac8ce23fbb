//! Executor for the manager's host: jobs run on this machine, served by an agent process.
//!
//! The agent is the manager's own executable in a separate session, so it outlives the manager. A restarted agent
//! resumes its jobs from its spool, the directory with their state and output. After an upgrade, the outdated agent
//! finishes its jobs while a new agent takes new jobs.
//!
//! If jobs run as another user, the agent runs as that user and has its spool and socket in `agent-<user>/`. No job
//! then has the manager's rights.
//!
//! Files in the state directory:
//! - `spool/`: the agent's spool
//! - `agent.log`: the agent's log
//! - `agent.lock`: keeps two managers from starting two agents
//! - `agent.process`: identity of the agent's process
//! - `agent.sock`: the agent's socket, unless the path would be too long for a socket
//!
//! Further agents have files with a number, such as `agent.1.sock`.

mod agent;
mod agent_replacement;
mod agent_start;
mod agents;
#[cfg(test)]
mod attack_tests;
mod directory;
mod process;
mod socket;
#[cfg(test)]
mod tests;
mod user;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::client::AgentConnection;
use rustix::process::{Uid, geteuid};
use tokio::sync::{Mutex, watch};

use crate::{
    Capacity, Directories, EnvironmentRequest, ExecutionEnvironment, Executor, ExecutorError, HeldSlot, Lease,
    LeaseRecord, SlotKey, Slots,
};

pub use agent_start::READY_MARKER;
pub use socket::{operator_socket_path, socket_path};

use agent::HostAgent;
use agents::Agents;

/// Name of the executor in the configuration.
pub const NAME: &str = "shell";

/// Options of the host executor.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Directory of the agent's spool, log and lock.
    pub state_dir: PathBuf,
    /// Directories of jobs.
    pub directories: Directories,
    /// Maximum number of concurrent jobs.
    pub slots: usize,
    /// Executable of the agent: `<executable> agent serve --socket .. --spool ..`.
    pub executable: PathBuf,
    /// ID of a process whose end makes the agent exit. `None` means that the agent depends on no process.
    pub exit_with_pid: Option<i32>,
    /// User as which the agent and its jobs run. `None` means the user of this process. Another user requires root.
    pub user: Option<String>,
    /// Environment variables with secrets of the manager, which the agent and its jobs do not get.
    pub hidden_variables: Vec<String>,
    /// Limit of open files for jobs, if this process has raised its own. `None` means the limit with which the agent
    /// starts.
    pub nofile_limit: Option<u64>,
}

/// Executor for the manager's host, with a fixed number of slots.
#[derive(Debug)]
pub struct HostExecutor {
    agents: Arc<Agents>,
    slots: Slots,
    capacity: watch::Sender<Capacity>,
}

impl HostExecutor {
    /// Creates the directories and the executor. Starts no agent.
    ///
    /// # Errors
    /// [`ExecutorError::File`] if a directory cannot be created or used, [`ExecutorError::User`] if the configured user
    /// is not usable.
    pub fn new(options: HostOptions) -> Result<Self, ExecutorError> {
        let failed = |path: &PathBuf| {
            let path = path.clone();
            move |source| ExecutorError::File { action: "create directory", path, source }
        };
        let agent_dir = user::agent_dir(&options);
        muster_files::private_directory(&options.state_dir).map_err(failed(&options.state_dir))?;
        let owner = options.user.as_deref().map(user::Owner::lookup).transpose()?;
        if owner.is_some() {
            user::allow_traversal(&options.state_dir).map_err(failed(&options.state_dir))?;
        }
        directory::create_private(&agent_dir, owner).map_err(failed(&agent_dir))?;
        for path in [&options.directories.builds, &options.directories.cache] {
            directory::create(path, owner).map_err(failed(path))?;
        }
        let slots = Slots::new(options.slots);
        let capacity = watch::Sender::new(Capacity::of(options.slots));
        let user = owner.map_or_else(geteuid, |owner| owner.user);
        Ok(Self { agents: Arc::new(Agents::new(options, user)?), slots, capacity })
    }

    fn lease(name: String, environment: Arc<HostEnvironment>, held_slot: HeldSlot) -> Lease {
        let record = LeaseRecord::local(name, held_slot.slot.clone());
        Lease::new(record, environment, Box::new(held_slot))
    }
}

#[async_trait]
impl Executor for HostExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        let held_slot = self.slots.wait_for_free(key).await;
        let (name, environment) = self.agents.current().await?;
        Ok(Self::lease(name, environment, held_slot))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        self.agents.retire_outdated();
        let environment = self.agents.by_name(&record.environment);
        let held_slot = environment.as_ref().and_then(|_| self.slots.reacquire(&record.slot));
        let lease = environment
            .zip(held_slot)
            .map(|(environment, held_slot)| Self::lease(record.environment.clone(), environment, held_slot));
        lease.ok_or_else(|| ExecutorError::SlotTaken { environment: record.environment.clone(), slot: record.slot.id })
    }

    fn environment_without_lease(&self, record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        self.agents.retire_outdated();
        self.agents.by_name(&record.environment).map(|environment| environment as Arc<dyn ExecutionEnvironment>)
    }
}

/// The only agent of a state directory that several processes share.
#[derive(Debug)]
pub struct SharedAgent {
    /// Connection to the agent, still unused. Calls on it block.
    pub stream: UnixStream,
    /// Whether the agent runs an outdated executable and still has jobs.
    pub is_outdated: bool,
}

/// Finds the agent of a state directory that several processes share, or starts it.
///
/// An outdated agent is replaced if it runs no job. The new agent loads the finished jobs from the spool.
///
/// # Errors
/// [`ExecutorError`] if the agent cannot be started, reached or replaced.
pub async fn find_or_start_agent(options: HostOptions) -> Result<SharedAgent, ExecutorError> {
    let executable = options.executable.clone();
    let environment = HostExecutor::new(options)?.agents.first()?;
    let mut agent = environment.agent().await?;
    let mut is_outdated = !agent.runs_file(&executable);
    if is_outdated && agent_replacement::is_idle(&agent.connection).await {
        agent_replacement::end(&agent).await?;
        agent.connection.mark_suspect();
        agent = environment.agent().await?;
        is_outdated = false;
    }
    let stream = into_blocking(agent::dial(&environment.socket, agent.process).await);
    let location = environment.socket.display().to_string();
    let stream = stream.map_err(|error| ExecutorError::unreachable(location, error))?;
    Ok(SharedAgent { stream, is_outdated })
}

fn into_blocking(stream: io::Result<tokio::net::UnixStream>) -> io::Result<UnixStream> {
    let stream = stream?.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[derive(Debug)]
struct HostEnvironment {
    options: HostOptions,
    user: Uid,
    socket: PathBuf,
    spool: PathBuf,
    /// File with the identity of the agent's process.
    record: PathBuf,
    /// Locked while connecting, so that jobs that lose the connection together replace it once.
    current: Mutex<Option<HostAgent>>,
}

impl HostEnvironment {
    async fn agent(&self) -> Result<HostAgent, ExecutorError> {
        let mut current = self.current.lock().await;
        if let Some(agent) = &*current {
            if !agent.connection.is_suspect() {
                return Ok(agent.clone());
            }
            match agent.connection.check().await {
                Ok(()) => return Ok(agent.clone()),
                Err(error) => tracing::warn!(%error, "connection to the agent lost"),
            }
        }
        *current = None;
        let agent = agent_start::find_or_start(self).await?;
        *current = Some(agent.clone());
        Ok(agent)
    }
}

#[async_trait]
impl ExecutionEnvironment for HostEnvironment {
    async fn connect(&self) -> Result<AgentConnection, ExecutorError> {
        self.agent().await.map(|agent| agent.connection)
    }

    async fn directories(&self) -> Result<Directories, ExecutorError> {
        Ok(self.options.directories.clone())
    }
}
