//! Progress of a job at its agent.
//!
//! ```text
//! not dispatched -> sent -> dispatched -> executed -> usage reported
//!        ^           |          |
//!        +-----------+----------+ rescheduled
//! ```

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AgentProgress {
    #[default]
    NotDispatched,
    /// `Run` was sent, so an agent may have the job.
    Sent,
    /// An agent has accepted the job.
    Dispatched,
    /// The agent has the job's result.
    Executed,
    /// The job's resource usage was reported to the environment.
    UsageReported,
}

impl AgentProgress {
    /// Does nothing if the job is already there or further.
    pub(super) fn reach(&mut self, next: Self) {
        *self = (*self).max(next);
    }

    /// Returns false if no agent can have the job.
    pub(super) fn may_be_at_agent(self) -> bool {
        self >= Self::Sent
    }

    pub(super) fn is_dispatched(self) -> bool {
        self >= Self::Dispatched
    }

    pub(super) fn is_executed(self) -> bool {
        self >= Self::Executed
    }

    /// Resets the progress. Returns whether an agent had accepted the job.
    pub(super) fn reschedule(&mut self) -> bool {
        std::mem::take(self).is_dispatched()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reset_only_when_job_is_rescheduled() {
        let mut progress = AgentProgress::default();
        assert!(!progress.may_be_at_agent());
        progress.reach(AgentProgress::Sent);
        assert!(progress.may_be_at_agent() && !progress.reschedule() && !progress.may_be_at_agent());
        progress.reach(AgentProgress::Executed);
        progress.reach(AgentProgress::Dispatched);
        assert!(progress.is_executed() && progress.is_dispatched());
        assert!(progress.reschedule());
        assert_eq!(progress, AgentProgress::NotDispatched);
    }
}
