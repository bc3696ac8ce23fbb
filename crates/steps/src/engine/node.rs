//! Nodes of the result tree of a job.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_agent_api::result::{StepNode, StepStatus, StepUsage};
use muster_job::{TerminationCause, error_chain, milliseconds};

use super::StepError;
use crate::failure::Failure;
use crate::process::Usage;

/// Start time of a step or of a job.
#[derive(Debug, Clone, Copy)]
pub struct StartTime {
    at: Instant,
    unix_ms: u64,
}

impl StartTime {
    /// Returns the current time as a start time.
    #[must_use]
    pub fn now() -> Self {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, milliseconds);
        Self { at: Instant::now(), unix_ms }
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Returns the time `duration` after the start. `None` means that it cannot be represented.
    #[must_use]
    pub fn after(&self, duration: Duration) -> Option<Instant> {
        self.at.checked_add(duration)
    }

    /// Returns the node of a step that has just ended. `own` is the usage of its processes, without the processes of the steps
    /// inside it.
    #[must_use]
    pub fn node(&self, name: &str, end: StepEnd, own: Usage, steps: Vec<StepNode>) -> StepNode {
        let StepEnd { status, exit_code, message, cause } = end;
        let duration_ms = milliseconds(self.elapsed());
        StepNode {
            name: name.to_owned(),
            status,
            started_ms: self.unix_ms,
            duration_ms,
            exit_code,
            message,
            cause,
            attempts: None,
            used: total_usage(own, &steps),
            steps,
            call: None,
        }
    }
}

/// Returns the usage of a step, including the steps inside it. `None` means that none of these steps started a process.
fn total_usage(own: Usage, steps: &[StepNode]) -> Option<StepUsage> {
    let own = (own.processes > 0).then(|| StepUsage {
        cpu_ms: Some(milliseconds(own.cpu)),
        memory_bytes: Some(own.memory_bytes),
        read_bytes: Some(own.read_bytes),
        written_bytes: Some(own.written_bytes),
    });
    own.into_iter().chain(steps.iter().filter_map(|step| step.used)).reduce(|mut total, inner| {
        total.add(&inner);
        total
    })
}

/// Final status of a step.
#[derive(Debug, Clone)]
pub struct StepEnd {
    status: StepStatus,
    exit_code: Option<i32>,
    message: String,
    cause: Option<TerminationCause>,
}

impl StepEnd {
    pub(super) const SKIPPED: Self =
        Self { status: StepStatus::Skipped, exit_code: None, message: String::new(), cause: None };

    /// Returns the end of an author's step that did not run.
    pub(super) fn skipped(reason: String) -> Self {
        Self { message: reason, ..Self::SKIPPED }
    }

    const SUCCESS: Self = Self { status: StepStatus::Success, exit_code: None, message: String::new(), cause: None };
}

impl From<Option<&Failure>> for StepEnd {
    fn from(failure: Option<&Failure>) -> Self {
        let Some(failure) = failure else { return Self::SUCCESS };
        let is_stopped = matches!(failure, Failure::Stopped(_));
        Self {
            status: if is_stopped { StepStatus::Cancelled } else { StepStatus::Failure },
            exit_code: failure.exit_code(),
            message: failure.to_string(),
            cause: failure.cause(),
        }
    }
}

impl<T> From<&Result<T, StepError>> for StepEnd {
    fn from(result: &Result<T, StepError>) -> Self {
        let Err(error) = result else { return Self::SUCCESS };
        let (status, exit_code, cause) = match error.cause() {
            StepError::Stopped(cause) => (StepStatus::Cancelled, None, Some(*cause)),
            StepError::Exit(code) => (StepStatus::Failure, Some(*code), None),
            StepError::Timeout(_) => (StepStatus::Failure, None, Some(TerminationCause::TimedOut)),
            _ => (StepStatus::Failure, None, None),
        };
        Self { status, exit_code, message: error_chain(error), cause }
    }
}
