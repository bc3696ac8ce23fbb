//! HTTP connections to an engine, which are reused.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bollard::errors::Error as ApiError;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use futures::future::BoxFuture;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tower::Service;

use super::command::CommandStream;
use super::endpoint::Endpoint;
use super::tls::TlsEndpoint;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without traffic after which the kernel probes a connection. The `ssh` command of [`super::endpoint`] has the
/// same value.
const SILENCE: Duration = Duration::from_secs(30);
/// Interval between two probes without an answer.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which a connection is considered lost.
const MAX_PROBES: u32 = 6;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the engine did not answer a call that creates something. It may still carry out the call.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnansweredCreation(Arc<AtomicBool>);

impl UnansweredCreation {
    pub(crate) fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a guard for a call that creates something for a job. `None` means that the call does not.
    fn watch(&self, request: &BollardRequest) -> Option<CreationGuard> {
        let path = request.uri().path();
        let creates = path.ends_with("/create") && !path.ends_with("/images/create");
        // A prepared container belongs to a job once it is renamed.
        let creates = creates || path.ends_with("/rename");
        creates.then(|| CreationGuard { unanswered: self.clone(), is_answered: false })
    }
}

/// Records an unanswered call on drop, so that a timeout counts, too.
struct CreationGuard {
    unanswered: UnansweredCreation,
    is_answered: bool,
}

impl Drop for CreationGuard {
    fn drop(&mut self) {
        self.unanswered.0.fetch_or(!self.is_answered, Ordering::Relaxed);
    }
}

/// Returns a client, and the record of whether the engine left one of its creating calls unanswered.
pub(super) fn client(connector: Connector, timeout_s: u64) -> Result<(Docker, UnansweredCreation), ApiError> {
    let http = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build(connector);
    let (http, unanswered) = (Arc::new(http), UnansweredCreation::default());
    let watched = unanswered.clone();
    let transport = move |request: BollardRequest| {
        let (http, guard) = (Arc::clone(&http), watched.watch(&request));
        async move {
            let response = http.request(request).await;
            if let Some(mut guard) = guard {
                guard.is_answered = response.is_ok();
            }
            response.map_err(|error| ApiError::from(io::Error::other(error)))
        }
    };
    // The host is only a header, because the connector has the address. `bollard` does not send the version of the
    // API, so each engine uses its newest version.
    let engine =
        Docker::connect_with_custom_transport(transport, Some("http://docker"), timeout_s, API_DEFAULT_VERSION)?;
    Ok((engine, unanswered))
}

#[derive(Debug, Clone)]
pub(super) struct Connector {
    endpoint: Arc<Endpoint>,
}

impl Connector {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint: Arc::new(endpoint) }
    }
}

impl<U: Send> Service<U> for Connector {
    type Response = TokioIo<EngineStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: U) -> Self::Future {
        let endpoint = Arc::clone(&self.endpoint);
        Box::pin(async move {
            let timed_out = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "the connection was not opened in time"));
            let opened = tokio::time::timeout(CONNECT_TIMEOUT, open(&endpoint)).await.unwrap_or_else(timed_out);
            opened.map(TokioIo::new)
        })
    }
}

async fn open(endpoint: &Endpoint) -> io::Result<EngineStream> {
    match endpoint {
        Endpoint::Unix(path) => Ok(EngineStream(Box::new(UnixStream::connect(path).await?))),
        Endpoint::Tcp(host, port) => Ok(EngineStream(Box::new(tcp(host, *port).await?))),
        Endpoint::Tls(TlsEndpoint { host, port, server_name, connector }) => {
            let stream = connector.connect(server_name.clone(), tcp(host, *port).await?).await?;
            Ok(EngineStream(Box::new(stream)))
        }
        Endpoint::Command(command) => Ok(EngineStream(Box::new(CommandStream::open(command)?))),
    }
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    // Firewalls drop connections after minutes without traffic, but by default, the kernel probes only after two hours.
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&stream, MAX_PROBES)?;
    Ok(stream)
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

pub(super) struct EngineStream(Box<dyn ByteStream>);

impl Connection for EngineStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for EngineStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(cx, buf)
    }
}

impl AsyncWrite for EngineStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::VolumeCreateRequest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};

    use super::*;

    /// Returns whether the creation of a volume is recorded as unanswered if the engine handles the connection with
    /// `answer`.
    async fn unanswered<F: Future<Output = ()>>(answer: impl FnOnce(UnixStream) -> F) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (engine, unanswered) = client(Connector::new(Endpoint::Unix(path)), 1).unwrap();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            answer(stream).await;
        };
        let (created, ()) = tokio::join!(engine.create_volume(VolumeCreateRequest::default()), serving);
        created.unwrap_err();
        unanswered.happened()
    }

    #[tokio::test]
    async fn silent_connection_is_checked_before_a_firewall_drops_it() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = tcp("127.0.0.1", listener.local_addr().unwrap().port()).await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert!(sockopt::tcp_keepidle(&stream).unwrap() <= Duration::from_secs(60));
    }

    #[tokio::test]
    async fn creation_without_an_answer_is_recorded() {
        assert!(unanswered(async |stream| drop(stream)).await, "a broken connection must be recorded");
        let (keep, kept) = tokio::sync::oneshot::channel();
        assert!(unanswered(async |stream| drop(keep.send(stream))).await, "a timeout must be recorded");
        drop(kept);
        let rejected = async |mut stream: UnixStream| {
            let answer = b"HTTP/1.1 500 Error\r\nContent-Length: 2\r\n\r\n{}";
            stream.write_all(answer).await.unwrap();
        };
        assert!(!unanswered(rejected).await);
    }
}
