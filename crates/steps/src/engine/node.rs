//! Nodes of the result tree of a job.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_agent_api::result::{StepNode, StepStatus, StepUsage};
use muster_job::{TerminationCause, error_chain, milliseconds};

use super::StepError;
use crate::failure::Failure;
use crate::process::{Traffic, Usage};

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

    /// Returns the time `duration` after the start. `None` means that the time is too large.
    #[must_use]
    pub fn after(&self, duration: Duration) -> Option<Instant> {
        self.at.checked_add(duration)
    }

    /// Returns the node of a step that has just ended. `own` is the usage of the step without the steps inside it, but
    /// its traffic includes theirs.
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

/// Returns the usage of a step with the steps inside it. `None` means that it used neither processes nor the network.
fn total_usage(own: Usage, steps: &[StepNode]) -> Option<StepUsage> {
    let of_processes = (own.processes > 0).then(|| StepUsage {
        cpu_ms: Some(milliseconds(own.cpu)),
        memory_bytes: Some(own.memory_bytes),
        read_bytes: Some(own.read_bytes),
        written_bytes: Some(own.written_bytes),
        ..StepUsage::default()
    });
    let total = of_processes.into_iter().chain(steps.iter().filter_map(|step| step.used)).reduce(|mut total, inner| {
        total.add(&inner);
        total
    });
    // `own.traffic` includes the traffic of the steps inside it.
    match own.traffic {
        Some(traffic) if total.is_some() || traffic != Traffic::default() => Some(StepUsage {
            received_bytes: Some(traffic.received_bytes),
            sent_bytes: Some(traffic.sent_bytes),
            ..total.unwrap_or_default()
        }),
        _ => total,
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn node(own: Usage, steps: Vec<StepNode>) -> StepNode {
        StartTime::now().node("step", StepEnd::SUCCESS, own, steps)
    }

    fn traffic(received_bytes: u64, sent_bytes: u64) -> Option<Traffic> {
        Some(Traffic { received_bytes, sent_bytes })
    }

    fn received_and_sent(node: &StepNode) -> (Option<u64>, Option<u64>) {
        node.used.map(|used| (used.received_bytes, used.sent_bytes)).unwrap_or_default()
    }

    #[test]
    fn traffic_of_a_step_includes_the_steps_inside_it_once() {
        let process = Usage { processes: 1, cpu: Duration::from_millis(7), ..Usage::default() };
        let inner = node(Usage { traffic: traffic(5, 6), ..process }, Vec::new());
        assert_eq!(received_and_sent(&inner), (Some(5), Some(6)));
        let outer = node(Usage { traffic: traffic(8, 9), ..process }, vec![inner.clone(), inner.clone()]);
        assert_eq!((received_and_sent(&outer), outer.used.unwrap().cpu_ms), ((Some(8), Some(9)), Some(21)));
        // These steps ran at another agent, so their traffic was not counted here.
        let delegating = node(Usage::default(), vec![inner.clone(), inner]);
        assert_eq!(received_and_sent(&delegating), (Some(10), Some(12)));
    }

    #[test]
    fn step_without_processes_has_a_usage_only_if_it_used_the_network() {
        assert_eq!(node(Usage { traffic: traffic(0, 0), ..Usage::default() }, Vec::new()).used, None);
        let upload = node(Usage { traffic: traffic(0, 6), ..Usage::default() }, Vec::new());
        let expected = StepUsage { received_bytes: Some(0), sent_bytes: Some(6), ..StepUsage::default() };
        assert_eq!(upload.used, Some(expected));
    }
}
