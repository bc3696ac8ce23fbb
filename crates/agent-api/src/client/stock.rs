//! GitLab's own step-runner, which differs from Muster's agent:
//! - Without Muster's extension and result trees, the result is the status of the job.
//! - Errors such as a rejected request or an unknown job have the code `UNKNOWN`.
//! - Version 0.11.0 has no `Cancel`. `Close` ends the job, and deletes it with its result.
//! - Version 0.11.0 omits some bytes of its log, such as blank lines, but counts them in offsets. A client that
//!   continues may get bytes twice.

use std::error::Error as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_job::{FailureReason, TerminationCause};
use tonic::{Code, Status};

use super::{AgentConnection, AgentError, Identity};
use crate::result::{JobResult, Outcome, StepNode, StepStatus};
use crate::step_runner::status_error::Kind;
use crate::step_runner::step_result::Status as State;
use crate::step_runner::{Status as JobStatus, StatusRequest};

/// Pause before the status is requested again, if the log ended before the job.
const STATUS_INTERVAL: Duration = Duration::from_millis(50);
const UNKNOWN_JOB: &str = "no job with id";
const EXIT_STATUS: &str = "exit status ";

pub(super) fn error(status: Status) -> AgentError {
    // A broken connection gives the status a source.
    if status.code() != Code::Unknown || status.source().is_some() {
        status.into()
    } else if status.message().contains(UNKNOWN_JOB) {
        AgentError::Unknown
    } else {
        AgentError::Refused(status.message().to_owned())
    }
}

pub(super) fn has_no_cancel(identity: &Identity, status: &Status) -> bool {
    !identity.has_extension && status.code() == Code::Unimplemented
}

impl AgentConnection {
    pub(super) async fn wait_for_status(&self, id: &str) -> Result<JobResult, AgentError> {
        let mut must_follow = true;
        loop {
            let request = StatusRequest { id: id.to_owned() };
            let answer = self.step_runner().status(request).await.map_err(|status| self.error(status))?.into_inner();
            let status = answer.jobs.into_iter().next().ok_or(AgentError::Unknown)?;
            if let Some(result) = result(&status) {
                return Ok(result);
            }
            if must_follow {
                // Only the end of the log announces the end of the job.
                let mut log = self.follow(id, 0).await?;
                while log.message().await.map_err(|status| self.error(status))?.is_some() {}
                must_follow = false;
            } else {
                tokio::time::sleep(STATUS_INTERVAL).await;
            }
        }
    }
}

/// Returns the result in the status of a job. `None` means that the job has not ended.
fn result(status: &JobStatus) -> Option<JobResult> {
    let error = [&status.error, &status.error_at_4, &status.error_at_8].into_iter().flatten().next();
    let exit_code = exit_code(&status.message);
    let failed = |reason, cause| Outcome::Failed { reason, exit_code, cause };
    let (outcome, step) = match status.status() {
        State::Unspecified | State::Running => return None,
        State::Success => (Outcome::Success, StepStatus::Success),
        State::Failure => (failed(FailureReason::ScriptFailure, None), StepStatus::Failure),
        State::Cancelled => {
            let is_timeout = error.is_some_and(|error| error.kind() == Kind::Timeout);
            let cause = if is_timeout { TerminationCause::TimedOut } else { TerminationCause::CanceledByUser };
            (failed(cause.into(), Some(cause)), StepStatus::Cancelled)
        }
    };
    let since_epoch = |time: &Option<prost_types::Timestamp>| {
        let time = time.and_then(|time| SystemTime::try_from(time).ok());
        time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default()
    };
    let milliseconds = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (started, ended) = (since_epoch(&status.start_time), since_epoch(&status.end_time));
    let tree = StepNode {
        name: "job".to_owned(),
        status: step,
        started_ms: milliseconds(started),
        duration_ms: milliseconds(ended.saturating_sub(started)),
        exit_code,
        message: status.message.clone(),
        cause: match &outcome {
            Outcome::Failed { cause, .. } => *cause,
            Outcome::Success => None,
        },
        attempts: None,
        used: None,
        steps: Vec::new(),
        call: None,
    };
    Some(JobResult { outcome, message: status.message.clone(), log_bytes: 0, log_crc32: 0, tree, used: None })
}

/// Returns the exit status at the end of a message (`docs/spec/steps.md`, section 6.5).
fn exit_code(message: &str) -> Option<i32> {
    message.rsplit_once(EXIT_STATUS)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_runner::StatusError;

    fn status(state: State, message: &str) -> JobStatus {
        JobStatus { status: state.into(), message: message.to_owned(), ..JobStatus::default() }
    }

    #[test]
    fn result_is_made_from_the_status_of_the_job() {
        assert_eq!(result(&status(State::Unspecified, "")), None);
        assert_eq!(result(&status(State::Running, "")), None);
        assert_eq!(result(&status(State::Success, "")).unwrap().outcome, Outcome::Success);
        let failed = result(&status(State::Failure, "step \"b\": exec: exit status 7")).unwrap();
        let script_failure = Outcome::Failed { reason: FailureReason::ScriptFailure, exit_code: Some(7), cause: None };
        assert_eq!((failed.outcome, failed.tree.exit_code), (script_failure, Some(7)));
        let canceled = result(&status(State::Cancelled, "job \"1\" cancelled: signal: killed")).unwrap();
        assert_eq!(canceled.tree.cause, Some(TerminationCause::CanceledByUser));
        let timed_out = StatusError { kind: Kind::Timeout.into(), message: String::new() };
        let timed_out = JobStatus { error: Some(timed_out), ..status(State::Cancelled, "") };
        let cause = Some(TerminationCause::TimedOut);
        let outcome = Outcome::Failed { reason: FailureReason::JobExecutionTimeout, exit_code: None, cause };
        assert_eq!(result(&timed_out).unwrap().outcome, outcome);
    }

    #[test]
    fn code_unknown_means_a_rejected_request_unless_the_connection_broke() {
        assert!(matches!(error(Status::unknown("no job with id \"1\"")), AgentError::Unknown));
        assert!(matches!(error(Status::unknown("loading step: reading steps")), AgentError::Refused(_)));
        let broken = Status::from_error(Box::new(std::io::Error::other("connection reset")));
        assert_eq!(broken.code(), Code::Unknown);
        assert!(matches!(error(broken), AgentError::Broken(_)));
        assert!(matches!(error(Status::unavailable("")), AgentError::Broken(_)));
    }
}
