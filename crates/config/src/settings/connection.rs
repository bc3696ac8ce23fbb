//! How the manager connects to a coordinator.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum age of reused connections to a coordinator (`connection_max_age`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionAge {
    /// No limit.
    #[default]
    Any,
    /// Maximum age of a connection.
    UpTo(Duration),
    /// Each call opens a new connection.
    NoReuse,
}

/// `tls-ca-file`, `tls-cert-file` and `tls-key-file` of a runner. All are PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsFiles {
    /// Certificates that are trusted in addition to the system's.
    pub ca: Option<PathBuf>,
    /// Certificate of the client.
    pub certificate: Option<PathBuf>,
    /// Private key of the client.
    pub key: Option<PathBuf>,
}
