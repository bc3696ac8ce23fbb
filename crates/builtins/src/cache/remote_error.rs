//! Errors of transfers to and from an object store.

use std::io;

use muster_steps::failure::Failure;
use reqwest::StatusCode;

/// Reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The object does not exist.
    #[error("file does not exist")]
    Missing,
    /// The store answered with an error.
    #[error("received: {status}{reason}")]
    Status {
        /// HTTP status.
        status: StatusCode,
        /// Reason from the body of the response, or empty.
        reason: String,
    },
    /// The store is unreachable, or the connection broke.
    #[error("{0}")]
    Network(String),
    /// All retries of a range failed.
    #[error(
        "the transfer stopped at byte {position} of {length} after all retries; check the store and the network to it"
    )]
    Interrupted {
        /// Position of the first byte that was not received.
        position: u64,
        /// Length of the object.
        length: u64,
        /// Last error.
        source: Box<RemoteError>,
    },
    /// The received content is not the object's.
    #[error("the download of the cache is damaged: {0}")]
    Damaged(String),
    /// A file of this machine cannot be read or written. The text names the operation, such as "read `cache.zip`".
    #[error("failed to {0}")]
    File(String, #[source] io::Error),
    /// The HTTP client cannot be created, or a parameter of the transfer is invalid.
    #[error("{0}")]
    Setup(String),
    /// The transfer was stopped.
    #[error("stopped")]
    Stopped(muster_job::TerminationCause),
}

impl RemoteError {
    pub(super) fn network(error: reqwest::Error) -> Self {
        Self::Network(muster_job::error_chain(&error.without_url()))
    }

    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Network(_) | Self::Damaged(_) => true,
            Self::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Stopped(cause) => Self::Stopped(cause),
            RemoteError::File(operation, error) => Self::System(format!("failed to {operation}: {error}")),
            other => Self::Step(muster_job::error_chain(&other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_an_interrupted_transfer_has_the_cause() {
        let source = Box::new(RemoteError::Network("connection reset".to_owned()));
        let failure = Failure::from(RemoteError::Interrupted { position: 5, length: 9, source });
        let text = failure.to_string();
        assert!(text.contains("at byte 5 of 9") && text.ends_with(": connection reset"), "{text}");
    }
}
