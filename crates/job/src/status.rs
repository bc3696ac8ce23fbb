//! Life cycle of a job or bridge (docs/spec/pipeline-yaml.md, section 5.1; docs/spec/runner-api.md, section 9.4).
//!
//! ```text
//! created -+-> manual ------+
//!          +-> scheduled ---+-> (waiting_for_resource) -> pending -> running -+-> success
//!          +----------------+                                                 +-> failed
//!          +-> skipped                                                        +-> (canceling) -> canceled
//! ```
//!
//! States in parentheses are optional. The diagram shows only the usual transitions. Others are, for example, that a
//! job is canceled or fails before it runs, and that a skipped job becomes `created` again.

use serde::{Deserialize, Serialize};

/// Status of a job or bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// The job waits for earlier stages or its needs.
    Created,
    /// The job could start, but another job holds its resource group.
    WaitingForResource,
    /// The job waits for a runner.
    Pending,
    /// A runner executes the job, or the pipeline of a bridge is running.
    Running,
    /// The job succeeded.
    Success,
    /// The job failed.
    Failed,
    /// The job was canceled, and the runner is stopping it.
    Canceling,
    /// The job was canceled.
    Canceled,
    /// The job was skipped, because its condition was not met.
    Skipped,
    /// The job waits for a user to start it.
    Manual,
    /// The job waits for its `start_in` delay.
    Scheduled,
}

impl JobStatus {
    /// Returns true for success, failed, canceled and skipped. Only skipped can change.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, Self::Success | Self::Failed | Self::Canceled | Self::Skipped)
    }

    /// Returns true for running and canceling.
    #[must_use]
    pub fn is_on_runner(self) -> bool {
        matches!(self, Self::Running | Self::Canceling)
    }

    /// Returns the name in GitLab's API and in the header `Job-Status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::WaitingForResource => "waiting_for_resource",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Canceling => "canceling",
            Self::Canceled => "canceled",
            Self::Skipped => "skipped",
            Self::Manual => "manual",
            Self::Scheduled => "scheduled",
        }
    }

    /// Returns the status after `event`.
    ///
    /// # Errors
    /// Returns [`InvalidTransition`] if the event is not possible in this status.
    pub fn after(self, event: JobEvent) -> Result<Self, InvalidTransition> {
        use JobEvent as E;
        use JobStatus as S;
        let next = match (self, event) {
            (S::Created | S::Skipped | S::Manual | S::Scheduled, E::WaitForResource) => S::WaitingForResource,
            (S::Created | S::Skipped | S::Manual | S::Scheduled | S::WaitingForResource, E::Enqueue) => S::Pending,
            (S::Created, E::Actionize) | (S::Scheduled, E::Unschedule) => S::Manual,
            (S::Created, E::Schedule) => S::Scheduled,
            (S::Created | S::WaitingForResource | S::Pending, E::Skip) => S::Skipped,
            (S::Skipped, E::Reprocess) => S::Created,
            (S::Pending, E::Run) => S::Running,
            // The assignee neither accepted the job nor sent anything in time (docs/spec/life-of-a-job.md, rule R1).
            (S::Running, E::Requeue) => S::Pending,
            (S::Created | S::WaitingForResource | S::Pending | S::Running, E::Succeed) => S::Success,
            (S::Created | S::WaitingForResource | S::Pending | S::Running | S::Manual | S::Scheduled, E::Drop) => {
                S::Failed
            }
            (S::Canceling, E::Succeed | E::Drop | E::ForceCancel) => S::Canceled,
            (S::Running, E::CancelGracefully) => S::Canceling,
            (S::Created | S::WaitingForResource | S::Pending | S::Running | S::Manual | S::Scheduled, E::Cancel) => {
                S::Canceled
            }
            (from, event) => return Err(InvalidTransition { from, event }),
        };
        Ok(next)
    }
}

impl std::fmt::Display for JobStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Event in the life cycle of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobEvent {
    /// The job could start, but its resource group is held by another job.
    WaitForResource,
    /// The job became ready, a user started it, its delay ended, or its resource group became free.
    Enqueue,
    /// A manual job became ready. It waits for a user.
    Actionize,
    /// A delayed job became ready. Its delay starts.
    Schedule,
    /// A user canceled the delay. The job becomes manual.
    Unschedule,
    /// The job became ready, but its condition is not met.
    Skip,
    /// The job that caused the skip was retried.
    Reprocess,
    /// The job is assigned to a runner manager.
    Run,
    /// The assignee neither accepted the job nor sent anything for it in time.
    Requeue,
    /// The runner reports success.
    Succeed,
    /// The runner reports a failure, or the coordinator fails the job.
    Drop,
    /// The job is canceled, and the runner can stop it gracefully.
    CancelGracefully,
    /// The job is canceled immediately.
    Cancel,
    /// The runner did not stop a canceling job in time.
    ForceCancel,
}

/// An event that is not possible in the status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid transition: event {event:?} for a job with status {from}")]
pub struct InvalidTransition {
    /// Status of the job.
    pub from: JobStatus,
    /// The event.
    pub event: JobEvent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canceling_job_ends_as_canceled_for_any_report() {
        for event in [JobEvent::Succeed, JobEvent::Drop, JobEvent::ForceCancel] {
            assert_eq!(JobStatus::Canceling.after(event), Ok(JobStatus::Canceled));
        }
    }

    #[test]
    fn only_skipped_jobs_can_leave_a_final_state() {
        use JobEvent as E;
        let events = [
            E::WaitForResource,
            E::Enqueue,
            E::Actionize,
            E::Schedule,
            E::Unschedule,
            E::Skip,
            E::Reprocess,
            E::Run,
            E::Requeue,
            E::Succeed,
            E::Drop,
            E::CancelGracefully,
            E::Cancel,
            E::ForceCancel,
        ];
        for status in [JobStatus::Success, JobStatus::Failed, JobStatus::Canceled] {
            for event in events {
                assert_eq!(status.after(event), Err(InvalidTransition { from: status, event }));
            }
        }
    }
}
