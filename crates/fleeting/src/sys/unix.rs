//! Unix: sockets, signals, and a parent process id that changes when the parent dies.

use std::path::{Path, PathBuf};

use rand::Rng as _;
use rustix::process::{Pid, getppid};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;

use super::Endpoint;
use crate::protocol::SOCKET_DIR_KEY;

/// Listens on a socket with a random name in the directory that the host requests.
///
/// # Errors
/// No socket can be created.
pub(crate) async fn listen() -> Result<(UnixListenerStream, Endpoint), String> {
    let directory = std::env::var_os(SOCKET_DIR_KEY).map_or_else(std::env::temp_dir, PathBuf::from);
    let mut last = None;
    for _ in 0..16 {
        let path = directory.join(format!("plugin{}", rand::rng().random::<u32>()));
        match UnixListener::bind(&path) {
            Ok(listener) => {
                let endpoint = Endpoint { network: "unix", address: plain(&path)?, socket: Some(path) };
                return Ok((UnixListenerStream::new(listener), endpoint));
            }
            Err(error) => last = Some(error),
        }
    }
    let cause = last.map(|error| error.to_string()).unwrap_or_default();
    Err(format!(
        "cannot listen on a socket in {}: {cause}; set TMPDIR to a directory that can be written",
        directory.display()
    ))
}

/// Returns the path as text if the handshake can contain it.
fn plain(path: &Path) -> Result<String, String> {
    let plain = path.to_str().filter(|path| !path.contains(['|', '\n']));
    plain.map(str::to_owned).ok_or_else(|| {
        let _ = std::fs::remove_file(path);
        format!("the socket's path {} cannot stand in a handshake; set TMPDIR to a plain path", path.display())
    })
}

/// Receives SIGINT and SIGTERM.
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

    /// Waits for SIGTERM.
    /// SIGINT from a terminal also reaches the host, which decides what happens (P9). Cancel-safe.
    pub(crate) async fn wait_termination(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => tracing::debug!("ignored SIGINT, because the host handles it"),
            }
        }
    }
}

/// The process that started this one.
#[derive(Debug)]
pub(crate) struct Parent(Option<Pid>);

impl Parent {
    /// Returns the current parent.
    pub(crate) fn new() -> Self {
        Self(getppid())
    }

    /// Returns whether the parent process has ended, so that this process has another parent.
    pub(crate) fn has_changed(&self) -> bool {
        getppid() != self.0
    }
}
