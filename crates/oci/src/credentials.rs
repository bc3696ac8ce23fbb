//! Credentials for registries.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;
use std::{fmt, io};

/// User name and password for a registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name, or empty with an identity token.
    pub username: String,
    /// Password, access token or identity token.
    pub password: String,
    /// Whether the password is an identity token, which is exchanged for an access token.
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
    #[error("failed to {operation} {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Failed operation: `read` or `write`.
        operation: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content of the file is invalid.
    #[error("{}: {problem}; fix Docker's configuration file or move it away", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the content.
        problem: String,
    },
    /// The file is not valid JSON.
    #[error("failed to parse {}; fix Docker's configuration file or move it away", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// A credential helper failed.
    #[error("docker-credential-{helper}, which {} specifies, failed", config.display())]
    Helper {
        /// Name of the helper, without the prefix `docker-credential-`.
        helper: String,
        /// Path of the file that specifies the helper.
        config: PathBuf,
        /// Reason. Boxed to keep errors small.
        source: Box<HelperError>,
    },
    /// Neither `DOCKER_CONFIG` nor `HOME` is set.
    #[error("no directory for credentials; set HOME or DOCKER_CONFIG")]
    NoHome,
}

/// Reason why a credential helper failed.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The name is empty, or contains invalid characters.
    #[error("invalid name of a credential helper; use only letters, digits, `-`, `_` and `.`")]
    Name,
    /// The helper cannot be started, or its output cannot be read.
    #[error("failed to run the helper; check that it is installed in a directory of PATH")]
    Run(#[source] io::Error),
    /// The helper did not exit in time.
    #[error("no response to {verb} within {} s", timeout.as_secs())]
    Timeout {
        /// The helper's command.
        verb: String,
        /// Timeout of the helper.
        timeout: Duration,
    },
    /// The helper's response is invalid.
    #[error("the helper's response is not a JSON object with Username and Secret")]
    Response,
    /// The helper exited with an error.
    #[error("{verb} failed ({status}): {message}")]
    Failed {
        /// The helper's command.
        verb: String,
        /// Exit status of the helper.
        status: ExitStatus,
        /// Start of the standard output, or else of the standard error.
        message: String,
    },
}
