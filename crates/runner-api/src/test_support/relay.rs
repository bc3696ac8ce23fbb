//! TCP relay in front of a coordinator. The relay counts and disturbs HTTP/2 connections, which only gRPC calls use.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// Handling of HTTP/2 connections. HTTP/1.1 connections are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Http2 {
    /// Forwards connections.
    Forward,
    /// Responds as to an invalid HTTP/1.1 request, like a proxy without HTTP/2.
    Reject,
    /// Accepts connections without a response.
    Ignore,
    /// Forwards requests. Drops the response, and closes both connections.
    LoseResponse,
    /// Forwards requests. Drops responses, and keeps both connections open.
    DiscardResponse,
}

#[derive(Debug)]
struct Shared {
    target: (String, u16),
    http2: Mutex<Http2>,
    http2_connections: AtomicUsize,
}

/// Running relay, until dropped.
#[derive(Debug)]
pub struct Relay {
    /// URL for clients.
    pub url: Url,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Starts a relay in front of the coordinator at `target`.
    ///
    /// # Errors
    /// No port can be opened, or the URL has no host and port.
    pub async fn start(target: &Url) -> io::Result<Self> {
        let address = target.host_str().zip(target.port_or_known_default()).ok_or(io::ErrorKind::InvalidInput)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = Url::parse(&format!("http://{}", listener.local_addr()?)).map_err(io::Error::other)?;
        let shared = Arc::new(Shared {
            target: (address.0.to_owned(), address.1),
            http2: Mutex::new(Http2::Forward),
            http2_connections: AtomicUsize::new(0),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { url, shared, task })
    }

    /// Sets the handling of HTTP/2 connections. [`Http2::Reject`] and [`Http2::Ignore`] affect only new connections.
    pub fn set_http2(&self, http2: Http2) {
        *self.shared.http2.lock() = http2;
    }

    /// Returns the number of HTTP/2 connections so far.
    #[must_use]
    pub fn http2_connections(&self) -> usize {
        self.shared.http2_connections.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Connections end with the relay.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            if let Err(error) = forward(stream, &shared).await {
                tracing::debug!(%error, "a connection of the relay failed");
            }
        });
    }
}

async fn forward(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut start = Vec::new();
    while start.len() < PREFACE.len() && client.read_buf(&mut start).await? > 0 {}
    let is_http2 = start.starts_with(PREFACE);
    if is_http2 {
        shared.http2_connections.fetch_add(1, Ordering::SeqCst);
        let http2 = *shared.http2.lock();
        match http2 {
            Http2::Reject => {
                client.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await?;
                return client.shutdown().await;
            }
            Http2::Ignore => return client.read_to_end(&mut start).await.map(drop),
            Http2::Forward | Http2::LoseResponse | Http2::DiscardResponse => {}
        }
    }
    let mut server = TcpStream::connect((shared.target.0.as_str(), shared.target.1)).await?;
    server.write_all(&start).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let responses = async {
        let mut part = Vec::new();
        while from_server.read_buf(&mut part).await? > 0 {
            let http2 = *shared.http2.lock();
            match http2 {
                Http2::LoseResponse if is_http2 => return Ok(()),
                Http2::DiscardResponse if is_http2 => {}
                _ => to_client.write_all(&part).await?,
            }
            part.clear();
        }
        to_client.shutdown().await
    };
    tokio::select! {
        ended = responses => ended,
        ended = copy(&mut from_client, &mut to_server) => ended.map(drop),
    }
}
