//! Limits on the manager's own run: a number of jobs, or a time without a job.

use std::time::Duration;

use tokio::time::Instant;

/// Limits after which the manager exits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunLimits {
    /// Maximum number of jobs to receive, including restored jobs. `None` means no limit.
    pub jobs: Option<usize>,
    /// Maximum time without a job in progress, from the start of the manager or the end of the last job. `None` means no limit.
    pub idle: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct RunLimitTracker {
    run_limits: RunLimits,
    received: usize,
    /// Not used while jobs are in progress.
    idle_since: Instant,
}

impl RunLimitTracker {
    pub(super) fn new(run_limits: RunLimits) -> Self {
        Self { run_limits, received: 0, idle_since: Instant::now() }
    }

    pub(super) fn record_job(&mut self) {
        self.received = self.received.saturating_add(1);
    }

    pub(super) fn record_idle(&mut self) {
        self.idle_since = Instant::now();
    }

    pub(super) fn remaining_jobs(&self) -> usize {
        self.run_limits.jobs.map_or(usize::MAX, |jobs| jobs.saturating_sub(self.received))
    }

    /// Returns the time at which the manager stops waiting for a job, if no job is in progress. `None` means never.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.run_limits.idle.map(|idle| self.idle_since + idle)
    }
}
