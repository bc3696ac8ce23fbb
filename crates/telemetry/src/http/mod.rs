//! The HTTP server on `listen_address`: metrics, health, and what helps to debug (runner-config 3.1).
//!
//! No authentication, as GitLab Runner's: it belongs on a loopback address or a private network. It shows names and
//! numbers, never a secret. What a client can take is bounded: connections, the size of a request's head, and its time.

mod listen;
mod page;
mod pages;
#[cfg(test)]
mod tests;

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

pub use listen::ListenError;
pub use page::{JsonAnswer, Page, Pages};

/// Connections at the same time; more wait in the system's queue.
const CONNECTIONS_MAX: usize = 64;
/// The head of a request has to arrive within this, and a connection may be idle for as long.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a request's head.
const HEAD_MAX_BYTES: usize = 16 * 1024;
/// Answers that are under way at the end have so long.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// A system that is out of file descriptors is asked again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// A server that listens, and does not answer yet.
pub struct Server {
    listener: TcpListener,
    telemetry: Arc<Telemetry>,
}

impl Server {
    /// Listens on the port of `host`; an empty host is every address of the machine.
    ///
    /// # Errors
    /// [`ListenError`]: a manager that was told to be observable does not start without being it.
    pub async fn bind(host: &str, port: u16, telemetry: Arc<Telemetry>) -> Result<Self, ListenError> {
        let listener = listen::listen(host, port).await?;
        match listener.local_addr() {
            Ok(address) => tracing::info!(%address, "Metrics server listening"),
            Err(error) => tracing::warn!(%error, "the metrics server listens, but its address cannot be told"),
        }
        Ok(Self { listener, telemetry })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> std::io::Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`, and then ends what is under way.
    pub async fn serve(self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                Some((stream, permit)) = accept(&self.listener, &permits) => {
                    let (telemetry, stop) = (Arc::clone(&self.telemetry), stop.clone());
                    connections.spawn(connection(stream, telemetry, stop, permit));
                }
            }
        }
        let ended = async { while connections.join_next().await.is_some() {} };
        // What is left is dropped with the set, which ends it.
        let _ = tokio::time::timeout(STOP_LIMIT, ended).await;
    }
}

/// The next connection, when there is room for one. Cancel-safe: a permit that is not used is given back.
async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::debug!(%error, "a connection to the metrics server was not accepted");
            tokio::time::sleep(ACCEPT_AGAIN).await;
            None
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
        let (telemetry, asked) = (Arc::clone(&telemetry), request.into_parts().0);
        async move { Ok::<_, std::convert::Infallible>(pages::answer(&asked.method, &asked.uri, &telemetry).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(HEAD_MAX_BYTES);
    let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection to the metrics server broke");
    }
}
