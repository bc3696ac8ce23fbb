//! A connection to an agent: its two services over one channel.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use muster_agent_api::agent::HelloRequest;
use muster_agent_api::agent::agent_client::AgentClient;
use muster_agent_api::step_runner::step_runner_client::StepRunnerClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::EnvironmentError;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// An agent that does not answer a ping for so long is frozen; its connection is given up.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(60);
/// A result tree can be large.
const MESSAGE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The agent's version.
    pub version: String,
    /// Its process id.
    pub pid: i64,
}

/// A connection to an agent. Clones share the channel.
#[derive(Debug, Clone)]
pub struct AgentConnection {
    channel: Channel,
    socket: PathBuf,
    identity: Identity,
    /// A call failed since the connection was checked last.
    in_doubt: Arc<AtomicBool>,
}

impl AgentConnection {
    /// Connects to the socket and asks who is there.
    ///
    /// # Errors
    /// [`EnvironmentError::Unreachable`].
    pub async fn open(socket: &Path) -> Result<Self, EnvironmentError> {
        let unreachable = |message: String| EnvironmentError::Unreachable { socket: socket.to_owned(), message };
        let path = socket.to_owned();
        let connector = service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is not used: the connector goes to the socket.
        let channel = Endpoint::from_static("http://agent.invalid")
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_LIMIT)
            .connect_with_connector(connector)
            .await
            .map_err(|error| unreachable(causes(&error)))?;
        let identity = hello(&channel).await.map_err(unreachable)?;
        Ok(Self { channel, socket: socket.to_owned(), identity, in_doubt: Arc::default() })
    }

    /// Who answered when the connection was opened.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A call over this connection failed: it is checked before it is handed out again.
    pub fn doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    /// Whether a call failed, and nobody has checked since.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Asks whether the same agent still answers; if so, the connection is beyond doubt again.
    ///
    /// # Errors
    /// [`EnvironmentError::Unreachable`], also where another agent answers by now.
    pub async fn check(&self) -> Result<(), EnvironmentError> {
        let message = match hello(&self.channel).await {
            Ok(identity) if identity == self.identity => {
                self.in_doubt.store(false, Ordering::Relaxed);
                return Ok(());
            }
            Ok(identity) => format!("agent {} was replaced by agent {}", self.identity.pid, identity.pid),
            Err(message) => message,
        };
        Err(EnvironmentError::Unreachable { socket: self.socket.clone(), message })
    }

    /// GitLab's step-runner service.
    #[must_use]
    pub fn step_runner(&self) -> StepRunnerClient<Channel> {
        StepRunnerClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX_BYTES)
    }

    /// Muster's extension.
    #[must_use]
    pub fn agent(&self) -> AgentClient<Channel> {
        AgentClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX_BYTES)
    }
}

async fn hello(channel: &Channel) -> Result<Identity, String> {
    let mut client = AgentClient::new(channel.clone());
    match tokio::time::timeout(HELLO_LIMIT, client.hello(HelloRequest {})).await {
        Ok(Ok(answer)) => {
            let answer = answer.into_inner();
            Ok(Identity { version: answer.version, pid: answer.pid })
        }
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("no answer within {} s", HELLO_LIMIT.as_secs())),
    }
}

/// The error with its causes, which tonic keeps out of its own text.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
