//! Who asks a registry.

use std::fmt;
use std::path::PathBuf;

/// A login.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Its name; empty with an identity token.
    pub username: String,
    /// Its password, or an access token in the place of one.
    pub password: String,
    /// The password is an identity token: it is exchanged, not shown.
    pub is_identity_token: bool,
}

impl Credentials {
    /// A name and a password.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: username.into(), password: password.into(), is_identity_token: false }
    }
}

impl fmt::Debug for Credentials {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Why credentials cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file.
    #[error("{}: cannot be {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Its content.
    #[error("{}: {what}; it is the configuration file of docker, fix it or move it away", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A program that keeps credentials.
    #[error("docker-credential-{helper}: {what}; it is named in {}", config.display())]
    Helper {
        /// Its name.
        helper: String,
        /// What went wrong.
        what: String,
        /// The file that names it.
        config: PathBuf,
    },
    /// No place for the file.
    #[error("there is no home directory to keep credentials in; set HOME or DOCKER_CONFIG")]
    NoHome,
}
