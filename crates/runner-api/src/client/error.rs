//! Errors of calls, by the reaction that they require.

use std::time::Duration;

use muster_job::JobStatus;
use url::Url;

/// Reason why a call failed, without tokens.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// 401, 403, 404 or 410: the token or the job is invalid. A job must then be stopped (docs/spec/runner-api.md,
    /// sections 3.1 and 4.2).
    ///
    /// For a trace, 401, 404 and 410 are [`Self::Transient`]. For an update, 401 and 410 without `Job-Status` are
    /// [`Self::Rejected`].
    #[error("{call}: the coordinator denied the request: {code} {message}")]
    Forbidden {
        /// Name of the call.
        call: &'static str,
        /// Status code.
        code: u16,
        /// Header `Job-Status`, if present.
        status: Option<JobStatus>,
        /// Message from the coordinator.
        message: String,
    },
    /// The coordinator is unreachable, slow, overloaded or has an internal error. A retry may succeed.
    #[error("{call}: {message}")]
    Transient {
        /// Name of the call.
        call: &'static str,
        /// Status code. `None` means no response.
        code: Option<u16>,
        /// Minimum time before a retry, if the server requires one.
        retry_after: Option<Duration>,
        /// Header `Job-Status`, if present.
        status: Option<JobStatus>,
        /// Description of the failure.
        message: String,
    },
    /// Any other status. A retry does not help.
    #[error("{call}: the coordinator rejected the request: {code} {message}")]
    Rejected {
        /// Name of the call.
        call: &'static str,
        /// Status code.
        code: u16,
        /// Message from the coordinator.
        message: String,
    },
    /// The coordinator redirects to another URL of the same host, for the same call (docs/spec/runner-api.md, section
    /// 5.1).
    #[error("{call}: the coordinator redirects to {}{}", .to.origin().ascii_serialization(), .to.path())]
    Redirected {
        /// Name of the call.
        call: &'static str,
        /// URL of the coordinator for the call. May contain a password.
        to: Box<Url>,
    },
    /// The response violates the protocol, for example with a wrong content type.
    #[error(
        "{call}: invalid response: {message}; check that the URL is that of a GitLab server or a Muster coordinator"
    )]
    Protocol {
        /// Name of the call.
        call: &'static str,
        /// Description of the violation.
        message: String,
    },
    /// The client cannot be created.
    #[error("invalid coordinator URL or TLS settings: {0}")]
    Setup(String),
    /// The request cannot be created.
    #[error("{call}: failed to create the request: {message}")]
    Request {
        /// Name of the call.
        call: &'static str,
        /// Reason.
        message: String,
    },
}

impl ClientError {
    /// Returns the error of a call without a response.
    #[must_use]
    pub fn unreachable(call: &'static str, message: impl Into<String>) -> Self {
        Self::Transient { call, code: None, retry_after: None, status: None, message: message.into() }
    }

    pub(super) fn message(&self) -> &str {
        match self {
            Self::Forbidden { message, .. }
            | Self::Transient { message, .. }
            | Self::Rejected { message, .. }
            | Self::Protocol { message, .. }
            | Self::Request { message, .. }
            | Self::Setup(message) => message,
            Self::Redirected { .. } => "the coordinator redirects to another URL",
        }
    }

    /// Returns `Some` if a retry may succeed. The inner value is the minimum time before the retry, if the server
    /// requires one.
    #[must_use]
    pub fn transient(&self) -> Option<Option<Duration>> {
        match self {
            Self::Transient { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Returns whether the manager must not send anything more about the job.
    #[must_use]
    pub fn is_job_closed(&self) -> bool {
        match self {
            Self::Forbidden { .. } => true,
            Self::Transient { status, .. } => matches!(status, Some(JobStatus::Canceled | JobStatus::Failed)),
            _ => false,
        }
    }

    /// Returns whether a trace got a 404, which may be temporary (docs/spec/runner-api.md, section 3.1).
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Transient { code: Some(404), .. })
    }

    /// Returns whether the token does not belong to a runner (403).
    #[must_use]
    pub fn is_unknown_token(&self) -> bool {
        matches!(self, Self::Forbidden { code: 403, .. })
    }

    /// Returns the status of the job, if the response has one.
    #[must_use]
    pub fn job_status(&self) -> Option<JobStatus> {
        match self {
            Self::Forbidden { status, .. } | Self::Transient { status, .. } => *status,
            _ => None,
        }
    }
}
