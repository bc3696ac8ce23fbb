//! Errors of the registry client.

use std::path::PathBuf;

/// Reason why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry did not respond.
    #[error("{url}: no answer: {cause}; is the registry's name right, and can it be reached from here?")]
    Unreachable {
        /// Requested URL.
        url: String,
        /// Cause of the failure.
        cause: String,
    },
    /// The registry requires a login or denies access.
    #[error("{url}: {registry} refuses access ({why})")]
    Refused {
        /// Requested URL.
        url: String,
        /// Name of the registry.
        registry: String,
        /// The registry's reason, and the user name that was sent.
        why: String,
    },
    /// The registry does not have the requested content.
    #[error("{url}: not found at the registry; is {what} spelt right?")]
    NotFound {
        /// Requested URL.
        url: String,
        /// Name that may be misspelled.
        what: String,
    },
    /// The registry responded with another error.
    #[error("{url}: the registry answered {status}: {said}")]
    Status {
        /// Requested URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// Start of the response.
        said: String,
    },
    /// The content exceeds the limit for its kind.
    #[error("{url}: more than {limit} bytes; nothing of this kind is so large, and it was not read on")]
    TooLarge {
        /// Requested URL.
        url: String,
        /// Limit in bytes.
        limit: u64,
    },
    /// The content does not match its digest.
    #[error(
        "{url}: the content has the digest {found}, and {wanted} was announced: it was changed on the way or at the registry; it was thrown away"
    )]
    Digest {
        /// Requested URL.
        url: String,
        /// Expected digest.
        wanted: String,
        /// Digest of the content.
        found: String,
    },
    /// The response is invalid.
    #[error("{url}: {what}")]
    Nonsense {
        /// Requested URL.
        url: String,
        /// What is wrong with the response.
        what: String,
    },
    /// A local file cannot be written.
    #[error("{}: cannot be written", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The HTTP client cannot be created.
    #[error("no HTTP client can be made: {0}")]
    Setup(String),
}
