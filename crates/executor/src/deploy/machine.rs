//! A machine that is reached by a session. All its jobs share one connection to its agent.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use muster_agent_api::client::AgentConnection;
use muster_fleeting::model::Platform;
use muster_job::error_chain;
use muster_remote::Session;
use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;

use super::agents::Agents;
use super::connect;
use super::error::DeployError;
use crate::{Directories, ExecutorError};

/// Opens sessions with one machine.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Opens a session.
    ///
    /// # Errors
    /// [`DeployError`] if there is no session.
    async fn dial(&self) -> Result<Dialed, DeployError>;

    /// Reports that the machine could not be reached, or that a connection broke.
    fn report_unreachable(&self) {}
}

/// An open session.
pub struct Dialed {
    /// The session.
    pub session: Box<dyn Session>,
    /// Lines for the trace that describe the connection.
    pub trace_lines: Vec<String>,
}

struct ConnectedAgent {
    session: Box<dyn Session>,
    connection: AgentConnection,
    home: PathBuf,
    /// Whether the agent runs another executable than this manager would send.
    is_outdated: bool,
}

/// A machine with an agent. Its jobs share one session.
pub struct RemoteMachine {
    name: String,
    agents: Arc<Agents>,
    /// Platform of the machine when it was last reached.
    platform: Lock<Option<Platform>>,
    /// Locked while connecting, so that jobs that lose the connection together replace it once.
    connected: Mutex<Option<ConnectedAgent>>,
    trace_lines: Lock<Vec<String>>,
    home: Lock<Option<PathBuf>>,
    /// Whether an outdated agent may be replaced, because no job of this manager uses the machine.
    may_replace_agent: AtomicBool,
    is_on_this_host: AtomicBool,
}

impl RemoteMachine {
    /// Returns a machine that has not been reached yet. `name` is used in messages, such as `instance i-1`.
    #[must_use]
    pub fn new(name: impl Into<String>, agents: Arc<Agents>) -> Self {
        let (connected, trace_lines, home) = (Mutex::new(None), Lock::default(), Lock::default());
        let (platform, may_replace_agent, is_on_this_host) =
            (Lock::default(), AtomicBool::new(false), AtomicBool::new(false));
        Self { name: name.into(), agents, platform, connected, trace_lines, home, may_replace_agent, is_on_this_host }
    }

    pub(crate) fn set_on_this_host(&self, is_on_this_host: bool) {
        self.is_on_this_host.store(is_on_this_host, Ordering::Relaxed);
    }

    /// Returns whether the machine is the manager's host. False before the first connection.
    pub(crate) fn is_on_this_host(&self) -> bool {
        self.is_on_this_host.load(Ordering::Relaxed)
    }

    /// Returns the home directory on the machine. `None` before the first connection.
    pub fn home(&self) -> Option<PathBuf> {
        self.home.lock().clone()
    }

    /// Allows the next connection to replace an outdated agent. The caller must know that the machine has no jobs.
    pub fn allow_agent_replacement(&self) {
        self.may_replace_agent.store(true, Ordering::Relaxed);
    }

    /// Returns the trace lines about the connection. Empty before the first connection.
    pub fn trace_lines(&self) -> Vec<String> {
        self.trace_lines.lock().clone()
    }

    /// Returns a connection to the agent, and the home directory. The connection is not known to be broken.
    ///
    /// # Errors
    /// [`ExecutorError`]. The next call may succeed.
    pub async fn connect(&self, dial: &dyn Dial) -> Result<(AgentConnection, PathBuf), ExecutorError> {
        let mut connected = self.connected.lock().await;
        let may_replace = self.may_replace_agent.swap(false, Ordering::Relaxed);
        if let Some(outdated) = connected.take_if(|known| known.is_outdated && may_replace) {
            tracing::info!(machine = self.name, "replacing an outdated agent without jobs");
            outdated.session.close().await;
        }
        if let Some(known) = &*connected {
            if !known.connection.is_suspect() {
                return Ok((known.connection.clone(), known.home.clone()));
            }
            match known.connection.check().await {
                Ok(()) => return Ok((known.connection.clone(), known.home.clone())),
                Err(error) => tracing::warn!(machine = self.name, %error, "connection to the agent lost"),
            }
        }
        if let Some(known) = connected.take() {
            dial.report_unreachable();
            known.session.close().await;
        }
        let new = match self.reach(dial).await {
            Ok(new) => new,
            Err(error) => {
                dial.report_unreachable();
                return Err(error);
            }
        };
        let result = (new.connection.clone(), new.home.clone());
        *connected = Some(new);
        Ok(result)
    }

    async fn reach(&self, dial: &dyn Dial) -> Result<ConnectedAgent, ExecutorError> {
        let unreachable = |error: DeployError| ExecutorError::unreachable(self.name.clone(), error_chain(&error));
        let Dialed { session, trace_lines } = dial.dial().await.map_err(unreachable)?;
        let platform = self.platform.lock().clone();
        let (agent, platform) =
            connect::deploy_agent(session.as_ref(), &self.agents, platform).await.map_err(unreachable)?;
        let connection = AgentConnection::from_stream(self.name.clone(), agent.stream).await?;
        tracing::info!(machine = self.name, pid = connection.identity().pid, "connected to the agent");
        if !agent.is_outdated {
            check_version(&connection.identity().version, &platform).map_err(unreachable)?;
        }
        *self.platform.lock() = Some(platform);
        *self.home.lock() = Some(agent.home.clone());
        *self.trace_lines.lock() = trace_lines;
        Ok(ConnectedAgent { session, connection, home: agent.home, is_outdated: agent.is_outdated })
    }
}

/// Checks the version of an agent for another platform.
///
/// An executable for another platform cannot run here, so only the running agent can report its version.
fn check_version(version: &str, platform: &Platform) -> Result<(), DeployError> {
    let manager = env!("CARGO_PKG_VERSION");
    if *platform == Platform::this() || version == manager {
        return Ok(());
    }
    Err(DeployError::Version { platform: platform.clone(), agent: version.to_owned(), manager })
}

/// Returns the directories of jobs below the home directory.
#[must_use]
pub fn directories(home: &std::path::Path) -> Directories {
    Directories { builds: home.join("builds"), cache: home.join("cache"), shared: true }
}
