//! Unix: a socket in the host's directory, signals, and a parent that changes when it dies.

use std::path::{Path, PathBuf};

use rand::Rng as _;
use rustix::process::{Pid, getppid};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;

use super::Endpoint;
use crate::protocol::SOCKET_DIR_KEY;

/// A socket with a name of its own where the host wants it.
///
/// # Errors
/// There cannot be one, with the remedy.
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

/// A path that can stand in the handshake.
fn plain(path: &Path) -> Result<String, String> {
    let plain = path.to_str().filter(|path| !path.contains(['|', '\n']));
    plain.map(str::to_owned).ok_or_else(|| {
        let _ = std::fs::remove_file(path);
        format!("the socket's path {} cannot stand in a handshake; set TMPDIR to a plain path", path.display())
    })
}

/// SIGINT and SIGTERM, as a plugin hears them.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// They are heard from now on.
    ///
    /// # Errors
    /// The system does not let them be heard.
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the one that says to end. At a terminal SIGINT goes to the host too, which says what to do (P9). Cancel-safe.
    pub(crate) async fn end(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => tracing::debug!("an interrupt is left to the host"),
            }
        }
    }
}

/// The process that started this one.
#[derive(Debug)]
pub(crate) struct Parent(Option<Pid>);

impl Parent {
    /// As it is now.
    pub(crate) fn new() -> Self {
        Self(getppid())
    }

    /// It is no more: another process took its place.
    pub(crate) fn is_gone(&self) -> bool {
        getppid() != self.0
    }
}
