//! The host adapter: jobs run on this machine, served by one agent process per state directory; after an upgrade by one more,
//! until the jobs of the older one have ended.
//!
//! The agent is this very executable, in a session of its own. It outlives the manager: a manager that starts again
//! finds it by its socket and goes on. An agent that died is started anew and picks its jobs up from its spool.
//!
//! Where jobs are to run as another user, it is the agent that runs as that user, with its files in `agent-<user>/`: so
//! checkouts, caches and spool are that user's, and no job runs with the rights of the manager.
//!
//! Files below the state directory: `spool/` is the agent's; `agent.log` has what the agent says; `agent.lock` keeps two
//! managers from starting two agents; `agent.process` names the agent's process, so that no other one passes for it. The
//! socket is there too, unless its path would be too long for one.

mod agent;
mod agents;
#[cfg(test)]
mod attack_tests;
mod directory;
mod process;
mod replace;
mod socket;
mod start;
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
    Capacity, Directories, EnvironmentRequest, ExecutionEnvironment, Executor, ExecutorError, Lease, LeaseRecord,
    SlotKey, Slots, TakenSlot,
};

pub use socket::{operator_socket_path, socket_path};
pub use start::READY_MARKER;

use agent::HostAgent;
use agents::Agents;

/// Name of the executor in the configuration.
pub const NAME: &str = "shell";

/// How this machine is used.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Where the agent's spool, log and lock are.
    pub state_dir: PathBuf,
    /// Where jobs find their files.
    pub directories: Directories,
    /// Jobs at the same time.
    pub slots: usize,
    /// The executable that is the agent: `<executable> agent serve --socket .. --spool ..`.
    pub executable: PathBuf,
    /// The agent ends when this process has ended; none means that it stays.
    pub until_pid: Option<i32>,
    /// The user whom jobs run as, and with them the agent; none means that of this process. Another user needs root.
    pub user: Option<String>,
    /// Variables of this process that the agent, and with it the jobs, do not get: they hold secrets of the manager.
    pub hidden: Vec<String>,
    /// The limit of open files that jobs have, where this process has raised its own; none means that of the agent's start.
    pub open_files: Option<u64>,
}

/// This machine as a provider: one environment, a fixed number of slots.
#[derive(Debug)]
pub struct HostExecutor {
    agents: Agents,
    slots: Slots,
    capacity: watch::Sender<Capacity>,
}

impl HostExecutor {
    /// Makes the directories; starts nothing yet.
    ///
    /// # Errors
    /// [`ExecutorError::File`] where a directory cannot be made.
    pub fn new(options: HostOptions) -> Result<Self, ExecutorError> {
        let failed = |path: &PathBuf| {
            let path = path.clone();
            move |source| ExecutorError::File { action: "create directory", path, source }
        };
        let agent_dir = user::agent_dir(&options);
        muster_files::private_directory(&options.state_dir).map_err(failed(&options.state_dir))?;
        let owner = options.user.as_deref().map(user::Owner::of).transpose()?;
        if owner.is_some() {
            user::let_pass(&options.state_dir).map_err(failed(&options.state_dir))?;
        }
        directory::create_private(&agent_dir, owner).map_err(failed(&agent_dir))?;
        for path in [&options.directories.builds, &options.directories.cache] {
            directory::create(path, owner).map_err(failed(path))?;
        }
        let slots = Slots::new(options.slots);
        let capacity = watch::Sender::new(Capacity::of(options.slots));
        let user = owner.map_or_else(geteuid, |owner| owner.user);
        Ok(Self { agents: Agents::new(options, user)?, slots, capacity })
    }

    fn lease(name: String, environment: Arc<HostEnvironment>, taken: TakenSlot) -> Lease {
        let record = LeaseRecord::local(name, taken.slot.clone());
        Lease::new(record, environment, Box::new(taken))
    }
}

#[async_trait]
impl Executor for HostExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        let mut free = self.slots.free();
        loop {
            if let Some(taken) = self.slots.take(key) {
                let (name, environment) = self.agents.current().await?;
                return Ok(Self::lease(name, environment, taken));
            }
            // The sender lives in `self.slots`; should it be gone, no slot ever comes, and the caller's cancel ends it.
            if free.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        let environment = self.agents.named(&record.environment);
        let taken = environment.as_ref().and_then(|_| self.slots.take_again(&record.slot));
        let lease = environment
            .zip(taken)
            .map(|(environment, taken)| Self::lease(record.environment.clone(), environment, taken));
        lease.ok_or_else(|| ExecutorError::SlotTaken { environment: record.environment.clone(), slot: record.slot.id })
    }

    fn environment_without_lease(&self, record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        self.agents.named(&record.environment).map(|environment| environment as Arc<dyn ExecutionEnvironment>)
    }
}

/// The one agent of a state directory that has only one.
#[derive(Debug)]
pub struct OneAgent {
    /// A connection to the agent, over which nothing was sent yet. Its calls block.
    pub stream: UnixStream,
    /// It is of another executable, and has jobs: it cannot be replaced yet.
    pub is_older: bool,
}

/// The agent of a state directory that has only one; started where none answers. One of another executable is replaced
/// first, if no job runs at it: the new one has the jobs that have ended from the spool.
///
/// # Errors
/// [`ExecutorError`].
pub async fn one_agent(options: HostOptions) -> Result<OneAgent, ExecutorError> {
    let executable = options.executable.clone();
    let environment = HostExecutor::new(options)?.agents.first()?;
    let mut agent = environment.agent().await?;
    let mut is_older = !agent.is_of(&executable);
    if is_older && replace::is_idle(&agent.connection).await {
        replace::end(&agent).await?;
        agent.connection.doubt();
        agent = environment.agent().await?;
        is_older = false;
    }
    let stream = blocking(agent::dial(&environment.socket, agent.process).await);
    let place = environment.socket.display().to_string();
    let stream = stream.map_err(|error| ExecutorError::unreachable(place, error))?;
    Ok(OneAgent { stream, is_older })
}

fn blocking(stream: io::Result<tokio::net::UnixStream>) -> io::Result<UnixStream> {
    let stream = stream?.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// This machine as an environment: one of its agents.
#[derive(Debug)]
struct HostEnvironment {
    options: HostOptions,
    /// The user whom the agent runs as.
    user: Uid,
    socket: PathBuf,
    spool: PathBuf,
    /// The file that names the agent's process.
    record: PathBuf,
    /// The agent in use. Held across connecting, so that jobs that lost it together reconnect once.
    current: Mutex<Option<HostAgent>>,
}

impl HostEnvironment {
    async fn agent(&self) -> Result<HostAgent, ExecutorError> {
        let mut current = self.current.lock().await;
        if let Some(agent) = &*current {
            if !agent.connection.is_in_doubt() {
                return Ok(agent.clone());
            }
            match agent.connection.check().await {
                Ok(()) => return Ok(agent.clone()),
                Err(error) => tracing::warn!(%error, "the connection to the agent is lost"),
            }
        }
        *current = None;
        let agent = start::find_or_start(self).await?;
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
