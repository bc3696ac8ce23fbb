//! The states of a job at the manager, and their moves (life-of-a-job).
//!
//! ```text
//! taken --R2--> leased --R3--> running --R4--> (result in the agent's spool) --R5--> reported --R6--> (row deleted)
//!   ^             |               |
//!   +-lease lost--+               +--agent lost for good--> ended (the manager's own words) --R5-->
//!                                 +--the coordinator does not take the report--> finished, without the slot --R5-->
//! ```
//!
//! Stored is what a successor could not find out by asking: the payload, the lease, whether the agent accepted the job,
//! and an end that only the manager knows. That the agent finished is in its spool; that the coordinator has everything
//! is known there. So `reported` needs no write, and `finished` only where
//! the slot is given back before the report is taken: a successor in `running` asks both, and goes on.

use muster_environment::LeaseRecord;
use muster_job::{Attempt, FailureReason};
use serde::{Deserialize, Serialize};

/// Where one job stands. A move consumes the state and gives the next, or refuses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JobState {
    /// The payload is stored; nothing is started.
    Taken,
    /// A slot is this job's; the agent may or may not have heard of the job.
    Leased {
        /// The slot.
        lease: LeaseRecord,
        /// With which attempt the agent is asked.
        attempt: Attempt,
    },
    /// The agent has accepted the job. It is never handed to an agent again (invariant J2).
    Running {
        /// The slot.
        lease: LeaseRecord,
        /// The attempt that was accepted.
        attempt: Attempt,
    },
    /// The agent has its result, and the coordinator did not take it at once: the slot was given back, log and result are
    /// reported from the spool.
    Finished {
        /// The slot that the job had.
        place: LeaseRecord,
        /// The attempt that has the result.
        attempt: Attempt,
    },
    /// It ended without a result of an agent's: the manager says why.
    Ended {
        /// Where the job was, if it was anywhere: there is something to close.
        place: Option<(LeaseRecord, Attempt)>,
        /// What to report.
        end: OwnEnd,
    },
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
    /// R2: a slot was granted.
    ///
    /// # Errors
    /// [`IllegalMove`] unless taken.
    pub fn lease(self, lease: LeaseRecord) -> Result<Self, IllegalMove> {
        match self {
            Self::Taken => Ok(Self::Leased { lease, attempt: Attempt(1) }),
            other => Err(other.refuse("leased")),
        }
    }

    /// R3: the agent accepted `Run`.
    ///
    /// # Errors
    /// [`IllegalMove`] unless leased.
    pub fn start(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { lease, attempt } => Ok(Self::Running { lease, attempt }),
            other => Err(other.refuse("running")),
        }
    }

    /// The lease is lost and nothing was started: the job can have another one.
    ///
    /// # Errors
    /// [`IllegalMove`] unless leased.
    pub fn lose_lease(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Leased { .. } => Ok(Self::Taken),
            other => Err(other.refuse("taken again")),
        }
    }

    /// The agent has the result, and the slot is to be another job's.
    ///
    /// # Errors
    /// [`IllegalMove`] unless running.
    pub fn finish(self) -> Result<Self, IllegalMove> {
        match self {
            Self::Running { lease, attempt } => Ok(Self::Finished { place: lease, attempt }),
            other => Err(other.refuse("finished")),
        }
    }

    /// The job ends by the manager's own knowledge.
    ///
    /// # Errors
    /// [`IllegalMove`] if it has ended so before.
    pub fn end(self, end: OwnEnd) -> Result<Self, IllegalMove> {
        let place = match self {
            Self::Taken | Self::Finished { .. } => None,
            Self::Leased { lease, attempt } | Self::Running { lease, attempt } => Some((lease, attempt)),
            other @ Self::Ended { .. } => return Err(other.refuse("ended")),
        };
        Ok(Self::Ended { place, end })
    }

    /// The slot that the job holds.
    #[must_use]
    pub fn held(&self) -> Option<&LeaseRecord> {
        match self {
            Self::Taken | Self::Finished { .. } => None,
            Self::Leased { lease, .. } | Self::Running { lease, .. } => Some(lease),
            Self::Ended { place, .. } => place.as_ref().map(|(lease, _)| lease),
        }
    }

    /// The state's name, for logs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Leased { .. } => "leased",
            Self::Running { .. } => "running",
            Self::Finished { .. } => "finished",
            Self::Ended { .. } => "ended",
        }
    }

    fn refuse(&self, to: &'static str) -> IllegalMove {
        IllegalMove { from: self.name(), to }
    }
}

#[cfg(test)]
mod tests {
    use muster_environment::{Slot, SlotKey};

    use super::*;

    fn lease() -> LeaseRecord {
        let slot = Slot { id: 0, project_slot: 0, key: SlotKey { runner: String::new(), project_id: 1 } };
        LeaseRecord { environment: "host".to_owned(), slot, claim: String::new() }
    }

    fn end() -> OwnEnd {
        OwnEnd { reason: FailureReason::RunnerSystemFailure, exit_code: None, words: String::new(), at: 0 }
    }

    #[test]
    fn a_job_moves_forward_and_only_an_unstarted_one_back() {
        let leased = JobState::Taken.lease(lease()).unwrap();
        assert_eq!(leased.clone().lose_lease(), Ok(JobState::Taken));
        let running = leased.start().unwrap();
        running.clone().lose_lease().unwrap_err();
        running.clone().start().unwrap_err();
        running.clone().lease(lease()).unwrap_err();
        running.clone().finish().unwrap().start().unwrap_err();
        let finished = running.clone().finish().unwrap();
        assert_eq!(finished.held(), None, "its slot is another job's");
        assert_eq!(finished.end(end()).unwrap().held(), None);
        let ended = running.end(end()).unwrap();
        assert_eq!(ended.held(), Some(&lease()));
        ended.end(end()).unwrap_err();
    }

    #[test]
    fn version_1_of_the_stored_form_stays_readable() {
        let kept = r#"{"state":"running","lease":{"environment":"host","slot":{"id":0,"project_slot":0,
            "key":{"project_id":1}}},"attempt":1}"#;
        let running = JobState::Running { lease: lease(), attempt: Attempt(1) };
        assert_eq!(serde_json::from_str::<JobState>(kept).unwrap(), running);
        let kept = r#"{"state":"finished","place":{"environment":"host","slot":{"id":0,"project_slot":0,
            "key":{"project_id":1}}},"attempt":1}"#;
        let finished = JobState::Finished { place: lease(), attempt: Attempt(1) };
        assert_eq!(serde_json::from_str::<JobState>(kept).unwrap(), finished);
        let kept = r#"{"state":"ended","place":null,"end":{"reason":"runner_system_failure","words":"","at":0}}"#;
        let ended = JobState::Ended { place: None, end: end() };
        assert_eq!(serde_json::from_str::<JobState>(kept).unwrap(), ended);
    }
}
