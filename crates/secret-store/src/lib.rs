//! Fetches the secrets of jobs from HashiCorp Vault or OpenBao, which have the same API (docs/spec/runner-api.md,
//! section 2.5.11).
//!
//! ```text
//! VaultSecret --login with the job's ID token--> token --read--> field --> Secret
//! ```
//!
//! The manager fetches the secrets, as in gitlab-runner, so only the manager must reach the server. Each job logs in
//! with its own ID token, so the policies of the server decide which job reads which secret. A [`VaultSession`] keeps
//! tokens of the server only in memory, and does not log them.

mod error;
mod options;
mod session;
mod transport;

pub use error::VaultError;
pub use options::VaultOptions;
pub use session::VaultSession;

use muster_job::Secret;
use serde::Deserialize;

/// Field of a secret on a server, with the login by which a job may read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultSecret {
    /// Server, and the login there.
    pub server: VaultServer,
    /// Secrets engine.
    pub engine: Engine,
    /// Path of the secret below the engine's path.
    pub path: String,
    /// Name of the field.
    pub field: String,
}

/// Server with a login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultServer {
    /// URL of the server, without `/v1`.
    pub url: String,
    /// Namespace. Empty means the root namespace.
    pub namespace: String,
    /// Path of the login in the API, for example `auth/jwt/login`.
    pub login_path: String,
    /// ID token of the job.
    pub jwt: Secret,
    /// `None` means the default role of the server's auth method.
    pub role: Option<String>,
}

/// Secrets engine of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Engine {
    /// Name: `kv-v2`, `kv-v1` or `generic`.
    #[serde(default)]
    pub name: String,
    /// Path at which the engine is mounted.
    #[serde(default)]
    pub path: String,
}
