//! An end that is set beforehand: so many jobs, or so long without one.

use std::time::Duration;

use tokio::time::Instant;

/// What a manager works for before it ends by itself. Without either it works until it is told to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    /// Jobs to take, those of an earlier start included.
    pub jobs: Option<usize>,
    /// How long to wait for a job, from the start and from the end of the last one.
    pub idle: Option<Duration>,
}

/// How far a manager is with its quota.
#[derive(Debug)]
pub(super) struct Ledger {
    quota: Quota,
    taken: usize,
    /// Since when there was no job; it counts only while there is none.
    idle_since: Instant,
}

impl Ledger {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, taken: 0, idle_since: Instant::now() }
    }

    /// A job was taken.
    pub(super) fn took(&mut self) {
        self.taken = self.taken.saturating_add(1);
    }

    /// A job has ended, or the work begins.
    pub(super) fn rest(&mut self) {
        self.idle_since = Instant::now();
    }

    /// Jobs that may still be taken.
    pub(super) fn left(&self) -> usize {
        self.quota.jobs.map_or(usize::MAX, |jobs| jobs.saturating_sub(self.taken))
    }

    /// When the wait for a job is over, while there is none.
    pub(super) fn idle_until(&self) -> Option<Instant> {
        self.quota.idle.map(|idle| self.idle_since + idle)
    }
}
