//! Limits on the manager's own run: a number of jobs, or a time without one.

use std::time::Duration;

use tokio::time::Instant;

/// Limits after which the manager exits. Without any it runs until a command stops it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of jobs to receive, including those of an earlier start. `None` means no limit.
    pub jobs: Option<usize>,
    /// Maximum time to wait for a job, from the start and after the end of the last one. `None` means no limit.
    pub idle: Option<Duration>,
}

/// Tracks the manager's progress towards its run limits.
#[derive(Debug)]
pub(super) struct Ledger {
    quota: Quota,
    taken: usize,
    /// Time since which no job is in progress. Only meaningful while there is none.
    idle_since: Instant,
}

impl Ledger {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, taken: 0, idle_since: Instant::now() }
    }

    /// Counts a received job.
    pub(super) fn took(&mut self) {
        self.taken = self.taken.saturating_add(1);
    }

    /// Starts the wait for a job: the last job has ended, or the manager has started.
    pub(super) fn rest(&mut self) {
        self.idle_since = Instant::now();
    }

    /// Returns the number of jobs that may still be received.
    pub(super) fn left(&self) -> usize {
        self.quota.jobs.map_or(usize::MAX, |jobs| jobs.saturating_sub(self.taken))
    }

    /// Returns when the wait for a job ends, provided that none is in progress. `None` means no limit.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.quota.idle.map(|idle| self.idle_since + idle)
    }
}
