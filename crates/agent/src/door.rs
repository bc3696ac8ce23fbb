//! Who is connected, and the end of an agent that nobody needs.
//!
//! ```text
//! open --nobody inside for the limit, nothing left to be fetched--> shut: whoever comes now is sent away, and starts a new agent
//! ```
//!
//! Nobody tells an agent that its manager is gone for good, so its connections do: while one is open, the agent stays. What
//! it still holds for a manager keeps it too: a job that runs, and one that ended and was not closed. Where its socket was
//! removed, nobody can ever fetch what it holds, and only running jobs count.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// A system that cannot give a connection now, mostly for want of file descriptors, is asked again after this.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Counts who is inside.
#[derive(Debug)]
pub(crate) struct Door {
    inside: Mutex<Inside>,
    /// Changes when somebody comes or goes; whether nobody is inside.
    is_empty: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inside {
    visits: usize,
    is_shut: bool,
}

impl Default for Door {
    fn default() -> Self {
        Self { inside: Mutex::default(), is_empty: watch::Sender::new(true) }
    }
}

impl Door {
    /// Lets a connection in, unless the door is shut.
    fn enter(self: &Arc<Self>, stream: UnixStream) -> Option<Visit> {
        let mut inside = self.inside.lock();
        if inside.is_shut {
            return None;
        }
        inside.visits += 1;
        self.is_empty.send_replace(false);
        Some(Visit { stream, door: Arc::clone(self) })
    }

    fn leave(&self) {
        let mut inside = self.inside.lock();
        inside.visits -= 1;
        self.is_empty.send_replace(inside.visits == 0);
    }

    /// Shuts the door if nobody is inside and `may` says so; nobody comes in meanwhile.
    fn shut_if(&self, may: impl FnOnce() -> bool) -> bool {
        let mut inside = self.inside.lock();
        inside.is_shut = inside.visits == 0 && may();
        inside.is_shut
    }

    /// Waits until nobody was inside for `limit` and `may` says yes, and shuts the door then. What `may` refuses is asked
    /// again after another `limit`.
    pub(crate) async fn shut_when_idle(&self, limit: Duration, may: impl Fn() -> bool) {
        let mut is_empty = self.is_empty.subscribe();
        loop {
            if is_empty.wait_for(|empty| *empty).await.is_err() {
                // The sender is in `self`.
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(limit) => if self.shut_if(&may) { return },
                _ = is_empty.changed() => {}
            }
        }
    }

    /// The connections that come in, for ever.
    pub(crate) fn visits(self: Arc<Self>, listener: UnixListener) -> impl Stream<Item = io::Result<Visit>> {
        futures::stream::unfold((self, listener), |(door, listener)| async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        if let Some(visit) = door.enter(stream) {
                            return Some((Ok(visit), (door, listener)));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        tracing::warn!(%error, "a connection cannot be taken for the moment");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                }
            }
        })
    }
}

/// A connection that counts.
#[derive(Debug)]
pub(crate) struct Visit {
    stream: UnixStream,
    door: Arc<Door>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.door.leave();
    }
}

impl Connected for Visit {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Visit {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// A file by its identity: another agent may have made one of the same name since.
#[derive(Debug)]
pub(crate) struct Owned {
    path: PathBuf,
    id: (u64, u64),
}

impl Owned {
    /// The file that is at `path` now.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), id: (found.dev(), found.ino()) })
    }

    /// Whether it is still there.
    pub(crate) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.id)
    }
}
