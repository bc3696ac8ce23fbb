//! The life cycle of a job or bridge at the coordinator (pipeline-yaml 5.1, runner-api 9.4).
//!
//! ```text
//! created -+-> manual ------+
//!          +-> scheduled ---+-> waiting_for_resource -> pending -> running -+-> success
//!          +----------------+                                               +-> failed
//!          +-> skipped                                  canceling <---------+-> canceled
//! ```

use serde::{Deserialize, Serialize};

/// The state of one job or bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// In the pipeline; its turn has not come.
    Created,
    /// Its turn came, but another job holds its resource group.
    WaitingForResource,
    /// Waits for a runner.
    Pending,
    /// A runner has it, or (bridge) its child pipeline runs.
    Running,
    /// Ended well.
    Success,
    /// Ended badly.
    Failed,
    /// A cancel was asked for; the runner winds it down.
    Canceling,
    /// Ended by a cancel.
    Canceled,
    /// Its condition was not met.
    Skipped,
    /// Waits for a person to start it.
    Manual,
    /// Waits for its `start_in` to pass.
    Scheduled,
}

impl JobStatus {
    /// Success, failed, canceled or skipped: nothing more happens by itself.
    #[must_use]
    pub fn is_complete(self) -> bool {
        matches!(self, Self::Success | Self::Failed | Self::Canceled | Self::Skipped)
    }

    /// A runner is working on it.
    #[must_use]
    pub fn is_on_runner(self) -> bool {
        matches!(self, Self::Running | Self::Canceling)
    }

    /// The name GitLab uses in its API and in `Job-Status`.
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

    /// The state after `event`.
    ///
    /// # Errors
    /// [`IllegalMove`] where the life cycle has no such move; the caller's state is unchanged.
    pub fn after(self, event: JobEvent) -> Result<Self, IllegalMove> {
        use JobEvent as E;
        use JobStatus as S;
        let next = match (self, event) {
            (S::Created | S::Skipped | S::Manual | S::Scheduled, E::WaitForResource) => S::WaitingForResource,
            (S::Created | S::Skipped | S::Manual | S::Scheduled | S::WaitingForResource, E::Enqueue) => S::Pending,
            (S::Created, E::Actionize) | (S::Scheduled, E::Unschedule) => S::Manual,
            (S::Created, E::Schedule) => S::Scheduled,
            (S::Created | S::WaitingForResource | S::Pending, E::Skip) => S::Skipped,
            (S::Skipped, E::Revive) => S::Created,
            (S::Pending, E::Run) => S::Running,
            // A taker that was silent for the hand-out lease, and nothing proves that it started (rule R1).
            (S::Running, E::GiveBack) => S::Pending,
            (S::Created | S::WaitingForResource | S::Pending | S::Running, E::Succeed) => S::Success,
            (S::Created | S::WaitingForResource | S::Pending | S::Running | S::Manual | S::Scheduled, E::Drop) => {
                S::Failed
            }
            (S::Canceling, E::Succeed | E::Drop | E::ForceCancel) => S::Canceled,
            (S::Running, E::CancelGracefully) => S::Canceling,
            (S::Created | S::WaitingForResource | S::Pending | S::Running | S::Manual | S::Scheduled, E::Cancel) => {
                S::Canceled
            }
            (from, event) => return Err(IllegalMove { from, event }),
        };
        Ok(next)
    }
}

impl std::fmt::Display for JobStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What can happen to a job at the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobEvent {
    /// Its turn came and its resource group is taken.
    WaitForResource,
    /// Its turn came, or a person played it, or its timer fired, or its resource became free.
    Enqueue,
    /// Its turn came and a person has to start it.
    Actionize,
    /// Its turn came and its delay starts.
    Schedule,
    /// A person takes the delay away; the job waits for them.
    Unschedule,
    /// Its turn came and its condition is not met.
    Skip,
    /// What made it skip is alive again.
    Revive,
    /// A runner takes it.
    Run,
    /// The hand-out lease ran out with no sign of a start.
    GiveBack,
    /// The runner reports success.
    Succeed,
    /// The runner, or the coordinator, ends it as failed.
    Drop,
    /// A cancel for a runner that winds jobs down.
    CancelGracefully,
    /// A cancel that takes effect at once.
    Cancel,
    /// A canceling job is given up.
    ForceCancel,
}

/// A move that the life cycle does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from} cannot take the event {event:?}")]
pub struct IllegalMove {
    /// The state it is in.
    pub from: JobStatus,
    /// The event that does not fit.
    pub event: JobEvent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canceling_job_ends_canceled_whatever_the_runner_reports() {
        for event in [JobEvent::Succeed, JobEvent::Drop, JobEvent::ForceCancel] {
            assert_eq!(JobStatus::Canceling.after(event), Ok(JobStatus::Canceled));
        }
    }

    #[test]
    fn nothing_leaves_a_complete_state_but_a_revived_or_played_skipped_job() {
        use JobEvent as E;
        let events = [
            E::WaitForResource,
            E::Enqueue,
            E::Actionize,
            E::Schedule,
            E::Unschedule,
            E::Skip,
            E::Revive,
            E::Run,
            E::GiveBack,
            E::Succeed,
            E::Drop,
            E::CancelGracefully,
            E::Cancel,
            E::ForceCancel,
        ];
        for status in [JobStatus::Success, JobStatus::Failed, JobStatus::Canceled] {
            for event in events {
                assert_eq!(status.after(event), Err(IllegalMove { from: status, event }));
            }
        }
    }
}
