//! What differs between the systems that plugins run on: Unix, and Windows. Both have the same names:
//!
//! - [`listen`]: where a plugin waits for its host, an [`Endpoint`] for the handshake;
//! - [`Signals`], [`Parent`]: when a plugin ends.
//!
//! The host, and what only a host needs, is for Unix.

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

/// Where a plugin listens, in the words of the handshake (fleeting.md 1.4). What is in the file system for it is removed when
/// this is dropped.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// `unix` or `tcp`.
    pub(crate) network: &'static str,
    /// A path, or an address with a port.
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
