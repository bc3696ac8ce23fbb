//! Everything that has to happen at a time, in one heap: the actor sleeps until the first of them.
//!
//! Entries are not removed when they become needless; who fires them looks whether they still apply. Those of jobs that
//! have left memory are removed from time to time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use muster_job::JobId;

use crate::clock::Timestamp;

/// Timers per job that are no reason to look for needless ones.
const PER_JOB: usize = 8;
/// Minimum number of jobs that the size of the heap is compared with, so that a small heap is never scanned.
const SLACK: usize = 512;

/// What to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The delay of a delayed job is over.
    Delayed(JobId),
    /// The hand-out lease of the job's `n`th hand-out is over.
    Handout(JobId, u32),
    /// A job on a runner may have run, or been silent, for too long.
    Runner(JobId),
    /// A pending job may have waited for too long.
    Pending(JobId),
    /// Artifacts have expired.
    Expiry,
    /// A bridge has waited for the files of its pipeline.
    Sources(JobId),
    /// A held job request has to be answered.
    LongPoll(u64),
    /// What could not be written is tried again.
    Flush,
}

/// The heap.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Timestamp, Timer)>>);

impl Timers {
    /// Adds one.
    pub(crate) fn add(&mut self, at: Timestamp, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    /// When the first is due.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes those of jobs of which `known` is false, once they are many more than the jobs in memory.
    pub(crate) fn prune(&mut self, jobs: usize, known: impl Fn(JobId) -> bool) {
        if self.0.len() <= PER_JOB * (jobs + SLACK) {
            return;
        }
        self.0.retain(|Reverse((_, timer))| match timer {
            Timer::Delayed(job)
            | Timer::Handout(job, _)
            | Timer::Runner(job)
            | Timer::Pending(job)
            | Timer::Sources(job) => known(*job),
            Timer::Expiry | Timer::LongPoll(_) | Timer::Flush => true,
        });
        self.0.shrink_to(2 * self.0.len());
    }

    /// Takes the first out if it is due.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, timer))| timer)
    }
}
