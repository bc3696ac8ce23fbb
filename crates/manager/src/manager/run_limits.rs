//! Limits on the manager's own run: a number of jobs, or a time without one.

use std::time::Duration;

use tokio::time::Instant;

/// Limits after which the manager exits. Without limits it runs until a command stops it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// Maximum number of jobs to receive, including restored ones. `None` means no limit.
    pub jobs: Option<usize>,
    /// Maximum time without a job in progress. `None` means no limit.
    ///
    /// The time counts from the start of the manager, or from the end of the last job.
    pub idle: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct RunLimitTracker {
    run_limits: RunLimits,
    received: usize,
    /// Time since which no job is in progress. Not used while jobs are in progress.
    idle_since: Instant,
}

impl RunLimitTracker {
    pub(super) fn new(run_limits: RunLimits) -> Self {
        Self { run_limits, received: 0, idle_since: Instant::now() }
    }

    pub(super) fn record_job(&mut self) {
        self.received = self.received.saturating_add(1);
    }

    /// Restarts the wait for a job, because a job has ended or the manager has started.
    pub(super) fn record_idle(&mut self) {
        self.idle_since = Instant::now();
    }

    pub(super) fn remaining_jobs(&self) -> usize {
        self.run_limits.jobs.map_or(usize::MAX, |jobs| jobs.saturating_sub(self.received))
    }

    /// Returns when the wait for a job ends, provided that none is in progress. `None` means no limit.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.run_limits.idle.map(|idle| self.idle_since + idle)
    }
}
