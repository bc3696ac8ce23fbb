//! Errors of the registry client.

use std::path::PathBuf;
use std::time::Duration;

use crate::digest::DigestError;

/// Reason why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry did not respond, or the connection broke.
    #[error("{url}: no response; check the name of the registry and the network")]
    Unreachable {
        /// Requested URL.
        url: String,
        /// Error of the HTTP client, without the URL.
        source: reqwest::Error,
    },
    /// No data was transferred for too long.
    #[error("{url}: no data was transferred for {} s; check the network and start again", timeout.as_secs())]
    Idle {
        /// Requested URL.
        url: String,
        /// Time without a transfer.
        timeout: Duration,
    },
    /// The connection was closed before the end of a download.
    #[error(
        "{url}: the connection was closed after {received} of {size} bytes; start the download again to continue it"
    )]
    Incomplete {
        /// Requested URL.
        url: String,
        /// Number of bytes received so far.
        received: u64,
        /// Size of the content in bytes.
        size: u64,
    },
    /// The download took too long.
    #[error("{url}: the download was not complete after {} s; start it again to continue it", timeout.as_secs())]
    Timeout {
        /// Requested URL.
        url: String,
        /// Timeout of the download.
        timeout: Duration,
    },
    /// The registry requires a login or denies access.
    #[error("{url}: {registry} denies access ({reason})")]
    Refused {
        /// Requested URL.
        url: String,
        /// Name of the registry.
        registry: String,
        /// The registry's reason, and the user name that was sent.
        reason: String,
    },
    /// The registry does not have the requested content.
    #[error("{url}: not found at the registry; check the spelling of {name}")]
    NotFound {
        /// Requested URL.
        url: String,
        /// Name that may be misspelled.
        name: String,
    },
    /// The registry responded with another error.
    #[error("{url}: the registry responded with status {status}: {body}")]
    Status {
        /// Requested URL.
        url: String,
        /// HTTP status.
        status: u16,
        /// Start of the response.
        body: String,
    },
    /// The content exceeds the limit for its kind.
    #[error("{url}: larger than {limit} bytes, the limit for this kind of content")]
    TooLarge {
        /// Requested URL.
        url: String,
        /// Limit in bytes.
        limit: u64,
    },
    /// The content does not match its digest.
    #[error(
        "{url}: the content has the digest {found}, expected {expected}; it was changed at the registry or in transit, and \
         was discarded"
    )]
    Digest {
        /// Requested URL.
        url: String,
        /// Expected digest.
        expected: String,
        /// Digest of the content.
        found: String,
    },
    /// The response is invalid.
    #[error("{url}: invalid response")]
    InvalidResponse {
        /// Requested URL.
        url: String,
        /// Problem with the response.
        source: ResponseError,
    },
    /// A local file cannot be written.
    #[error("failed to write {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The name of the registry or repository cannot be part of a URL.
    #[error("{name} is not a valid name of a registry or repository")]
    Name {
        /// The invalid name.
        name: String,
        /// Problem with the URL.
        source: url::ParseError,
    },
    /// The HTTP client cannot be created.
    #[error("failed to create an HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Problem with the response of a registry.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    /// The response is not the expected JSON document.
    #[error("unexpected JSON")]
    Json(#[from] serde_json::Error),
    /// A digest has an invalid format.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// A list of tags or repositories is too long.
    #[error("the list has more than {0} pages")]
    TooManyPages(usize),
    /// The tag points to an image without a platform.
    #[error("the tag points to the image of a single, unnamed platform; publish an index of platforms")]
    NotAnIndex,
    /// The index refers to another index.
    #[error("the index contains another index; publish an index whose entries are images")]
    NestedIndex,
    /// The URL for tokens is invalid.
    #[error("invalid URL for tokens")]
    TokenUrl(#[from] url::ParseError),
    /// The URL for tokens is not encrypted.
    #[error("the registry {registry} names a URL for tokens without https; https is required")]
    InsecureTokenUrl {
        /// Name of the registry.
        registry: String,
    },
    /// The response to the start of an upload has no address for the content.
    #[error("the response has no address for the upload")]
    NoLocation,
    /// The response contains no token.
    #[error("the response contains no token")]
    NoToken,
}

impl RegistryError {
    /// Wraps an error of the HTTP client.
    /// The URL is removed from the error, because redirects can contain secrets.
    pub(crate) fn unreachable(url: impl Into<String>, error: reqwest::Error) -> Self {
        Self::Unreachable { url: url.into(), source: error.without_url() }
    }

    /// Returns whether the same request may succeed if it is sent again.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !source.is_redirect() && !source.is_builder(),
            Self::Idle { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn invalid(url: impl Into<String>, source: impl Into<ResponseError>) -> Self {
        Self::InvalidResponse { url: url.into(), source: source.into() }
    }
}
