//! HTTP connections to an engine. A connection is kept open between calls, unless it becomes a stream to a container.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bollard::errors::Error as ApiError;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use futures::future::BoxFuture;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tower::Service;

use super::command::CommandStream;
use super::endpoint::Endpoint;
use super::tls::TlsEndpoint;

/// Maximum time to open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which an unused connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a client of the engine that `connector` reaches.
pub(super) fn client(connector: Connector, timeout_s: u64) -> Result<Docker, ApiError> {
    let http = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build(connector);
    let http = Arc::new(http);
    let transport = move |request: BollardRequest| {
        let http = Arc::clone(&http);
        let request = without_version(request);
        async move { http.request(request).await.map_err(|error| ApiError::from(io::Error::other(error))) }
    };
    // This host is only the value of a header. The connector has the address.
    Docker::connect_with_custom_transport(transport, Some("http://docker"), timeout_s, API_DEFAULT_VERSION)
}

/// Removes the version of the API from the request for the engine's version.
///
/// The engine would reject a version that it does not support, and only the answer to this request contains the supported versions.
fn without_version(mut request: BollardRequest) -> BollardRequest {
    const VERSION: &str = "/version";
    if request.uri().path().ends_with(VERSION) && request.uri().path().matches('/').count() == 2 {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static(VERSION));
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// Opens connections to one engine.
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
    // A stream to a container can be silent for hours, and firewalls drop silent connections.
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    Ok(stream)
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection to an engine.
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
