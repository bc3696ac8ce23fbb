//! Errors of the registry client.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::digest::DigestError;

/// URL for messages, without the parts that may contain secrets: user, query and fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownUrl(String);

impl From<&Url> for ShownUrl {
    fn from(url: &Url) -> Self {
        let mut shown = url.clone();
        shown.set_query(None);
        shown.set_fragment(None);
        // Both fail only for URLs that cannot have a user.
        let _ = shown.set_username("").and_then(|()| shown.set_password(None));
        Self(shown.into())
    }
}

impl From<&str> for ShownUrl {
    fn from(url: &str) -> Self {
        match Url::parse(url) {
            Ok(url) if !url.cannot_be_a_base() => Self::from(&url),
            // The name of a repository, or an invalid URL.
            _ => Self(url.split(['?', '#']).next().unwrap_or_default().to_owned()),
        }
    }
}

impl From<Url> for ShownUrl {
    fn from(url: Url) -> Self {
        Self::from(&url)
    }
}

impl fmt::Display for ShownUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) fn is_transient_status(status: u16) -> bool {
    status == 429 || (500..600).contains(&status)
}

/// Reason why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry did not respond, the connection broke, or a redirect was rejected.
    #[error("{url}: no response; check the name of the registry and the network")]
    Unreachable {
        /// Requested URL.
        url: ShownUrl,
        /// Error of the HTTP client, without the URL.
        source: reqwest::Error,
    },
    /// No data was transferred for too long.
    #[error("{url}: no data was transferred for {} s; check the network and start again", timeout.as_secs())]
    Idle {
        /// Requested URL.
        url: ShownUrl,
        /// Time without a transfer.
        timeout: Duration,
    },
    /// The registry did not answer after all content was sent.
    #[error(
        "{url}: all {size} bytes were sent, but the registry did not answer within {} s; start the upload again; content \
         that the registry has stored is not sent again", timeout.as_secs()
    )]
    NoAnswer {
        /// Requested URL.
        url: ShownUrl,
        /// Size of the content in bytes.
        size: u64,
        /// Time without an answer.
        timeout: Duration,
    },
    /// The connection was closed before the end of a download.
    #[error(
        "{url}: the connection was closed after {received} of {size} bytes; start the download again to continue it"
    )]
    Incomplete {
        /// Requested URL.
        url: ShownUrl,
        /// Number of bytes received so far.
        received: u64,
        /// Size of the content in bytes.
        size: u64,
    },
    /// The download took too long.
    #[error("{url}: the download was not complete after {} s; start it again to continue it", timeout.as_secs())]
    Timeout {
        /// Requested URL.
        url: ShownUrl,
        /// Timeout of the download.
        timeout: Duration,
    },
    /// The registry or its token server denies access, or requires a login that this client does not support or has no
    /// credentials for.
    #[error("{url}: {registry} denies access ({reason})")]
    Refused {
        /// Requested URL.
        url: ShownUrl,
        /// Name of the registry.
        registry: String,
        /// HTTP status, or why this client cannot log in. Followed by the user name, if there is one.
        reason: String,
    },
    /// The registry does not have the requested content.
    #[error("{url}: not found at the registry; check the spelling of {name}")]
    NotFound {
        /// Requested URL.
        url: ShownUrl,
        /// Name that may be misspelled.
        name: String,
    },
    /// The registry responded with another error.
    #[error("{url}: the registry responded with status {status}: {body}")]
    Status {
        /// Requested URL.
        url: ShownUrl,
        /// HTTP status.
        status: u16,
        /// Start of the response.
        body: String,
    },
    /// The content exceeds the limit for its kind, or the size in its descriptor.
    #[error("{url}: larger than {limit} bytes, the maximum for this content")]
    TooLarge {
        /// Requested URL.
        url: ShownUrl,
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
        url: ShownUrl,
        /// Expected digest.
        expected: String,
        /// Digest of the content.
        found: String,
    },
    /// The response is invalid.
    #[error("{url}: invalid response")]
    InvalidResponse {
        /// Requested URL.
        url: ShownUrl,
        /// Problem with the response.
        source: ResponseError,
    },
    /// A local file or directory cannot be created, read or written.
    #[error("failed to access {}", path.display())]
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
    /// The tag or digest refers to a single image instead of an index.
    #[error(
        "the tag or digest refers to a single image instead of an index; publish an index with an image for each platform"
    )]
    NotAnIndex,
    /// The index refers to another index.
    #[error("the index contains another index; publish an index whose entries are images")]
    NestedIndex,
    /// The URL for tokens or for an upload is invalid.
    #[error("invalid URL for tokens or for the upload")]
    Url(#[from] url::ParseError),
    /// The URL for tokens does not use HTTPS.
    #[error("the registry {registry} names a URL for tokens without https; https is required")]
    InsecureTokenUrl {
        /// Name of the registry.
        registry: String,
    },
    /// The URL for the upload does not use HTTPS, although the registry does.
    #[error("the registry asks to upload the content without https; https is required")]
    InsecureUpload,
    /// The response to the start of an upload has no URL for the content.
    #[error("the response has no address for the upload")]
    NoLocation,
    /// The response has another part of the content than requested.
    #[error("the response has another part of the content than requested")]
    OtherRange,
    /// The response contains no token.
    #[error("the response contains no token")]
    NoToken,
}

impl RegistryError {
    /// Wraps an error of the HTTP client, without its URL, because redirects can contain secrets.
    pub(crate) fn unreachable(url: impl Into<ShownUrl>, error: reqwest::Error) -> Self {
        Self::Unreachable { url: url.into(), source: error.without_url() }
    }

    /// Returns whether the same request may succeed if it is sent again.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { source, .. } => !source.is_redirect() && !source.is_builder(),
            Self::Idle { .. } => true,
            Self::Status { status, .. } => is_transient_status(*status),
            _ => false,
        }
    }

    pub(crate) fn invalid(url: impl Into<ShownUrl>, source: impl Into<ResponseError>) -> Self {
        Self::InvalidResponse { url: url.into(), source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_url_has_no_secrets() {
        for (url, shown) in [
            ("https://one.example/v2/a/blobs/1?sig=secret#secret", "https://one.example/v2/a/blobs/1"),
            ("https://user:secret@one.example:5000/v2/", "https://one.example:5000/v2/"),
            ("localhost:5000/app", "localhost:5000/app"),
            ("not a url?secret", "not a url"),
        ] {
            assert_eq!(ShownUrl::from(url).to_string(), shown);
        }
        let error = RegistryError::Idle { url: "https://one.example/?secret".into(), timeout: Duration::ZERO };
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}
