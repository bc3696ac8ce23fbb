//! Connection to an agent or another step-runner, with its services.

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
/// Keep-alive that closes connections to frozen agents on this machine.
const LOCAL_KEEPALIVE: KeepAlive = KeepAlive { interval: Duration::from_secs(30), timeout: Duration::from_secs(60) };
/// Keep-alive for agents on other machines. Its times are short, because an agent answers even if jobs use its whole
/// machine.
pub const REMOTE_KEEPALIVE: KeepAlive = KeepAlive { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) };
/// Maximum HTTP/2 frame of an agent on this machine, large enough for a chunk of a log.
///
/// On other machines, smaller frames let pings be answered sooner.
const LOCAL_FRAME_BYTES: u32 = 1024 * 1024;
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// HTTP/2 keep-alive, which detects an agent that no longer responds.
#[derive(Debug, Clone, Copy)]
pub struct KeepAlive {
    /// Time between two pings.
    pub interval: Duration,
    /// Time without an answer after which the connection is closed.
    pub timeout: Duration,
}

/// A connection to an agent could not be opened, or broke. A retry may succeed.
#[derive(Debug, thiserror::Error)]
#[error("no agent answers on {location}: {message}")]
pub struct Unreachable {
    /// Socket or instance of the agent.
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
    /// Whether the agent has Muster's extension. If false, the agent is another step-runner, whose version and process
    /// ID are unknown.
    pub has_extension: bool,
}

/// Connection to an agent. Clones share the channel.
#[derive(Debug, Clone)]
pub struct AgentConnection {
    channel: Channel,
    location: String,
    identity: Identity,
    /// Whether a call has failed since the last check.
    suspect: Arc<AtomicBool>,
}

impl AgentConnection {
    /// Connects to an agent on this machine. `dial` opens connections to `location`, and decides which processes are
    /// trusted.
    ///
    /// # Errors
    /// [`Unreachable`] if no agent with Muster's extension answers.
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
        // GitLab's step-runner closes a connection with more than one ping per 5 minutes.
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

    /// Connects over a stream to an agent at `location`. The connection ends with the stream.
    ///
    /// # Errors
    /// [`Unreachable`] if no agent with Muster's extension answers.
    pub async fn from_stream<S>(location: String, stream: S) -> Result<Self, Unreachable>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::step_runner_from_stream(location, stream).await?.require_extension()
    }

    /// Connects like [`AgentConnection::from_stream`], but also to GitLab's step-runner, which closes the connection
    /// because of the pings if a job prints nothing.
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

    fn require_extension(self) -> Result<Self, Unreachable> {
        if self.identity.has_extension {
            return Ok(self);
        }
        let message = "another step-runner answers there; stop it to let Muster start its agent".to_owned();
        Err(Unreachable { location: self.location, message })
    }

    /// `None` for `keep_alive` means no pings. `None` for `max_frame_size` means 16 KiB, the default of HTTP/2.
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
        // The URL is not used, because the connector has its own address.
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

    /// Marks the connection for a check before its next use.
    pub fn mark_suspect(&self) {
        self.suspect.store(true, Ordering::Relaxed);
    }

    /// Returns whether a call has failed since the last check.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    /// Checks whether the same agent still answers.
    ///
    /// # Errors
    /// [`Unreachable`] if no agent or another agent answers.
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

    /// Answers each call with `UNIMPLEMENTED`.
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
