//! The states of a job at the manager, and the transitions between them.
//!
//! ```text
//! received --R2--> leased --R3--> running --R4--> (result in the agent's spool) --R5--> reported --R6--> (row deleted)
//!    ^               |               |
//!    +--lease lost---+               +--agent lost permanently---------------> failed_by_manager --R5-->
//!                                    +--environment suspended for a later job-> suspended ---------R5-->
//!                                    +--coordinator does not accept the report--> awaiting_report --R5-->
//! ```
//!
//! A job on this host is running as soon as its agent has it. A job on an instance is running when its first user command may start: the
//! agent requests approval before the command (`JobPlan::require_start_approval`), and the transition is stored before the approval.
//!
//! If the instance of a leased job is lost, no user command has run. Another instance gets a new attempt, whose log continues the trace
//! (J2, J3). A job that resumes a suspended environment fails instead.
//!
//! `state.log` stores only what a restarted manager cannot query. A result remains in the agent's spool.

use muster_executor::LeaseRecord;
use muster_job::{Attempt, FailureReason};
use muster_runner_api::wire::UpdateRequest;
use serde::{Deserialize, Serialize};

/// State of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JobState {
    /// The payload is stored. No user command has run.
    Received {
        /// Number of the attempt that the next agent gets.
        #[serde(default = "first_attempt")]
        attempt: Attempt,
    },
    /// The job has a slot, and the agent may have the job. On an instance, no user command has run.
    Leased {
        /// Lease of the slot.
        lease: LeaseRecord,
        /// Number of the attempt that the agent gets.
        attempt: Attempt,
        /// Offset in the trace at which the log of this attempt begins.
        #[serde(default, skip_serializing_if = "is_0")]
        trace_offset: u64,
    },
    /// User commands may have run. No other agent may get the job (invariant J2).
    Running {
        /// Lease of the slot.
        lease: LeaseRecord,
        /// Number of the attempt that the agent has or gets.
        attempt: Attempt,
        /// Offset in the trace at which the log of this attempt begins.
        #[serde(default, skip_serializing_if = "is_0")]
        trace_offset: u64,
    },
    /// The agent has the result, and the slot is released. Log and result are reported from the agent's spool.
    AwaitingReport {
        /// Lease that the job had.
        lease: LeaseRecord,
        /// Number of the attempt that has the result.
        attempt: Attempt,
        /// Offset in the trace at which the log of this attempt begins.
        #[serde(default, skip_serializing_if = "is_0")]
        trace_offset: u64,
    },
    /// The job has a result, and its environment was or must be suspended for a later job. It is possible that the
    /// agent no longer has the job.
    Suspended {
        /// Lease that the job has or had.
        lease: LeaseRecord,
        /// Number of the attempt that had the result.
        attempt: Attempt,
        /// Final update for the coordinator.
        update: Box<UpdateRequest>,
        /// Owner whose later jobs may resume the environment.
        owner: String,
        /// Length of the trace before the manager's message, so that a restarted manager appends only the missing part of it.
        trace_offset: u64,
    },
    /// The manager ended the job without a result from an agent.
    FailedByManager {
        /// Lease and attempt to close. `None` if the job had no environment, or its slot was already released.
        lease: Option<(LeaseRecord, Attempt)>,
        /// Outcome to report.
        outcome: ManagerOutcome,
    },
}

fn first_attempt() -> Attempt {
    Attempt(1)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_0(number: &u64) -> bool {
    *number == 0
}

/// Outcome of a job that the manager ended itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerOutcome {
    /// Failure reason to report.
    pub reason: FailureReason,
    /// Exit code to report, if any.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// End of the trace, with the reason why the job failed.
    pub trace_message: String,
    /// Length of the trace before the message, so that a restarted manager appends only the missing part of it.
    pub trace_offset: u64,
}

/// A transition that the job's state does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a job in state {from} cannot become {to}")]
pub struct InvalidTransition {
    from: &'static str,
    to: &'static str,
}

impl JobState {
    /// Returns the state of a job whose payload was just stored.
    #[must_use]
    pub fn received() -> Self {
        Self::Received { attempt: first_attempt() }
    }

    /// Assigns a slot (R2). The log of the attempt begins at `trace_offset` in the trace.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless the job is `received`.
    pub fn assign_lease(self, lease: LeaseRecord, trace_offset: u64) -> Result<Self, InvalidTransition> {
        match self {
            Self::Received { attempt } => Ok(Self::Leased { lease, attempt, trace_offset }),
            other => Err(other.invalid_transition("leased")),
        }
    }

    /// Records that user commands may run from now on (R3).
    ///
    /// On this host, this is when the agent accepts the job. On an instance, this is when the agent requests start approval, or before the
    /// job is sent to an agent without start approval.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless the job is `leased`.
    pub fn start(self) -> Result<Self, InvalidTransition> {
        match self {
            Self::Leased { lease, attempt, trace_offset } => Ok(Self::Running { lease, attempt, trace_offset }),
            other => Err(other.invalid_transition("running")),
        }
    }

    /// Sets the job back to `received`, because its agent never received it. The next agent gets the same attempt.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless the job is `leased`.
    pub fn on_lease_lost(self) -> Result<Self, InvalidTransition> {
        match self {
            Self::Leased { attempt, .. } => Ok(Self::Received { attempt }),
            other => Err(other.invalid_transition("received")),
        }
    }

    /// Sets the job back to `received`, because its instance was lost before a user command ran. The next agent gets a new attempt.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless the job is `leased`.
    pub fn reschedule(self) -> Result<Self, InvalidTransition> {
        match self {
            Self::Leased { attempt, .. } => Ok(Self::Received { attempt: Attempt(attempt.0.saturating_add(1)) }),
            other => Err(other.invalid_transition("received")),
        }
    }

    /// Releases the slot of a job that has a result, before the coordinator has accepted the report.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless the job is `leased` or `running`.
    pub fn await_report(self) -> Result<Self, InvalidTransition> {
        match self {
            Self::Leased { lease, attempt, trace_offset } | Self::Running { lease, attempt, trace_offset } => {
                Ok(Self::AwaitingReport { lease, attempt, trace_offset })
            }
            other => Err(other.invalid_transition("awaiting_report")),
        }
    }

    /// Records that the environment of a job with a result must be suspended for later jobs of `owner`.
    ///
    /// `trace_offset` is the length of the trace before the manager's message about the suspension.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless the job is `leased` or `running`.
    pub fn suspend(self, update: UpdateRequest, owner: String, trace_offset: u64) -> Result<Self, InvalidTransition> {
        match self {
            Self::Leased { lease, attempt, .. } | Self::Running { lease, attempt, .. } => {
                Ok(Self::Suspended { lease, attempt, update: Box::new(update), owner, trace_offset })
            }
            other => Err(other.invalid_transition("suspended")),
        }
    }

    /// Moves the start of the attempt's log to `offset`, because the coordinator lost a part of the trace before the old start.
    ///
    /// # Errors
    /// [`InvalidTransition`] unless an agent can have the job's log.
    pub fn with_trace_offset(mut self, offset: u64) -> Result<Self, InvalidTransition> {
        match &mut self {
            Self::Leased { trace_offset, .. }
            | Self::Running { trace_offset, .. }
            | Self::AwaitingReport { trace_offset, .. } => *trace_offset = offset,
            Self::Received { .. } | Self::Suspended { .. } | Self::FailedByManager { .. } => {
                return Err(self.invalid_transition(self.name()));
            }
        }
        Ok(self)
    }

    /// Ends the job with an outcome that only the manager knows.
    ///
    /// # Errors
    /// [`InvalidTransition`] if the manager has already ended the job.
    pub fn fail(self, outcome: ManagerOutcome) -> Result<Self, InvalidTransition> {
        let lease = match self {
            Self::Received { .. } | Self::AwaitingReport { .. } => None,
            Self::Leased { lease, attempt, .. }
            | Self::Running { lease, attempt, .. }
            | Self::Suspended { lease, attempt, .. } => Some((lease, attempt)),
            other @ Self::FailedByManager { .. } => return Err(other.invalid_transition("failed_by_manager")),
        };
        Ok(Self::FailedByManager { lease, outcome })
    }

    /// Returns the offset of the attempt's log in the trace. 0 if no agent can have the log.
    #[must_use]
    pub fn trace_offset(&self) -> u64 {
        match self {
            Self::Leased { trace_offset, .. }
            | Self::Running { trace_offset, .. }
            | Self::AwaitingReport { trace_offset, .. } => *trace_offset,
            Self::Received { .. } | Self::Suspended { .. } | Self::FailedByManager { .. } => 0,
        }
    }

    /// Returns the lease that the job holds. `None` if it never had a lease or has released it.
    #[must_use]
    pub fn held_lease(&self) -> Option<&LeaseRecord> {
        match self {
            Self::Received { .. } | Self::AwaitingReport { .. } => None,
            Self::Leased { lease, .. } | Self::Running { lease, .. } | Self::Suspended { lease, .. } => Some(lease),
            Self::FailedByManager { lease, .. } => lease.as_ref().map(|(lease, _)| lease),
        }
    }

    /// Returns the attempt that an agent can have.
    ///
    /// `None` if no agent can have the job yet, or if the manager ended a job that had no slot, or no longer had one.
    #[must_use]
    pub fn attempt(&self) -> Option<Attempt> {
        match self {
            Self::Received { .. } => None,
            Self::Leased { attempt, .. }
            | Self::Running { attempt, .. }
            | Self::AwaitingReport { attempt, .. }
            | Self::Suspended { attempt, .. } => Some(*attempt),
            Self::FailedByManager { lease, .. } => lease.as_ref().map(|(_, attempt)| *attempt),
        }
    }

    /// Returns the name of the state, as it is stored.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Received { .. } => "received",
            Self::Leased { .. } => "leased",
            Self::Running { .. } => "running",
            Self::AwaitingReport { .. } => "awaiting_report",
            Self::Suspended { .. } => "suspended",
            Self::FailedByManager { .. } => "failed_by_manager",
        }
    }

    fn invalid_transition(&self, to: &'static str) -> InvalidTransition {
        InvalidTransition { from: self.name(), to }
    }
}

#[cfg(test)]
mod tests {
    use muster_executor::{Slot, SlotKey};

    use super::*;

    fn lease() -> LeaseRecord {
        let slot = Slot { id: 0, project_slot: 0, key: SlotKey { runner: String::new(), project_id: 1 } };
        LeaseRecord::local("host", slot)
    }

    fn outcome() -> ManagerOutcome {
        ManagerOutcome {
            reason: FailureReason::RunnerSystemFailure,
            exit_code: None,
            trace_message: String::new(),
            trace_offset: 0,
        }
    }

    #[test]
    fn only_unstarted_job_returns_to_received() {
        let leased = JobState::received().assign_lease(lease(), 0).unwrap();
        assert_eq!(leased.clone().on_lease_lost(), Ok(JobState::received()));
        let running = leased.start().unwrap();
        running.clone().on_lease_lost().unwrap_err();
        running.clone().reschedule().unwrap_err();
        running.clone().start().unwrap_err();
        running.clone().assign_lease(lease(), 0).unwrap_err();
        running.clone().await_report().unwrap().start().unwrap_err();
        let unreported = running.clone().await_report().unwrap();
        assert_eq!(unreported.held_lease(), None, "the job holds no slot");
        assert_eq!(unreported.fail(outcome()).unwrap().held_lease(), None);
        let failed = running.fail(outcome()).unwrap();
        assert_eq!(failed.held_lease(), Some(&lease()));
        failed.fail(outcome()).unwrap_err();
    }

    #[test]
    fn suspended_job_keeps_lease_and_report_after_restart() {
        let update = UpdateRequest { state: "success".to_owned(), ..UpdateRequest::default() };
        let running = JobState::received().assign_lease(lease(), 0).unwrap().start().unwrap();
        let suspended = running.suspend(update, "me".to_owned(), 9).unwrap();
        assert_eq!(suspended.held_lease(), Some(&lease()));
        let stored = serde_json::to_string(&suspended).unwrap();
        assert_eq!(serde_json::from_str::<JobState>(&stored).unwrap(), suspended);
        suspended.clone().start().unwrap_err();
        suspended.suspend(UpdateRequest::default(), String::new(), 0).unwrap_err();
    }

    #[test]
    fn rescheduled_job_is_new_attempt_whose_log_continues_trace() {
        let received = JobState::received().assign_lease(lease(), 0).unwrap().reschedule().unwrap();
        assert_eq!(received, JobState::Received { attempt: Attempt(2) });
        let running = received.assign_lease(lease(), 100).unwrap().start().unwrap();
        assert_eq!((running.trace_offset(), running.clone().await_report().unwrap().trace_offset()), (100, 100));
        // The coordinator has lost a part of the trace.
        assert_eq!(running.with_trace_offset(40).unwrap().trace_offset(), 40);
    }

    #[test]
    fn stored_states_are_read() {
        let read = |stored: &str| serde_json::from_str::<JobState>(stored).unwrap();
        assert_eq!(read(r#"{"state":"received"}"#), JobState::received());
        let stored = r#"{"state":"running","lease":{"environment":"host","slot":{"id":0,"project_slot":0,
            "key":{"runner":"","project_id":1}}},"attempt":1}"#;
        assert_eq!(read(stored), JobState::Running { lease: lease(), attempt: Attempt(1), trace_offset: 0 });
        let stored = r#"{"state":"awaiting_report","lease":{"environment":"host","slot":{"id":0,"project_slot":0,
            "key":{"runner":"","project_id":1}}},"attempt":1}"#;
        assert_eq!(read(stored), JobState::AwaitingReport { lease: lease(), attempt: Attempt(1), trace_offset: 0 });
        let stored = r#"{"state":"failed_by_manager","lease":null,
            "outcome":{"reason":"runner_system_failure","trace_message":"","trace_offset":0}}"#;
        assert_eq!(read(stored), JobState::FailedByManager { lease: None, outcome: outcome() });
    }
}
