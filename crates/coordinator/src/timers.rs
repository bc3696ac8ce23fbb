//! All timers in one heap. The actor sleeps until the first one is due.
//!
//! The handler of a timer ignores a stale timer. [`Timers::prune`] removes the timers of jobs that are no longer in
//! memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_job::JobId;

use crate::clock::Timestamp;

/// Maximum number of timers per job in memory. If there are more, the timers of jobs that are not in memory are removed.
const MAX_PER_JOB: usize = 8;
/// Number that is added to the number of jobs in memory when the maximum is computed, so that a small heap is never
/// scanned.
const SLACK: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    Delayed(JobId),
    /// Time by which a manager must have accepted an assignment of the job. The `u32` is the number of the assignment.
    AcceptTimeout(JobId, u32),
    /// A job on a runner may have run for too long, or its manager may have been silent for too long.
    Runner(JobId),
    Pending(JobId),
    Expiry,
    /// A bridge may have waited too long for the files of its pipeline.
    Sources(JobId),
    LongPoll(u64),
    Flush,
}

#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Timestamp, Timer)>>);

impl Timers {
    pub(crate) fn add(&mut self, at: Timestamp, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes the timers of jobs that are not in memory, if there are many more timers than jobs in memory.
    pub(crate) fn prune(&mut self, jobs: usize, in_memory: impl Fn(JobId) -> bool) {
        if self.0.len() <= MAX_PER_JOB * (jobs + SLACK) {
            return;
        }
        self.0.retain(|Reverse((_, timer))| match timer {
            Timer::Delayed(job)
            | Timer::AcceptTimeout(job, _)
            | Timer::Runner(job)
            | Timer::Pending(job)
            | Timer::Sources(job) => in_memory(*job),
            Timer::Expiry | Timer::LongPoll(_) | Timer::Flush => true,
        });
        self.0.shrink_to(2 * self.0.len());
    }

    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<Timer> {
        if self.next_due()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, timer))| timer)
    }
}
