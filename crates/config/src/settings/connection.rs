//! How a coordinator is reached.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time during which the connections to a coordinator may be used again (`connection_max_age`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectionAge {
    /// No limit.
    #[default]
    Any,
    /// Maximum age of a connection.
    UpTo(Duration),
    /// Each call has a connection of its own.
    NoReuse,
}

/// `tls-ca-file`, `tls-cert-file`, `tls-key-file` of a runner; PEM all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsFiles {
    /// Certificates that are trusted beside those of the system.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<PathBuf>,
    /// The client's key.
    pub key: Option<PathBuf>,
}
