//! One instance: how it is reached, and the one connection that its jobs share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::client::AgentConnection;
use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::model::{ConnectInfo, ConnectorConfig, InstanceId, Platform};
use muster_remote::{self as remote, DialError, KnownHosts, Session};
use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;

use super::agents::Agents;
use super::place;
use crate::{Directories, ExecutorError};

/// Before connection details that have expired are asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Opens sessions on an instance.
#[async_trait]
pub trait Dial: Send + Sync {
    /// A new session, and how the instance was reached.
    ///
    /// # Errors
    /// Why there is none, for people.
    async fn dial(&self) -> Result<(Box<dyn Session>, Addresses), String>;

    /// The instance could not be reached, or a connection to it broke: who can find out why is told.
    fn doubt(&self) {}
}

/// The addresses of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// From its own network.
    pub internal: String,
    /// From outside.
    pub external: String,
}

impl Addresses {
    /// Those of a plugin's answer.
    #[must_use]
    pub fn of(info: &ConnectInfo) -> Self {
        Self { internal: info.internal_addr.clone(), external: info.external_addr.clone() }
    }
}

/// What the trace tells of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// `log_internal_ip`.
    pub internal: bool,
    /// `log_external_ip`.
    pub external: bool,
}

/// How long a machine that has just been made may refuse the credentials: some get the user's key a while after they answer.
pub(super) const NEW_GRACE: Duration = Duration::from_secs(120);

/// A connection as a plugin's details say; `is_new` before the first job. Details may be of use for a minute only, and the
/// machine may take longer to answer: they are asked for again, for as long as one set of them gives it.
///
/// # Errors
/// Why there is none.
pub(super) async fn dial<D: Future<Output = Result<ConnectInfo, String>>>(
    id: &str,
    details: impl Fn() -> D,
    options: DialOptions,
    hosts: &KnownHosts,
    is_new: bool,
) -> Result<(Box<dyn Session>, Addresses), String> {
    let began = tokio::time::Instant::now();
    loop {
        let info = details().await?;
        let (addresses, limit) = (Addresses::of(&info), info.connector.timeout);
        let failed = |error: &dyn std::error::Error| format!("instance {id}: {error}");
        let target = connector::target(&InstanceId::new(id), info, options).map_err(|error| failed(&error))?;
        let dialled = match is_new {
            true => remote::dial_new(&target, hosts, NEW_GRACE).await,
            false => remote::dial(&target, hosts).await,
        };
        match dialled {
            Ok(session) => return Ok((session, addresses)),
            Err(DialError::Expired) if began.elapsed() < limit => {
                tracing::debug!(instance = id, "connection details have expired; they are asked for again");
                tokio::time::sleep(ASK_AGAIN).await;
            }
            Err(error) => return Err(failed(&error)),
        }
    }
}

struct Reached {
    session: Box<dyn Session>,
    connection: AgentConnection,
    home: PathBuf,
    /// The agent is of another executable.
    is_older: bool,
}

/// An instance. Its jobs share one session and one agent.
pub(super) struct Instance {
    id: String,
    agents: Arc<Agents>,
    /// What kind of machine it was the last time.
    kind: Lock<Option<Platform>>,
    told: Told,
    /// Held across connecting, so that jobs that lost it together mend it once, and the executable is sent once.
    reached: Mutex<Option<Reached>>,
    words: Lock<Vec<String>>,
    home: Lock<Option<PathBuf>>,
    /// No job of this manager has it: an older agent may be replaced.
    is_free: AtomicBool,
}

impl Instance {
    pub(super) fn new(id: &str, agents: Arc<Agents>, told: Told) -> Self {
        let (reached, words, home) = (Mutex::new(None), Lock::default(), Lock::default());
        let (kind, is_free) = (Lock::default(), AtomicBool::new(false));
        Self { id: id.to_owned(), agents, kind, told, reached, words, home, is_free }
    }

    /// Whether there is an agent for what the machine is said to be.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn check(&self, told: &ConnectorConfig) -> Result<(), String> {
        self.agents.check(&self.id, told)
    }

    /// The home directory there, once it was reached.
    pub(super) fn home(&self) -> Option<PathBuf> {
        self.home.lock().clone()
    }

    /// A job gets it, and no other one has it just now.
    pub(super) fn found_free(&self) {
        self.is_free.store(true, Ordering::Relaxed);
    }

    pub(super) fn words(&self) -> Vec<String> {
        self.words.lock().clone()
    }

    /// A connection to the agent that is believed to work, and the home directory.
    pub(super) async fn connect(&self, dial: &dyn Dial) -> Result<(AgentConnection, PathBuf), ExecutorError> {
        let mut reached = self.reached.lock().await;
        let was_free = self.is_free.swap(false, Ordering::Relaxed);
        if let Some(older) = reached.take_if(|known| known.is_older && was_free) {
            tracing::info!(instance = self.id, "the agent of another executable has no job left: it is replaced");
            older.session.close().await;
        }
        if let Some(known) = &*reached {
            if !known.connection.is_in_doubt() {
                return Ok((known.connection.clone(), known.home.clone()));
            }
            match known.connection.check().await {
                Ok(()) => return Ok((known.connection.clone(), known.home.clone())),
                Err(error) => tracing::warn!(instance = self.id, %error, "the connection to the agent is lost"),
            }
        }
        if let Some(known) = reached.take() {
            dial.doubt();
            known.session.close().await;
        }
        let new = match self.reach(dial).await {
            Ok(new) => new,
            Err(error) => {
                dial.doubt();
                return Err(error);
            }
        };
        let answer = (new.connection.clone(), new.home.clone());
        *reached = Some(new);
        Ok(answer)
    }

    async fn reach(&self, dial: &dyn Dial) -> Result<Reached, ExecutorError> {
        let place = || format!("instance {}", self.id);
        let unreachable = |message: String| ExecutorError::unreachable(place(), message);
        let (session, addresses) = dial.dial().await.map_err(unreachable)?;
        let kind = self.kind.lock().clone();
        let (tunnel, kind) = place::tunnel(session.as_ref(), &self.agents, kind).await.map_err(unreachable)?;
        let connection = AgentConnection::over(place(), tunnel.stream).await?;
        tracing::info!(instance = self.id, pid = connection.identity().pid, "connected to the agent");
        if !tunnel.is_older {
            same_version(&connection.identity().version, &kind).map_err(unreachable)?;
        }
        *self.kind.lock() = Some(kind);
        *self.home.lock() = Some(tunnel.home.clone());
        *self.words.lock() = words(&self.id, &addresses, self.told);
        Ok(Reached { session, connection, home: tunnel.home, is_older: tunnel.is_older })
    }
}

/// The manager's own executable was asked for its version; that of another kind cannot be run here, so its agent is.
fn same_version(version: &str, kind: &Platform) -> Result<(), String> {
    let own = env!("CARGO_PKG_VERSION");
    if *kind == Platform::this() || version == own {
        return Ok(());
    }
    Err(format!("its agent, for {kind}, is of version {version}, and this manager {own}: install both of one version"))
}

/// Runs a command on an instance to its end, as `instance_ready_command` is.
///
/// # Errors
/// How it failed, with the end of what it said.
pub(super) async fn run(dial: &dyn Dial, command: &str) -> Result<(), String> {
    let (session, _) = dial.dial().await?;
    let outcome = session.run(remote::RemoteCommand::new(command)).await;
    session.close().await;
    match outcome {
        Ok(outcome) if outcome.exit == remote::Exit::Code(0) => Ok(()),
        Ok(outcome) => {
            let how = match outcome.exit {
                remote::Exit::Code(code) => format!("status {code}"),
                remote::Exit::Signal(signal) => format!("SIG{signal}"),
            };
            // What it said may have several lines.
            let said = outcome.stderr.to_string().trim().lines().map(str::trim).collect::<Vec<_>>().join(" | ");
            Err(if said.is_empty() { format!("it ended with {how}") } else { format!("it ended with {how}: {said}") })
        }
        Err(error) => Err(error.to_string()),
    }
}

/// job-execution 7.2.
pub(super) fn words(id: &str, addresses: &Addresses, told: Told) -> Vec<String> {
    let shown = [(told.internal, &addresses.internal), (told.external, &addresses.external)];
    let shown: String = shown
        .into_iter()
        .filter(|(told, address)| *told && !address.is_empty())
        .map(|(_, address)| format!(", {address}"))
        .collect();
    vec![
        "Preparing instance...".to_owned(),
        format!("Dialing instance {id}{shown}..."),
        format!("Instance {id} connected"),
    ]
}

/// job-execution 7.4: below the home directory there, for jobs of all projects.
#[must_use]
pub fn directories(home: &std::path::Path) -> Directories {
    Directories { builds: home.join("builds"), cache: home.join("cache"), shared: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_only_where_the_configuration_says_so() {
        let addresses = Addresses { internal: "10.0.0.5".to_owned(), external: "192.0.2.1".to_owned() };
        let dialing = |internal, external| words("i-1", &addresses, Told { internal, external }).remove(1);
        assert_eq!(dialing(false, false), "Dialing instance i-1...");
        assert_eq!(dialing(true, false), "Dialing instance i-1, 10.0.0.5...");
        assert_eq!(dialing(true, true), "Dialing instance i-1, 10.0.0.5, 192.0.2.1...");
    }

    /// AWS gives keys that are good for a minute.
    #[tokio::test]
    async fn details_that_expire_before_the_machine_answers_are_asked_for_again() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let asked = std::cell::Cell::new(0);
        let details = || {
            asked.set(asked.get() + 1);
            // The machine answers nobody before the third set; that one leads to another error.
            let (expires, protocol) = if asked.get() < 3 { (Some(1), "ssh") } else { (None, "telnet") };
            let connector = ConnectorConfig { protocol: protocol.to_owned(), ..ConnectorConfig::default() };
            let internal_addr = closed.clone();
            std::future::ready(Ok(ConnectInfo { connector, external_addr: String::new(), internal_addr, expires }))
        };
        let error = dial("i-1", details, DialOptions::default(), &KnownHosts::default(), true).await.err().unwrap();
        assert!(error.contains("telnet") && asked.get() == 3, "{} {error}", asked.get());
    }
}
