//! How far a job has come at its agent, and whether its environment is still in use, as far as this manager knows.
//!
//! ```text
//! not dispatched -> dispatched -> executed -> usage reported      in use -> retired -> suspended
//!        ^              |                                            ^         |
//!        +-rescheduled--+                                            +---------+ rescheduled
//! ```

/// How far a job has come at its agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AgentProgress {
    /// No agent has accepted the job.
    #[default]
    NotDispatched,
    /// An agent has accepted the job.
    Dispatched,
    /// The agent has the job's result.
    Executed,
    /// The environment knows what the job used.
    UsageReported,
}

impl AgentProgress {
    /// Moves on to `next`, unless the job has come as far already.
    pub(super) fn reach(&mut self, next: Self) {
        *self = (*self).max(next);
    }

    /// Returns whether an agent has accepted the job.
    pub(super) fn is_dispatched(self) -> bool {
        self >= Self::Dispatched
    }

    /// Returns whether the agent has the job's result.
    pub(super) fn is_executed(self) -> bool {
        self >= Self::Executed
    }

    /// Another environment gets the job. Returns whether an agent had accepted it.
    pub(super) fn reschedule(&mut self) -> bool {
        std::mem::take(self).is_dispatched()
    }
}

/// Whether the job's environment is still in use by the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum EnvironmentUse {
    /// It is, or the job has none yet.
    #[default]
    InUse,
    /// Nothing more is asked of its agent: it answers nothing, or has closed the job.
    Retired,
    /// It is suspended for a later job, which has the lease.
    Suspended,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_falls_back_only_when_the_job_is_rescheduled() {
        let mut progress = AgentProgress::default();
        assert!(!progress.reschedule());
        progress.reach(AgentProgress::Executed);
        progress.reach(AgentProgress::Dispatched);
        assert!(progress.is_executed() && progress.is_dispatched());
        assert!(progress.reschedule());
        assert_eq!(progress, AgentProgress::NotDispatched);
    }
}
