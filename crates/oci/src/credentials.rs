//! Credentials for registries.

use std::fmt;
use std::path::PathBuf;

/// User name and password for a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name. Empty with an identity token.
    pub username: String,
    /// Password or access token.
    pub password: String,
    /// Whether the password is an identity token, which must be exchanged for an access token.
    pub is_identity_token: bool,
}

impl Credentials {
    /// Creates credentials from a user name and a password.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: username.into(), password: password.into(), is_identity_token: false }
    }
}

impl fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Reason why credentials cannot be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read or written.
    #[error("{}: cannot be {what}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The failed operation, as a participle.
        what: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The content of the file is invalid.
    #[error("{}: {what}; it is the configuration file of docker, fix it or move it away", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with the content.
        what: String,
    },
    /// A credential helper failed.
    #[error("docker-credential-{helper}: {what}; it is named in {}", config.display())]
    Helper {
        /// Name of the helper, without the prefix `docker-credential-`.
        helper: String,
        /// What went wrong.
        what: String,
        /// Path of the file that names the helper.
        config: PathBuf,
    },
    /// Neither `DOCKER_CONFIG` nor `HOME` is set.
    #[error("there is no home directory to keep credentials in; set HOME or DOCKER_CONFIG")]
    NoHome,
}
