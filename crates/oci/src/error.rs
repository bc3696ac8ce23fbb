//! What can go wrong at a registry.

use std::path::PathBuf;

/// Why a registry did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// No answer.
    #[error("{url}: no answer: {cause}; is the registry's name right, and can it be reached from here?")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// Reason.
        cause: String,
    },
    /// It wants to know who asks, or does not let them.
    #[error("{url}: {registry} refuses access ({why})")]
    Refused {
        /// What was asked for.
        url: String,
        /// The registry.
        registry: String,
        /// What it said, and with which credentials it was asked.
        why: String,
    },
    /// It has no such thing.
    #[error("{url}: not found at the registry; is {what} spelt right?")]
    NotFound {
        /// What was asked for.
        url: String,
        /// The name that may be wrong.
        what: String,
    },
    /// Any other answer.
    #[error("{url}: the registry answered {status}: {said}")]
    Status {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The start of its words.
        said: String,
    },
    /// More than a thing of this kind may have.
    #[error("{url}: more than {limit} bytes; nothing of this kind is so large, and it was not read on")]
    TooLarge {
        /// What was asked for.
        url: String,
        /// The limit.
        limit: u64,
    },
    /// The content is not what its digest says.
    #[error(
        "{url}: the content has the digest {found}, and {wanted} was announced: it was changed on the way or at the registry; it was thrown away"
    )]
    Digest {
        /// What was asked for.
        url: String,
        /// What was announced.
        wanted: String,
        /// What came.
        found: String,
    },
    /// An answer that makes no sense.
    #[error("{url}: {what}")]
    Nonsense {
        /// What was asked for.
        url: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// This side.
    #[error("{}: cannot be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The HTTP client.
    #[error("no HTTP client can be made: {0}")]
    Setup(String),
}
