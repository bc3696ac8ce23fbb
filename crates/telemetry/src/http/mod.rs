//! HTTP server on `listen_address`: metrics, health and debug endpoints (docs/spec/runner-config.md, section 3.1).
//!
//! The server has no authentication, like gitlab-runner's, so it should listen on a private address. It shows no
//! secrets.

mod endpoint;
mod listen;
mod responses;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Telemetry;

pub use endpoint::{Endpoints, JsonEndpoint, JsonResponse};
pub use listen::ListenError;

/// Maximum number of concurrent connections. Further connections wait in the system's queue.
const MAX_CONNECTIONS: usize = 64;
/// Timeout for the head of a request, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a request's head in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Time that open connections have to complete when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay after a failed accept, for example because the process has no file descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// A server that listens, but does not serve yet.
pub struct Server {
    listener: TcpListener,
    telemetry: Arc<Telemetry>,
}

impl Server {
    /// Listens on a port of `host`. An empty `host` means all addresses of the machine.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(host: &str, port: u16, telemetry: Arc<Telemetry>) -> Result<Self, ListenError> {
        let listener = listen::listen(host, port).await?;
        match listener.local_addr() {
            Ok(address) => tracing::info!(%address, "Metrics server listening"),
            Err(error) => tracing::warn!(%error, "failed to get the address of the metrics server"),
        }
        Ok(Self { listener, telemetry })
    }

    /// Returns the address on which the server listens.
    ///
    /// # Errors
    /// Returns the error of the operating system.
    pub fn address(&self) -> io::Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves requests until `stop` is canceled, and then waits a few seconds for open connections.
    pub async fn serve(self, stop: CancellationToken) {
        let listener = &self.listener;
        let accept = || async move { listener.accept().await.map(|(stream, _)| stream) };
        serve_connections(accept, &self.telemetry, stop).await;
    }
}

/// Serves the connections that `accept` returns, as [`Server::serve`] does. `accept` must be cancel-safe.
async fn serve_connections<F: Future<Output = io::Result<TcpStream>>>(
    accept: impl Fn() -> F,
    telemetry: &Arc<Telemetry>,
    stop: CancellationToken,
) {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            Some((stream, permit)) = next_connection(&accept, &permits) => {
                connections.spawn(connection(stream, Arc::clone(telemetry), stop.clone(), permit));
            }
        }
    }
    let all_closed = async { while connections.join_next().await.is_some() {} };
    // Dropping the set ends the remaining connections.
    let _ = tokio::time::timeout(STOP_TIMEOUT, all_closed).await;
}

/// Waits for a free permit and the next connection. Cancel-safe. `None` means that `permits` is closed.
///
/// Retries after a failure, because `select!` does not poll a branch again whose result does not match.
async fn next_connection<F: Future<Output = io::Result<TcpStream>>>(
    accept: impl Fn() -> F,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    loop {
        match accept().await {
            Ok(stream) => return Some((stream, permit)),
            Err(error) => {
                tracing::debug!(%error, "failed to accept a connection to the metrics server");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (telemetry, head) = (Arc::clone(&telemetry), request.into_parts().0);
        async move { Ok::<_, std::convert::Infallible>(responses::respond(&head.method, &head.uri, &telemetry).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the metrics server failed");
    }
}
