//! Why a plugin does not run.

use std::path::PathBuf;
use std::time::Duration;

use super::handshake::HandshakeError;
use crate::model::ConnectorConfigError;

/// Why a plugin could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The executable does not run.
    #[error("plugin {}: cannot be run; is it there, executable, and made for this system?", path.display())]
    Spawn {
        /// The executable.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A directory for its socket.
    #[error("plugin {}: no directory for its socket can be made", path.display())]
    Directory {
        /// The executable.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It ended before it was ready.
    #[error("plugin {}: exited before the handshake ({status}){said}", path.display())]
    Exited {
        /// The executable.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// Its last words, ready to be appended.
        said: String,
    },
    /// It said nothing in time.
    #[error("plugin {}: timeout while waiting for plugin to start: no handshake within {} s{said}", path.display(), limit.as_secs())]
    Silent {
        /// The executable.
        path: PathBuf,
        /// How long it had.
        limit: Duration,
        /// Its last words, ready to be appended.
        said: String,
    },
    /// Its first line is no handshake this host can use.
    #[error("plugin {} ({about})", path.display())]
    Handshake {
        /// The executable.
        path: PathBuf,
        /// What kind of file it is.
        about: String,
        /// What is wrong.
        source: HandshakeError,
    },
    /// Nobody answers where it says that it listens.
    #[error("plugin {}: cannot be reached at {address}: {cause}", path.display())]
    Connect {
        /// The executable.
        path: PathBuf,
        /// Where.
        address: String,
        /// Why.
        cause: String,
    },
    /// The settings cannot be given to any plugin.
    #[error("plugin {}", path.display())]
    Settings {
        /// The executable.
        path: PathBuf,
        /// What is wrong.
        source: ConnectorConfigError,
    },
    /// It refused its settings.
    #[error("plugin {}: Init failed: {message}", path.display())]
    Init {
        /// The executable.
        path: PathBuf,
        /// Its words.
        message: String,
    },
    /// After a restart it speaks for another group.
    #[error("plugin {}: after its restart it speaks for the group {found:?} instead of {wanted:?}; nothing is done until it is back", path.display())]
    OtherGroup {
        /// The executable.
        path: PathBuf,
        /// The group before.
        wanted: String,
        /// The group now.
        found: String,
    },
}
