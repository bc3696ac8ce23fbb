//! Tracks connections, and closes an idle agent.
//!
//! ```text
//! open --no connection for the idle timeout, no running job, and no result to fetch--> closed
//! ```
//!
//! A closed agent refuses connections, so that its manager starts a new agent.
//!
//! A running job keeps the agent open. A finished job that was not closed also does, but only while managers can still
//! connect. If no connection was open for the unattended timeout, the agent stops even if it has jobs.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::refused::RefusedConnections;
use crate::tls::{ACCEPT_RETRY_DELAY, TlsListener};

#[derive(Debug)]
pub(crate) struct ConnectionTracker {
    connections: Mutex<Connections>,
    /// Whether no connection is open. Changes notify watchers.
    is_empty: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Connections {
    open: usize,
    is_closed: bool,
}

impl Default for ConnectionTracker {
    fn default() -> Self {
        Self { connections: Mutex::default(), is_empty: watch::Sender::new(true) }
    }
}

impl ConnectionTracker {
    fn admit(self: &Arc<Self>, stream: Transport) -> Option<TrackedConnection> {
        let mut connections = self.connections.lock();
        if connections.is_closed {
            return None;
        }
        connections.open += 1;
        self.is_empty.send_replace(false);
        Some(TrackedConnection { stream, tracker: Arc::clone(self) })
    }

    fn release(&self) {
        let mut connections = self.connections.lock();
        connections.open -= 1;
        self.is_empty.send_replace(connections.open == 0);
    }

    /// Closes the agent if no connection is open and `is_idle` returns true. Returns whether the agent is closed.
    fn close_if(&self, is_idle: impl FnOnce() -> bool) -> bool {
        let mut connections = self.connections.lock();
        connections.is_closed = connections.open == 0 && is_idle();
        connections.is_closed
    }

    /// Closes the agent when no connection was open for `idle_timeout` and `is_idle` returns true. If `is_idle` returns
    /// false, calls it again after another `idle_timeout` without a connection.
    pub(crate) async fn close_when_idle(&self, idle_timeout: Duration, is_idle: impl Fn() -> bool) {
        let mut is_empty = self.is_empty.subscribe();
        loop {
            if is_empty.wait_for(|empty| *empty).await.is_err() {
                // Cannot happen, because `self` has the sender.
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(idle_timeout) => if self.close_if(&is_idle) { return },
                _ = is_empty.changed() => {}
            }
        }
    }

    /// Accepts connections to `socket` and to the address of `tcp` indefinitely. If `only_user` is set, refuses
    /// connections of other users to the socket.
    pub(crate) fn accept(
        self: Arc<Self>,
        socket: UnixListener,
        only_user: Option<u32>,
        tcp: Option<TlsListener>,
    ) -> impl Stream<Item = io::Result<TrackedConnection>> {
        let tls = match tcp {
            Some(tcp) => tcp.accept().map(|stream| Transport::Tls(Box::new(stream))).boxed(),
            None => futures::stream::pending().boxed(),
        };
        let streams = futures::stream::select(accept(socket, only_user).map(Transport::Unix), tls);
        streams.filter_map(move |stream| std::future::ready(self.admit(stream).map(Ok)))
    }
}

fn accept(listener: UnixListener, only_user: Option<u32>) -> impl Stream<Item = UnixStream> {
    let refused = RefusedConnections::default();
    futures::stream::unfold((listener, refused), move |(listener, refused)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if only_user.is_some_and(|user| !is_from_user(&stream, user)) => {
                    if let Some(omitted) = refused.count_refusal() {
                        tracing::warn!(omitted, error = "the process belongs to another user", "connection refused");
                    }
                }
                Ok((stream, _)) => return Some((stream, (listener, refused))),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection, retrying");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    })
}

fn is_from_user(stream: &UnixStream, user: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == user)
}

#[derive(Debug)]
pub(crate) struct TrackedConnection {
    stream: Transport,
    tracker: Arc<ConnectionTracker>,
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        self.tracker.release();
    }
}

impl Connected for TrackedConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[derive(Debug)]
enum Transport {
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! stream {
    ($connection:expr, $method:ident $(, $argument:expr)*) => {
        match &mut $connection.get_mut().stream {
            Transport::Unix(stream) => Pin::new(stream).$method($($argument),*),
            Transport::Tls(stream) => Pin::new(stream).$method($($argument),*),
        }
    };
}

impl AsyncRead for TrackedConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_read, cx, buf)
    }
}

impl AsyncWrite for TrackedConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        stream!(self, poll_write, cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        stream!(self, poll_write_vectored, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Transport::Unix(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_shutdown, cx)
    }
}

/// Socket file with its device and inode, because another agent may replace the file at this path.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), id: (metadata.dev(), metadata.ino()) })
    }

    pub(crate) fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.id)
    }
}
