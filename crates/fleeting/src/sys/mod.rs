//! Code of a plugin that differs between Unix and Windows. The modules `unix` and `windows` export the same names:
//!
//! - [`listen`] opens the plugin's listener and returns an [`Endpoint`] for the handshake.
//! - [`Signals`] and [`Parent`] decide when a plugin exits.

#[cfg(any(windows, test))]
mod loopback;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::path::PathBuf;

#[cfg(unix)]
pub(crate) use unix::{Parent, Signals, listen};
#[cfg(windows)]
pub(crate) use windows::{Parent, Signals, listen};

/// Address on which a plugin listens, as in the handshake (docs/spec/fleeting.md, section 1.4).
/// Dropping it removes the socket file.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `unix` or `tcp`.
    pub(crate) network: &'static str,
    /// Path of a socket, or address with a port.
    pub(crate) address: String,
    socket: Option<PathBuf>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
    }
}
