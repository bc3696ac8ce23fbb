//! Unix: sockets, signals, and a parent process ID that changes when the parent exits.

use std::io;
use std::path::{Path, PathBuf};

use rand::Rng as _;
use rustix::process::{Pid, getppid};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;

use super::Endpoint;
use crate::protocol::SOCKET_DIR_KEY;

/// Maximum number of random socket names to try.
const MAX_ATTEMPTS: u32 = 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error("failed to create a socket in {}; set TMPDIR to a writable directory", directory.display())]
    Bind { directory: PathBuf, source: io::Error },
    #[error("the handshake cannot contain the socket path {}; set TMPDIR to a plain path", path.display())]
    Path { path: PathBuf },
}

/// Listens on a socket with a random name.
/// Its directory is the one that the host requests, or else the temporary directory.
///
/// # Errors
/// [`ListenError`].
pub(crate) async fn listen() -> Result<(UnixListenerStream, Endpoint), ListenError> {
    let directory = std::env::var_os(SOCKET_DIR_KEY).map_or_else(std::env::temp_dir, PathBuf::from);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let path = directory.join(format!("plugin{}", rand::rng().random::<u32>()));
        match UnixListener::bind(&path) {
            Ok(listener) => {
                let endpoint = Endpoint { network: "unix", address: handshake_path(&path)?, socket: Some(path) };
                return Ok((UnixListenerStream::new(listener), endpoint));
            }
            Err(_) if attempts < MAX_ATTEMPTS => {}
            Err(source) => return Err(ListenError::Bind { directory, source }),
        }
    }
}

/// Returns the path as text if the handshake can contain it. Deletes the socket otherwise.
fn handshake_path(path: &Path) -> Result<String, ListenError> {
    let text = path.to_str().filter(|path| !path.contains(['|', '\n']));
    text.map(str::to_owned).ok_or_else(|| {
        let _ = std::fs::remove_file(path);
        ListenError::Path { path: path.to_owned() }
    })
}

pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for SIGTERM, and ignores SIGINT. Cancel-safe.
    ///
    /// SIGINT is ignored because a terminal also sends it to the host, which decides when the plugin exits (case P9).
    pub(crate) async fn wait_termination(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => tracing::debug!("ignored SIGINT, because the host handles it"),
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Parent(Option<Pid>);

impl Parent {
    pub(crate) fn new() -> Self {
        Self(getppid())
    }

    /// Returns whether the parent process has ended, so that this process has another parent.
    pub(crate) fn has_changed(&self) -> bool {
        getppid() != self.0
    }
}
