//! Tracks connections, and closes an agent that is idle.
//!
//! ```text
//! open --no connection for the idle timeout, and no job to run or fetch--> closed
//! ```
//!
//! A closed agent refuses connections, so a manager that tries to connect starts a new agent.
//!
//! The agent keeps running while a connection is open, a job is running, or a finished job has not been closed, because its manager may
//! return at any time. If the agent's socket file was deleted and the agent does not listen on a TCP address, finished jobs no longer keep
//! the agent running. With an unattended timeout, the agent stops even if jobs are running or their results have not been fetched.

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

/// Counts the open connections.
#[derive(Debug)]
pub(crate) struct ConnectionTracker {
    connections: Mutex<Connections>,
    /// Whether no connection is open. Watchers are notified whenever a connection is opened or closed.
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
    /// Admits a connection. `None` means that the agent is closed for connections.
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

    /// Closes the agent for connections if none is open and `is_idle` returns true. No connection is admitted during that call. Returns whether
    /// the agent is closed.
    fn close_if(&self, is_idle: impl FnOnce() -> bool) -> bool {
        let mut connections = self.connections.lock();
        connections.is_closed = connections.open == 0 && is_idle();
        connections.is_closed
    }

    /// Waits until no connection has been open for `idle_timeout` and `is_idle` returns true. Then closes the agent for connections.
    ///
    /// If `is_idle` returns false, it is called again after another `idle_timeout`.
    pub(crate) async fn close_when_idle(&self, idle_timeout: Duration, is_idle: impl Fn() -> bool) {
        let mut is_empty = self.is_empty.subscribe();
        loop {
            if is_empty.wait_for(|empty| *empty).await.is_err() {
                // Cannot happen: the sender is a field of `self`.
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(idle_timeout) => if self.close_if(&is_idle) { return },
                _ = is_empty.changed() => {}
            }
        }
    }

    /// Accepts connections to the socket and to the address indefinitely. If `only_user` is set, connections of other users to the
    /// socket are closed.
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

/// Accepts connections to a socket indefinitely. If `only_user` is set, those of other users are closed.
fn accept(listener: UnixListener, only_user: Option<u32>) -> impl Stream<Item = UnixStream> {
    let refused = RefusedConnections::default();
    futures::stream::unfold((listener, refused), move |(listener, refused)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if only_user.is_some_and(|user| !is_of(&stream, user)) => {
                    if let Some(omitted) = refused.count() {
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

/// Returns whether the process at the other end of a connection runs as this user.
fn is_of(stream: &UnixStream, user: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == user)
}

/// An open connection that is counted until it is dropped.
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

/// A connection of either kind. No service depends on the kind.
#[derive(Debug)]
enum Transport {
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls a method of the stream of a [`TrackedConnection`].
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

/// A socket file, identified by device and inode, because another agent may replace the file at the same path.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

impl SocketFile {
    /// Returns the file that is currently at `path`.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), id: (metadata.dev(), metadata.ino()) })
    }

    /// Returns whether the file still exists.
    pub(crate) fn exists(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.id)
    }
}
