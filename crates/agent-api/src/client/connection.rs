//! A connection to an agent, or to another step-runner: its services over one channel.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use muster_job::error_chain;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::{Service, service_fn};

use crate::agent::GetInfoRequest;
use crate::agent::agent_client::AgentClient;
use crate::agent::debugger_client::DebuggerClient;
use crate::step_runner::step_runner_client::StepRunnerClient;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const INFO_TIMEOUT: Duration = Duration::from_secs(10);
/// Keep-alive for agents on this machine. It closes connections to frozen agents.
const LOCAL_KEEPALIVE: KeepAlive = KeepAlive { interval: Duration::from_secs(30), timeout: Duration::from_secs(60) };
/// Keep-alive for agents on other machines.
///
/// If no answer arrives in time, the connection is closed, and the executor checks whether the machine is lost. The agent answers
/// even if its jobs use the whole machine.
pub const REMOTE_KEEPALIVE: KeepAlive = KeepAlive { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) };
/// Maximum size of an HTTP/2 frame of an agent on this machine, so that each chunk of a log is one frame.
///
/// Agents on other machines send smaller frames, because the answer to a ping waits for the frame that is being sent.
const LOCAL_FRAME_BYTES: u32 = 1024 * 1024;
/// Maximum size of a message. A result tree can be large.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// HTTP/2 keep-alive, which distinguishes an idle agent from one that no longer responds.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Time between two pings.
    pub interval: Duration,
    /// Time without an answer to a ping after which the connection is closed.
    pub timeout: Duration,
}

/// Error of a connection to an agent that could not be opened, or that broke. A retry may succeed.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers on {location}: {message}")]
pub struct Unreachable {
    /// Socket or instance on which the agent should listen.
    pub location: String,
    /// Reason for the failure.
    pub message: String,
}

/// Identity of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Version of the agent.
    pub version: String,
    /// Process ID of the agent.
    pub pid: i64,
    /// Whether the agent supports start approval (`JobPlan::require_start_approval`).
    pub supports_start_approval: bool,
    /// Whether the agent has Muster's extension. If false, it is another step-runner, whose version and process ID are unknown.
    pub has_extension: bool,
}

/// A connection to an agent. Clones share the channel.
#[derive(Debug, Clone)]
pub struct AgentConnection {
    channel: Channel,
    location: String,
    identity: Identity,
    /// Whether a call has failed since the last check of the connection.
    suspect: Arc<AtomicBool>,
}

impl AgentConnection {
    /// Connects to an agent on this machine, and queries its identity.
    ///
    /// `dial` opens each connection to `location`, and decides whether the process at the other end can be trusted.
    ///
    /// # Errors
    /// [`Unreachable`] if no agent answers. A step-runner without Muster's extension is not an agent.
    pub async fn open<D, F>(location: String, dial: D) -> Result<Self, Unreachable>
    where
        D: FnMut() -> F + Send + 'static,
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        Self::open_local(location, &Arc::new(Mutex::new(dial)), Some(LOCAL_KEEPALIVE)).await?.require_extension()
    }

    /// Connects like [`AgentConnection::open`], but also to GitLab's step-runner.
    ///
    /// # Errors
    /// [`Unreachable`] if neither an agent nor a step-runner answers.
    pub async fn open_step_runner<D, F>(location: String, dial: D) -> Result<Self, Unreachable>
    where
        D: FnMut() -> F + Send + 'static,
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let dial = Arc::new(Mutex::new(dial));
        let opened = Self::open_local(location.clone(), &dial, Some(LOCAL_KEEPALIVE)).await?;
        if opened.identity.has_extension {
            return Ok(opened);
        }
        // GitLab's step-runner closes a connection on which pings arrive more often than every 5 minutes.
        Self::open_local(location, &dial, None).await
    }

    async fn open_local<D, F>(
        location: String,
        dial: &Arc<Mutex<D>>,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Self, Unreachable>
    where
        D: FnMut() -> F + Send + 'static,
        F: Future<Output = io::Result<UnixStream>> + Send + 'static,
    {
        let dial = Arc::clone(dial);
        let connector = service_fn(move |_| {
            let stream = (dial.lock())();
            async move { stream.await.map(TokioIo::new) }
        });
        Self::connect_with(location, connector, keep_alive, Some(LOCAL_FRAME_BYTES)).await
    }

    /// Connects over a stream that leads to an agent at `location`, and queries its identity. The connection ends with the stream.
    ///
    /// # Errors
    /// [`Unreachable`] if no agent answers. A step-runner without Muster's extension is not an agent.
    pub async fn from_stream<S>(location: String, stream: S) -> Result<Self, Unreachable>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::step_runner_from_stream(location, stream).await?.require_extension()
    }

    /// Connects like [`AgentConnection::from_stream`], but also to GitLab's step-runner.
    ///
    /// The connection is pinged as often as one to an agent, so GitLab's step-runner closes it while a job prints nothing.
    ///
    /// # Errors
    /// [`Unreachable`] if neither an agent nor a step-runner answers.
    pub async fn step_runner_from_stream<S>(location: String, stream: S) -> Result<Self, Unreachable>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut stream = Some(stream);
        let connector = service_fn(move |_| {
            let stream = stream.take().map(TokioIo::new);
            std::future::ready(stream.ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "the stream has ended")))
        });
        Self::connect_with(location, connector, Some(REMOTE_KEEPALIVE), None).await
    }

    /// Returns the connection if it is to an agent. Another step-runner has neither result trees nor start approval.
    fn require_extension(self) -> Result<Self, Unreachable> {
        if self.identity.has_extension {
            return Ok(self);
        }
        let message = "another step-runner answers there; stop it to let Muster start its agent".to_owned();
        Err(Unreachable { location: self.location, message })
    }

    /// Without `keep_alive`, no pings are sent. `max_frame_size` is in bytes. `None` means the default of HTTP/2, 16 KiB.
    async fn connect_with<C>(
        location: String,
        connector: C,
        keep_alive: Option<KeepAlive>,
        max_frame_size: Option<u32>,
    ) -> Result<Self, Unreachable>
    where
        C: Service<Uri, Error = io::Error> + Send + 'static,
        C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin,
        C::Future: Send,
    {
        // The address is not used, because the connector has its own.
        let mut endpoint = Endpoint::from_static("http://agent.invalid")
            .connect_timeout(CONNECT_TIMEOUT)
            .max_frame_size(max_frame_size);
        if let Some(KeepAlive { interval, timeout }) = keep_alive {
            endpoint = endpoint.http2_keep_alive_interval(interval).keep_alive_timeout(timeout);
        }
        let opened = endpoint.connect_with_connector(connector).await;
        let answer = match opened {
            Ok(channel) => get_info(&channel).await.map(|identity| (channel, identity)),
            Err(error) => Err(error_chain(&error)),
        };
        match answer {
            Ok((channel, identity)) => Ok(Self { channel, location, identity, suspect: Arc::default() }),
            Err(message) => Err(Unreachable { location, message }),
        }
    }

    /// Returns the identity that the agent had when the connection was opened.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Marks the connection as suspect after a failed call, so that it is checked before it is used again.
    pub fn mark_suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Returns whether a call has failed since the last check.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Checks whether the same agent still answers. If so, the connection is no longer suspect.
    ///
    /// # Errors
    /// [`Unreachable`] if no agent answers, or if another agent has replaced this one.
    pub async fn check(&self) -> Result<(), Unreachable> {
        let message = match get_info(&self.channel).await {
            Ok(identity) if identity == self.identity => {
                self.suspect.store(false, Ordering::Relaxed);
                return Ok(());
            }
            Ok(identity) => format!("agent {} was replaced by agent {}", self.identity.pid, identity.pid),
            Err(message) => message,
        };
        Err(Unreachable { location: self.location.clone(), message })
    }

    /// Returns a client of GitLab's step-runner service.
    #[must_use]
    pub fn step_runner(&self) -> StepRunnerClient<Channel> {
        StepRunnerClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Returns a client of Muster's extension.
    #[must_use]
    pub fn agent(&self) -> AgentClient<Channel> {
        AgentClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Returns a client of the debugger of jobs.
    #[must_use]
    pub fn debugger(&self) -> DebuggerClient<Channel> {
        DebuggerClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

async fn get_info(channel: &Channel) -> Result<Identity, String> {
    let mut client = AgentClient::new(channel.clone());
    match tokio::time::timeout(INFO_TIMEOUT, client.get_info(GetInfoRequest {})).await {
        Ok(Ok(answer)) => {
            let answer = answer.into_inner();
            Ok(Identity {
                version: answer.version,
                pid: answer.pid,
                supports_start_approval: answer.supports_start_approval,
                has_extension: true,
            })
        }
        Ok(Err(status)) if status.code() == Code::Unimplemented => {
            Ok(Identity { version: String::new(), pid: 0, supports_start_approval: false, has_extension: false })
        }
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("no answer within {} s", INFO_TIMEOUT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;
    use tonic::service::Routes;
    use tonic::transport::Server;

    use super::*;

    /// Returns a stream to a server without any service, which answers each call as `UNIMPLEMENTED`.
    fn server_without_services() -> tokio::io::DuplexStream {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let incoming = tokio_stream::once(Ok::<_, io::Error>(server)).chain(tokio_stream::pending());
        tokio::spawn(Server::builder().add_routes(Routes::default()).serve_with_incoming(incoming));
        client
    }

    #[tokio::test]
    async fn only_a_caller_that_permits_it_gets_a_connection_to_another_step_runner() {
        let location = || "the socket".to_owned();
        let error = AgentConnection::from_stream(location(), server_without_services()).await.unwrap_err();
        assert!(error.message.contains("another step-runner"), "{error}");
        let opened = AgentConnection::step_runner_from_stream(location(), server_without_services()).await.unwrap();
        assert!(!opened.identity().has_extension);
    }
}
