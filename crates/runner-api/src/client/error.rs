//! What can go wrong with a call, sorted by what the caller has to do.

use std::time::Duration;

use muster_job::JobStatus;
use url::Url;

/// Why a call failed. No variant ever holds a token.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// 401, 403, 404 or 410: the token, or the job, is not (or no longer) valid. For a job: stop it (runner-api 3.1, 4.2).
    #[error("{call}: the coordinator refuses: {code} {message}")]
    Forbidden {
        /// The call.
        call: &'static str,
        /// The status code.
        code: u16,
        /// `Job-Status`, where the answer has it.
        status: Option<JobStatus>,
        /// The coordinator's words.
        message: String,
    },
    /// Not reached, too slow, overloaded, or an error of the server's: the same call may work later.
    #[error("{call}: {message}")]
    Transient {
        /// The call.
        call: &'static str,
        /// The status code; none where there was no answer.
        code: Option<u16>,
        /// The least wait that the server asks for.
        retry_after: Option<Duration>,
        /// `Job-Status`, where the answer has it.
        status: Option<JobStatus>,
        /// What happened.
        message: String,
    },
    /// Any other status: the call is wrong, and repeating it does not help.
    #[error("{call}: the coordinator does not take the call: {code} {message}")]
    Rejected {
        /// The call.
        call: &'static str,
        /// The status code.
        code: u16,
        /// The coordinator's words.
        message: String,
    },
    /// The coordinator is elsewhere: the same call may be made there (runner-api 5.1).
    #[error("{call}: the coordinator sends on to {to}")]
    Moved {
        /// The call.
        call: &'static str,
        /// Where to: scheme and host.
        to: Box<Url>,
    },
    /// The answer is not what the protocol has: wrong content type, or a body that does not decode.
    #[error("{call}: the answer is not the runner API's: {message}; is the URL that of a coordinator?")]
    Protocol {
        /// The call.
        call: &'static str,
        /// What is wrong.
        message: String,
    },
    /// The client cannot be built.
    #[error("the coordinator's URL or the TLS settings are not usable: {0}")]
    Setup(String),
}

impl ClientError {
    /// No answer came.
    #[must_use]
    pub fn unreachable(call: &'static str, message: impl Into<String>) -> Self {
        Self::Transient { call, code: None, retry_after: None, status: None, message: message.into() }
    }

    /// What happened, without the call.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Forbidden { message, .. }
            | Self::Transient { message, .. }
            | Self::Rejected { message, .. }
            | Self::Protocol { message, .. }
            | Self::Setup(message) => message,
            Self::Moved { to, .. } => to.as_str(),
        }
    }

    /// Whether a repetition may help, with the least wait that the server asks for.
    #[must_use]
    pub fn transient(&self) -> Option<Option<Duration>> {
        match self {
            Self::Transient { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    /// Whether the coordinator says that the job is not this manager's, or has ended: nothing more is to be sent.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Forbidden { .. } => true,
            Self::Transient { status, .. } => matches!(status, Some(JobStatus::Canceled | JobStatus::Failed)),
            _ => false,
        }
    }

    /// 404 on a trace: it does not go there, for now or for good (runner-api 3.1).
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Transient { code: Some(404), .. })
    }

    /// 403: the token is not, or no longer, that of a runner.
    #[must_use]
    pub fn is_unknown_token(&self) -> bool {
        matches!(self, Self::Forbidden { code: 403, .. })
    }

    /// The job's state, where the answer has it.
    #[must_use]
    pub fn job_status(&self) -> Option<JobStatus> {
        match self {
            Self::Forbidden { status, .. } | Self::Transient { status, .. } => *status,
            _ => None,
        }
    }
}
