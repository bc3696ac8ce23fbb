//! Errors of calls, grouped by what the caller has to do.

use std::time::Duration;

use muster_job::JobStatus;
use url::Url;

/// Reason why a call failed. No variant contains a token.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// 401, 403, 404 or 410: the token or the job is not, or no longer, valid. If the call was about a job, the job must
    /// be stopped (docs/spec/runner-api.md, sections 3.1 and 4.2).
    ///
    /// For a trace, 401, 404 and 410 are [`Self::Transient`]. For an update, 401 and 410 without `Job-Status` are
    /// [`Self::Rejected`].
    #[error("{call}: the coordinator denied the request: {code} {message}")]
    Forbidden {
        /// Name of the call.
        call: &'static str,
        /// Status code.
        code: u16,
        /// Value of the header `Job-Status`, if the response has it.
        status: Option<JobStatus>,
        /// Message from the coordinator.
        message: String,
    },
    /// The coordinator is unreachable, too slow or overloaded, or has an internal error. The call may succeed later.
    #[error("{call}: {message}")]
    Transient {
        /// Name of the call.
        call: &'static str,
        /// Status code. `None` if there was no response.
        code: Option<u16>,
        /// Minimum time to wait before a retry, if the server requires one.
        retry_after: Option<Duration>,
        /// Value of the header `Job-Status`, if the response has it.
        status: Option<JobStatus>,
        /// Description of the failure.
        message: String,
    },
    /// Any other status: the call is wrong, and a retry does not help.
    #[error("{call}: the coordinator rejected the request: {code} {message}")]
    Rejected {
        /// Name of the call.
        call: &'static str,
        /// Status code.
        code: u16,
        /// Message from the coordinator.
        message: String,
    },
    /// The coordinator redirects to another URL of the same host. The same call can be sent there
    /// (docs/spec/runner-api.md, section 5.1).
    #[error("{call}: the coordinator redirects to {to}")]
    Redirected {
        /// Name of the call.
        call: &'static str,
        /// URL of the coordinator to send the call to.
        to: Box<Url>,
    },
    /// The response does not conform to the protocol, for example because of a wrong content type.
    #[error(
        "{call}: invalid response: {message}; check that the URL is that of a GitLab server or a Muster coordinator"
    )]
    Protocol {
        /// Name of the call.
        call: &'static str,
        /// What is wrong with the response.
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
    /// Creates the error for a call without a response.
    #[must_use]
    pub fn unreachable(call: &'static str, message: impl Into<String>) -> Self {
        Self::Transient { call, code: None, retry_after: None, status: None, message: message.into() }
    }

    /// Returns the description of the failure, without the name of the call.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Forbidden { message, .. }
            | Self::Transient { message, .. }
            | Self::Rejected { message, .. }
            | Self::Protocol { message, .. }
            | Self::Request { message, .. }
            | Self::Setup(message) => message,
            Self::Redirected { to, .. } => to.as_str(),
        }
    }

    /// Returns `None` if a retry does not help. Otherwise, returns the minimum time to wait, if the server requires one.
    #[must_use]
    pub fn transient(&self) -> Option<Option<Duration>> {
        match self {
            Self::Transient { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Returns true if the manager may not send anything more about the job.
    #[must_use]
    pub fn is_job_closed(&self) -> bool {
        match self {
            Self::Forbidden { .. } => true,
            Self::Transient { status, .. } => matches!(status, Some(JobStatus::Canceled | JobStatus::Failed)),
            _ => false,
        }
    }

    /// Returns true for a 404 on a trace, which may be temporary or permanent (docs/spec/runner-api.md, section 3.1).
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Transient { code: Some(404), .. })
    }

    /// Returns true for 403: the token does not belong to a runner, or no longer does.
    #[must_use]
    pub fn is_unknown_token(&self) -> bool {
        matches!(self, Self::Forbidden { code: 403, .. })
    }

    /// Returns the status of the job, if the response has it.
    #[must_use]
    pub fn job_status(&self) -> Option<JobStatus> {
        match self {
            Self::Forbidden { status, .. } | Self::Transient { status, .. } => *status,
            _ => None,
        }
    }
}
