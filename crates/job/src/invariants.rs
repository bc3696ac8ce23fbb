//! What must hold whatever happens, as code: the coordinator checks it after every write, simulators and tests check it
//! on what they see. Pure: who calls brings what was seen.
//!
//! The numbers are those of the life of a job: J1 one final state, J2 one start of the user's script, J3 the trace is the
//! log, J4 no limit of how many at once is exceeded, J5 nothing is left, J6 no secret shows.

use std::collections::HashMap;

use crate::{JobId, JobStatus};

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

/// How much of a log there is, and which: its length and its CRC-32 (IEEE), as the runner API has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub bytes: u64,
    /// CRC-32 of all of them.
    pub crc32: u32,
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes (crc32 {:08x})", self.bytes, self.crc32)
    }
}

/// An invariant does not hold: a defect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
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
    /// J1: a job that was accepted has no final state although every fault has healed, or more than one was reported.
    #[error("J1: job {job} was reported {times} times")]
    NotReportedOnce {
        /// The job.
        job: JobId,
        /// Final reports that the coordinator took.
        times: usize,
    },
    /// J2: the user's script was started more than once in one attempt.
    #[error("J2: the script of job {job} was started {times} times")]
    StartedTwice {
        /// The job.
        job: JobId,
        /// Starts that its script has seen.
        times: usize,
    },
    /// J3: the trace at the coordinator is not the agent's log.
    #[error("J3: the log of job {job} has {log}, its trace at the coordinator {trace}")]
    TraceDiffers {
        /// The job.
        job: JobId,
        /// What the agent has.
        log: Extent,
        /// What the coordinator has.
        trace: Extent,
    },
    /// J4: more jobs ran at once than their limit allows.
    #[error("J4: {found} jobs ran at once, and {limit} may")]
    TooManyAtOnce {
        /// How many.
        found: usize,
        /// Their limit.
        limit: usize,
    },
    /// J5: something of a job remains after it was reported and cleaned up.
    #[error("J5: after the end of its job there is still {0}")]
    Left(String),
    /// J6: a secret's value stands where others can see it.
    #[error("J6: the value of a secret stands in {0}")]
    SecretShown(String),
}

/// J1: a job whose faults have healed was reported, and once.
///
/// # Errors
/// [`Violation::NotReportedOnce`].
pub fn reported_once(job: JobId, times: usize) -> Result<(), Violation> {
    if times == 1 { Ok(()) } else { Err(Violation::NotReportedOnce { job, times }) }
}

/// J2: whether a script that counted its own starts in one attempt was started at most once.
///
/// # Errors
/// [`Violation::StartedTwice`].
pub fn started_at_most_once(job: JobId, times: usize) -> Result<(), Violation> {
    if times <= 1 { Ok(()) } else { Err(Violation::StartedTwice { job, times }) }
}

/// J3: whether the coordinator has the agent's log, byte for byte.
///
/// # Errors
/// [`Violation::TraceDiffers`].
pub fn trace_is_log(job: JobId, log: Extent, trace: Extent) -> Result<(), Violation> {
    if log == trace { Ok(()) } else { Err(Violation::TraceDiffers { job, log, trace }) }
}

/// J5: whether nothing is left of jobs that have ended; `left` names what was found.
///
/// # Errors
/// [`Violation::Left`] with all of it.
pub fn nothing_left(left: impl IntoIterator<Item = String>) -> Result<(), Violation> {
    let left: Vec<String> = left.into_iter().collect();
    if left.is_empty() { Ok(()) } else { Err(Violation::Left(left.join(", "))) }
}

/// J6: whether `seen`, which others can read at `place`, has none of `secrets` in it. An empty secret is none.
///
/// # Errors
/// [`Violation::SecretShown`] with the place, never with the value.
pub fn no_secret<'a>(place: &str, seen: &[u8], secrets: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Violation> {
    let shown = secrets
        .into_iter()
        .filter(|secret| !secret.is_empty())
        .any(|secret| seen.windows(secret.len()).any(|window| window == secret));
    if shown { Err(Violation::SecretShown(place.to_owned())) } else { Ok(()) }
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

    /// Forgets a record that nobody changes for now. What comes later of it is compared with nothing.
    pub fn forget(&mut self, job: JobId) {
        self.last.remove(&job);
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

    #[test]
    fn what_was_seen_of_one_job_is_judged() {
        assert_eq!(reported_once(JOB, 1), Ok(()));
        reported_once(JOB, 0).unwrap_err();
        reported_once(JOB, 2).unwrap_err();
        started_at_most_once(JOB, 0).unwrap();
        started_at_most_once(JOB, 2).unwrap_err();
        let (log, trace) = (Extent { bytes: 2, crc32: 1 }, Extent { bytes: 2, crc32: 0xab });
        trace_is_log(JOB, log, log).unwrap();
        let differs = trace_is_log(JOB, log, trace).unwrap_err();
        assert!(differs.to_string().contains("2 bytes (crc32 000000ab)"), "{differs}");
        nothing_left([]).unwrap();
        let left = nothing_left(["a".to_owned(), "b".to_owned()]).unwrap_err();
        assert!(left.to_string().ends_with("a, b"), "{left}");
        no_secret("a log", b"the [MASKED]", [&b"secret"[..], b""]).unwrap();
        let shown = no_secret("a log", b"the secret!", [&b"secret"[..]]).unwrap_err();
        assert!(!shown.to_string().contains("secret!"), "{shown}");
    }
}
