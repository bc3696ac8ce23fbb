//! The states of a job at the manager, and their moves (life-of-a-job).
//!
//! ```text
//! taken --R2--> leased --R3--> running --R4--> (result in the agent's spool) --R5--> reported --R6--> (row deleted)
//!   ^             |               |
//!   +-place lost--+               +--agent lost for good--> ended (the manager's own words) --R5-->
//!                                 +--its environment is left for a later job--> parked (the report is stored) --R5-->
//!                                 +--the coordinator does not take the report--> finished, without the slot --R5-->
//! ```
//!
//! On this host a job is running as soon as the agent has it. On an instance it is when its first user command may begin: the
//! agent asks before it (`JobPlan::require_start_approval`), and the move is stored before it is answered. So an instance that is lost under
//! a job that is leased costs it nothing: another attempt is made elsewhere, and its log follows what the trace has (J2, J3). Only what it was to
//! resume there is lost, and the job with it.
//!
//! Stored is what a successor could not find out by asking: the payload, the lease, whether the agent accepted the job,
//! and an end that only the manager knows. That the agent finished is in its spool; that the coordinator has everything
//! is known there. So `reported` needs no write, and `finished` only where
//! the slot is given back before the report is taken: a successor in `running` asks both, and goes on.

use muster_executor::LeaseRecord;
use muster_job::{Attempt, FailureReason};
use muster_runner_api::wire::UpdateRequest;
use serde::{Deserialize, Serialize};

/// Where one job stands. A move consumes the state and gives the next, or refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JobState {
    /// The payload is stored; nothing of the user's has run.
    Taken {
        /// With which attempt an agent will be asked.
        #[serde(default = "first")]
        attempt: Attempt,
    },
    /// A slot is this job's; the agent may or may not have heard of the job. Where the slot is one of an instance, nothing of the
    /// user's has run.
    Leased {
        /// The slot.
        lease: LeaseRecord,
        /// With which attempt the agent is asked.
        attempt: Attempt,
        /// Where in the trace the log of this attempt begins.
        #[serde(default, skip_serializing_if = "is_0")]
        from: u64,
    },
    /// The agent has accepted the job, and something of the user's may have run. It is never handed to another agent again
    /// (invariant J2).
    Running {
        /// The slot.
        lease: LeaseRecord,
        /// The attempt that was accepted.
        attempt: Attempt,
        /// Where in the trace its log begins.
        #[serde(default, skip_serializing_if = "is_0")]
        from: u64,
    },
    /// The agent has its result, and the coordinator did not take it at once: the slot was given back, log and result are
    /// reported from the spool.
    Finished {
        /// The slot that the job had.
        place: LeaseRecord,
        /// The attempt that has the result.
        attempt: Attempt,
        /// Where in the trace its log begins.
        #[serde(default, skip_serializing_if = "is_0")]
        from: u64,
    },
    /// An agent had its result, and the job's environment is suspended for a later job: the agent does not have it any more.
    Parked {
        /// The slot that the job has, or had.
        place: LeaseRecord,
        /// The attempt that had the result.
        attempt: Attempt,
        /// What to report.
        update: Box<UpdateRequest>,
        /// Whose later jobs may go on in it.
        owner: String,
        /// The trace's length at the coordinator before the manager's words: with it, a successor appends them only once.
        at: u64,
    },
    /// It ended without a result of an agent's: the manager says why.
    Ended {
        /// Where the job was, if it was anywhere: there is something to close.
        place: Option<(LeaseRecord, Attempt)>,
        /// What to report.
        end: OwnEnd,
    },
}

fn first() -> Attempt {
    Attempt(1)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_0(number: &u64) -> bool {
    *number == 0
}

/// An end that only the manager knows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnEnd {
    /// What to report.
    pub reason: FailureReason,
    /// The exit code to report, if there is one.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The last words of the trace.
    pub words: String,
    /// The trace's length at the coordinator before the words: with it, a successor appends them only once.
    pub at: u64,
}

/// A move that the life of a job does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from} cannot be {to}")]
pub struct IllegalMove {
    from: &'static str,
    to: &'static str,
}

impl JobState {
    /// That of a job whose payload has just been stored.
    #[must_use]
    pub fn taken() -> Self {
        Self::Taken { attempt: first() }
    }

    /// R2: a slot was granted. The log of what will run there begins in the trace at `from`.
    ///
    /// # Errors
    /// [`IllegalMove`] unless taken.
    pub fn lease(self, lease: LeaseRecord, from: u64) -> Result<Self, IllegalMove> {
        match self {
            Self::Taken { attempt } => Ok(Self::Leased { lease, attempt, from }),
            other => Err(other.refuse("leased")),
        }
    }

    /// R3: the agent accepted `Run`; on an instance, the user's first command may begin.
    ///
    /// # Errors
    /// [`IllegalMove`] unless leased.
    pub fn start(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { lease, attempt, from } => Ok(Self::Running { lease, attempt, from }),
            other => Err(other.refuse("running")),
        }
    }

    /// The lease is lost and no agent heard of the job: it can have another one.
    ///
    /// # Errors
    /// [`IllegalMove`] unless leased.
    pub fn lose_lease(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { attempt, .. } => Ok(Self::Taken { attempt }),
            other => Err(other.refuse("taken again")),
        }
    }

    /// The instance is lost and nothing of the user's has run there: another one has a try of its own.
    ///
    /// # Errors
    /// [`IllegalMove`] unless leased.
    pub fn try_elsewhere(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { attempt, .. } => Ok(Self::Taken { attempt: Attempt(attempt.0.saturating_add(1)) }),
            other => Err(other.refuse("taken again")),
        }
    }

    /// The agent has the result, and the slot is to be another job's.
    ///
    /// # Errors
    /// [`IllegalMove`] unless an agent can have it.
    pub fn finish(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { lease, attempt, from } | Self::Running { lease, attempt, from } => {
                Ok(Self::Finished { place: lease, attempt, from })
            }
            other => Err(other.refuse("finished")),
        }
    }

    /// The agent's result is all told, and what the job leaves is to be suspended for jobs of `owner`.
    ///
    /// # Errors
    /// [`IllegalMove`] unless an agent can have it.
    pub fn park(self, update: UpdateRequest, owner: String, at: u64) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { lease, attempt, .. } | Self::Running { lease, attempt, .. } => {
                Ok(Self::Parked { place: lease, attempt, update: Box::new(update), owner, at })
            }
            other => Err(other.refuse("parked")),
        }
    }

    /// The trace that the coordinator has is shorter than what was there before this attempt: its log begins at `at` then.
    ///
    /// # Errors
    /// [`IllegalMove`] unless an agent can have it.
    pub fn with_log_start(mut self, at: u64) -> Result<Self, IllegalMove> {
        match &mut self {
            Self::Leased { from, .. } | Self::Running { from, .. } | Self::Finished { from, .. } => *from = at,
            Self::Taken { .. } | Self::Parked { .. } | Self::Ended { .. } => return Err(self.refuse("logging")),
        }
        Ok(self)
    }

    /// Where in the trace the log of the attempt begins.
    #[must_use]
    pub fn log_start(&self) -> u64 {
        match self {
            Self::Leased { from, .. } | Self::Running { from, .. } | Self::Finished { from, .. } => *from,
            Self::Taken { .. } | Self::Parked { .. } | Self::Ended { .. } => 0,
        }
    }

    /// The job ends by the manager's own knowledge.
    ///
    /// # Errors
    /// [`IllegalMove`] if it has ended so before.
    pub fn end(self, end: OwnEnd) -> Result<Self, IllegalMove> {
        let place = match self {
            Self::Taken { .. } | Self::Finished { .. } => None,
            Self::Leased { lease, attempt, .. }
            | Self::Running { lease, attempt, .. }
            | Self::Parked { place: lease, attempt, .. } => Some((lease, attempt)),
            other @ Self::Ended { .. } => return Err(other.refuse("ended")),
        };
        Ok(Self::Ended { place, end })
    }

    /// The slot that the job holds.
    #[must_use]
    pub fn held(&self) -> Option<&LeaseRecord> {
        match self {
            Self::Taken { .. } | Self::Finished { .. } => None,
            Self::Leased { lease, .. } | Self::Running { lease, .. } | Self::Parked { place: lease, .. } => Some(lease),
            Self::Ended { place, .. } => place.as_ref().map(|(lease, _)| lease),
        }
    }

    /// The state's name, for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Taken { .. } => "taken",
            Self::Leased { .. } => "leased",
            Self::Running { .. } => "running",
            Self::Finished { .. } => "finished",
            Self::Parked { .. } => "parked",
            Self::Ended { .. } => "ended",
        }
    }

    fn refuse(&self, to: &'static str) -> IllegalMove {
        IllegalMove { from: self.name(), to }
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

    fn end() -> OwnEnd {
        OwnEnd { reason: FailureReason::RunnerSystemFailure, exit_code: None, words: String::new(), at: 0 }
    }

    #[test]
    fn a_job_moves_forward_and_only_an_unstarted_one_back() {
        let leased = JobState::taken().lease(lease(), 0).unwrap();
        assert_eq!(leased.clone().lose_lease(), Ok(JobState::taken()));
        let running = leased.start().unwrap();
        running.clone().lose_lease().unwrap_err();
        running.clone().try_elsewhere().unwrap_err();
        running.clone().start().unwrap_err();
        running.clone().lease(lease(), 0).unwrap_err();
        running.clone().finish().unwrap().start().unwrap_err();
        let finished = running.clone().finish().unwrap();
        assert_eq!(finished.held(), None, "its slot is another job's");
        assert_eq!(finished.end(end()).unwrap().held(), None);
        let ended = running.end(end()).unwrap();
        assert_eq!(ended.held(), Some(&lease()));
        ended.end(end()).unwrap_err();
    }

    #[test]
    fn a_parked_job_keeps_its_place_and_its_report_over_a_restart() {
        let update = UpdateRequest { state: "success".to_owned(), ..UpdateRequest::default() };
        let running = JobState::taken().lease(lease(), 0).unwrap().start().unwrap();
        let parked = running.park(update, "me".to_owned(), 9).unwrap();
        assert_eq!(parked.held(), Some(&lease()));
        let kept = serde_json::to_string(&parked).unwrap();
        assert_eq!(serde_json::from_str::<JobState>(&kept).unwrap(), parked);
        parked.clone().start().unwrap_err();
        parked.park(UpdateRequest::default(), String::new(), 0).unwrap_err();
    }

    #[test]
    fn a_try_elsewhere_is_another_attempt_whose_log_follows_the_trace() {
        let again = JobState::taken().lease(lease(), 0).unwrap().try_elsewhere().unwrap();
        assert_eq!(again, JobState::Taken { attempt: Attempt(2) });
        let running = again.lease(lease(), 100).unwrap().start().unwrap();
        assert_eq!((running.log_start(), running.clone().finish().unwrap().log_start()), (100, 100));
        // The coordinator has lost a part of it.
        assert_eq!(running.with_log_start(40).unwrap().log_start(), 40);
    }

    #[test]
    fn the_stored_form_is_read() {
        let read = |kept: &str| serde_json::from_str::<JobState>(kept).unwrap();
        assert_eq!(read(r#"{"state":"taken"}"#), JobState::taken());
        let kept = r#"{"state":"running","lease":{"environment":"host","slot":{"id":0,"project_slot":0,
            "key":{"runner":"","project_id":1}}},"attempt":1}"#;
        assert_eq!(read(kept), JobState::Running { lease: lease(), attempt: Attempt(1), from: 0 });
        let kept = r#"{"state":"finished","place":{"environment":"host","slot":{"id":0,"project_slot":0,
            "key":{"runner":"","project_id":1}}},"attempt":1}"#;
        assert_eq!(read(kept), JobState::Finished { place: lease(), attempt: Attempt(1), from: 0 });
        let kept = r#"{"state":"ended","place":null,"end":{"reason":"runner_system_failure","words":"","at":0}}"#;
        assert_eq!(read(kept), JobState::Ended { place: None, end: end() });
    }
}
