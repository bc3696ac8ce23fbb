//! A connection to an agent: its two services over one channel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{Service, service_fn};

use crate::agent::HelloRequest;
use crate::agent::agent_client::AgentClient;
use crate::step_runner::step_runner_client::StepRunnerClient;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// An agent on this machine that does not answer a ping for so long is frozen; its connection is given up.
const NEAR: Pings = Pings { every: Duration::from_secs(30), limit: Duration::from_secs(60) };
/// A machine that does not answer for so long may be gone; whoever knows is asked then. The agent answers by itself, whatever
/// its jobs do.
pub const FAR: Pings = Pings { every: Duration::from_secs(2), limit: Duration::from_secs(4) };
/// A result tree can be large.
const MESSAGE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// How the silence of an agent is told from its death.
#[derive(Debug, Clone, Copy)]
pub struct Pings {
    /// Time between two pings.
    pub every: Duration,
    /// Time after which a ping without an answer ends the connection.
    pub limit: Duration,
}

/// Error of a connection to an agent that could not be opened or does not serve any more. It may be opened again later.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers on {place}: {message}")]
pub struct Unreachable {
    /// Socket or instance where the agent should be.
    pub place: String,
    /// Cause.
    pub message: String,
}

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The agent's version.
    pub version: String,
    /// Its process id.
    pub pid: i64,
    /// Its jobs ask before their first user command, where they are to (`JobPlan::ask_first`).
    pub asks: bool,
}

/// A connection to an agent. Clones share the channel.
#[derive(Debug, Clone)]
pub struct AgentConnection {
    channel: Channel,
    place: String,
    identity: Identity,
    /// A call failed since the connection was checked last.
    in_doubt: Arc<AtomicBool>,
}

impl AgentConnection {
    /// Speaks to an agent of this machine at `place`, and asks who is there. `dial` opens each connection to it, and decides
    /// whether the process on the other end may be spoken to.
    ///
    /// # Errors
    /// [`Unreachable`].
    pub async fn open<D, F>(place: String, mut dial: D) -> Result<Self, Unreachable>
    where
        D: FnMut() -> F + Send + 'static,
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let connector = service_fn(move |_| {
            let stream = dial();
            async move { stream.await.map(TokioIo::new) }
        });
        Self::with(place, connector, NEAR).await
    }

    /// Speaks over a stream that leads to an agent at `place`, and asks who is there. When the stream breaks, so does the
    /// connection.
    ///
    /// # Errors
    /// [`Unreachable`].
    pub async fn over<S>(place: String, stream: S) -> Result<Self, Unreachable>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut stream = Some(stream);
        let connector = service_fn(move |_| {
            let stream = stream.take().map(TokioIo::new);
            std::future::ready(stream.ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "the tunnel has ended")))
        });
        Self::with(place, connector, FAR).await
    }

    async fn with<C>(place: String, connector: C, pings: Pings) -> Result<Self, Unreachable>
    where
        C: Service<Uri, Error = io::Error> + Send + 'static,
        C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin,
        C::Future: Send,
    {
        // The address is not used: the connector knows the way.
        let opened = Endpoint::from_static("http://agent.invalid")
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(pings.every)
            .keep_alive_timeout(pings.limit)
            .connect_with_connector(connector)
            .await;
        let answer = match opened {
            Ok(channel) => hello(&channel).await.map(|identity| (channel, identity)),
            Err(error) => Err(causes(&error)),
        };
        match answer {
            Ok((channel, identity)) => Ok(Self { channel, place, identity, in_doubt: Arc::default() }),
            Err(message) => Err(Unreachable { place, message }),
        }
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
    /// [`Unreachable`], also where another agent answers by now.
    pub async fn check(&self) -> Result<(), Unreachable> {
        let message = match hello(&self.channel).await {
            Ok(identity) if identity == self.identity => {
                self.in_doubt.store(false, Ordering::Relaxed);
                return Ok(());
            }
            Ok(identity) => format!("agent {} was replaced by agent {}", self.identity.pid, identity.pid),
            Err(message) => message,
        };
        Err(Unreachable { place: self.place.clone(), message })
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
            Ok(Identity { version: answer.version, pid: answer.pid, asks: answer.asks })
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
