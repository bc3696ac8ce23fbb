//! What must hold whatever happens, as code: the actor checks it after every write, the tests check it on what they see.
//!
//! The numbers are those of the life of a job: J1 (one final state), J2 (one taker at a time, and none after the first
//! that showed life), J4 (no limit of how many at once is exceeded).

use std::collections::HashMap;

use muster_job::{JobId, JobStatus};

/// Where a record of a job stands, as far as the invariants look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Its state.
    pub status: JobStatus,
    /// How often it was given out.
    pub handout: u32,
    /// The taker of the last hand-out has shown a sign of life.
    pub alive: bool,
}

/// An invariant does not hold: a defect of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// J1: a record that ended has another state now.
    #[error("J1: job {job} ended as {was} and is {now} now")]
    EndedTwice {
        /// The record.
        job: JobId,
        /// Its final state.
        was: JobStatus,
        /// Its state now.
        now: JobStatus,
    },
    /// J2: a record was given to another taker although its taker had shown a sign of life.
    #[error("J2: job {job} was given out again (hand-out {handout}) although its taker was alive")]
    TakenTwice {
        /// The record.
        job: JobId,
        /// The number of the new hand-out.
        handout: u32,
    },
    /// J2: a record is with a runner, and no hand-out accounts for that.
    #[error("J2: job {job} is {status} without having been given out")]
    RunsUntaken {
        /// The record.
        job: JobId,
        /// Its state.
        status: JobStatus,
    },
    /// J4: more jobs ran at once than their limit allows.
    #[error("J4: {found} jobs ran at once, and {limit} may")]
    TooManyAtOnce {
        /// How many.
        found: usize,
        /// Their limit.
        limit: usize,
    },
}

/// J4: whether never more than `limit` of `jobs` ran at once. Of each it takes when it started and when it finished, by
/// any clock that all share; `None`: it still runs. A job that starts in the instant in which another ends follows it.
///
/// # Errors
/// [`Violation::TooManyAtOnce`] with the most that ran at once.
pub fn at_most<T: Ord>(limit: usize, jobs: impl IntoIterator<Item = (T, Option<T>)>) -> Result<(), Violation> {
    // In an instant, ends (false) come before starts (true).
    let mut steps: Vec<(T, bool)> = Vec::new();
    for (started, finished) in jobs {
        // What took no time at all runs with nothing.
        if finished.as_ref().is_none_or(|finished| *finished > started) {
            steps.push((started, true));
            steps.extend(finished.map(|finished| (finished, false)));
        }
    }
    steps.sort();
    let (mut running, mut found) = (0_usize, 0);
    for (_, starts) in steps {
        running = if starts { running + 1 } else { running.saturating_sub(1) };
        found = found.max(running);
    }
    if found > limit { Err(Violation::TooManyAtOnce { found, limit }) } else { Ok(()) }
}

/// Follows records and compares each standing with the one before.
#[derive(Debug, Default)]
pub struct Watch {
    last: HashMap<JobId, Standing>,
}

impl Watch {
    /// Takes note of where a script job stands now.
    ///
    /// # Errors
    /// [`Violation`]; the new standing is noted all the same.
    pub fn note(&mut self, job: JobId, now: Standing) -> Result<(), Violation> {
        let before = self.last.insert(job, now);
        if now.status.is_on_runner() && now.handout == 0 {
            return Err(Violation::RunsUntaken { job, status: now.status });
        }
        let Some(before) = before else { return Ok(()) };
        // A skipped record was never decided for good: what made it skip may come alive again.
        let ended = before.status.is_complete() && before.status != JobStatus::Skipped;
        if ended && now.status != before.status {
            return Err(Violation::EndedTwice { job, was: before.status, now: now.status });
        }
        if now.handout != before.handout && before.alive {
            return Err(Violation::TakenTwice { job, handout: now.handout });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(1);

    fn standing(status: JobStatus, handout: u32, alive: bool) -> Standing {
        Standing { status, handout, alive }
    }

    #[test]
    fn an_ended_job_stays_as_it_ended() {
        let mut watch = Watch::default();
        assert_eq!(watch.note(JOB, standing(JobStatus::Failed, 1, true)), Ok(()));
        assert_eq!(watch.note(JOB, standing(JobStatus::Failed, 1, true)), Ok(()));
        let violation = watch.note(JOB, standing(JobStatus::Success, 1, true)).expect_err("J1");
        assert!(matches!(violation, Violation::EndedTwice { .. }), "{violation}");
    }

    #[test]
    fn only_a_silent_taker_loses_its_job() {
        let mut watch = Watch::default();
        assert_eq!(watch.note(JOB, standing(JobStatus::Running, 1, false)), Ok(()));
        assert_eq!(watch.note(JOB, standing(JobStatus::Running, 2, false)), Ok(()));
        assert_eq!(watch.note(JOB, standing(JobStatus::Running, 2, true)), Ok(()));
        let violation = watch.note(JOB, standing(JobStatus::Running, 3, false)).expect_err("J2");
        assert!(matches!(violation, Violation::TakenTwice { .. }), "{violation}");
    }

    #[test]
    fn no_job_runs_that_nobody_took() {
        let violation = Watch::default().note(JOB, standing(JobStatus::Running, 0, false)).expect_err("J2");
        assert!(matches!(violation, Violation::RunsUntaken { .. }), "{violation}");
    }

    #[test]
    fn what_runs_at_once_is_counted() {
        assert_eq!(at_most(2, [(1, Some(3)), (2, Some(4)), (3, Some(5)), (4, None), (2, Some(2))]), Ok(()));
        assert_eq!(
            at_most(1, [(1, Some(3)), (2, None), (0, Some(4))]),
            Err(Violation::TooManyAtOnce { found: 3, limit: 1 })
        );
        assert_eq!(at_most(0, std::iter::empty::<(u8, Option<u8>)>()), Ok(()));
    }
}
