//! Checks of the invariants J1 to J6 of ARCHITECTURE.md, without I/O.
//!
//! The coordinator compares the states of jobs after every write ([`InvariantMonitor`]). Tests and simulators call the other checks.

use std::collections::HashMap;

use crate::{JobId, JobStatus};

/// State of a job that the invariants depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobSnapshot {
    /// Status of the job.
    pub status: JobStatus,
    /// Number of times that the job was assigned.
    pub assignment: u32,
    /// Whether the last assignee has accepted the job or sent anything for it.
    pub is_active: bool,
}

/// Length and CRC-32 (IEEE) of a log, as in the runner API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogExtent {
    /// Length in bytes.
    pub bytes: u64,
    /// CRC-32 of all bytes.
    pub crc32: u32,
}

impl std::fmt::Display for LogExtent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes (crc32 {:08x})", self.bytes, self.crc32)
    }
}

/// A violated invariant, which is always a bug.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// J1: the state of a finished job changed.
    #[error("J1: finished job {job} changed from {from} to {to}")]
    EndedTwice {
        /// ID of the job.
        job: JobId,
        /// Final state of the job.
        from: JobStatus,
        /// Current state of the job.
        to: JobStatus,
    },
    /// J2: a job was assigned again although its assignee was active.
    #[error("J2: job {job} was assigned again (assignment {assignment}) although its assignee was active")]
    AssignedTwice {
        /// ID of the job.
        job: JobId,
        /// Number of the new assignment.
        assignment: u32,
    },
    /// J2: the status of a job says that a runner has it, but the job was never assigned.
    #[error("J2: job {job} is {status} without an assignment")]
    RunningUnassigned {
        /// ID of the job.
        job: JobId,
        /// Status of the job.
        status: JobStatus,
    },
    /// J1: an accepted job was not reported exactly once, although all faults that a test injected had been repaired.
    #[error("J1: job {job} was reported {times} times")]
    NotReportedOnce {
        /// ID of the job.
        job: JobId,
        /// Number of final reports that the coordinator accepted.
        times: usize,
    },
    /// J2: the user's script started more than once in one attempt.
    #[error("J2: the script of job {job} started {times} times")]
    StartedTwice {
        /// ID of the job.
        job: JobId,
        /// Number of starts that the script counted.
        times: usize,
    },
    /// J3: the trace at the coordinator differs from the agent's log.
    #[error("J3: the log of job {job} has {log}, its trace at the coordinator {trace}")]
    TraceDiffers {
        /// ID of the job.
        job: JobId,
        /// The agent's log.
        log: LogExtent,
        /// The coordinator's trace.
        trace: LogExtent,
    },
    /// J4: more jobs ran concurrently than the limit allows.
    #[error("J4: {found} jobs ran concurrently, the limit is {limit}")]
    ConcurrencyExceeded {
        /// Highest number of jobs that ran at the same time.
        found: usize,
        /// Limit for concurrent jobs.
        limit: usize,
    },
    /// J5: processes, files or leases of a job remain after it was reported and cleaned up.
    #[error("J5: leftovers of finished jobs: {0}")]
    Leftovers(String),
    /// J6: the value of a secret is visible.
    #[error("J6: the value of a secret is visible in {0}")]
    SecretVisible(String),
}

/// Checks J1: the job was reported exactly once. Call it after the test has repaired all faults that it injected.
///
/// # Errors
/// Returns [`Violation::NotReportedOnce`].
pub fn reported_once(job: JobId, times: usize) -> Result<(), Violation> {
    if times == 1 { Ok(()) } else { Err(Violation::NotReportedOnce { job, times }) }
}

/// Checks J2: the script started at most once in one attempt.
///
/// # Errors
/// Returns [`Violation::StartedTwice`].
pub fn started_at_most_once(job: JobId, times: usize) -> Result<(), Violation> {
    if times <= 1 { Ok(()) } else { Err(Violation::StartedTwice { job, times }) }
}

/// Checks J3: the coordinator's trace equals the agent's log.
///
/// # Errors
/// Returns [`Violation::TraceDiffers`].
pub fn trace_equals_log(job: JobId, log: LogExtent, trace: LogExtent) -> Result<(), Violation> {
    if log == trace { Ok(()) } else { Err(Violation::TraceDiffers { job, log, trace }) }
}

/// Checks J5: no leftovers of finished jobs were found.
///
/// # Errors
/// Returns [`Violation::Leftovers`] with all of them.
pub fn no_leftovers(found: impl IntoIterator<Item = String>) -> Result<(), Violation> {
    let found: Vec<String> = found.into_iter().collect();
    if found.is_empty() { Ok(()) } else { Err(Violation::Leftovers(found.join(", "))) }
}

/// Checks J6: `content`, which others can read at `location`, contains no secret. Empty secrets are ignored.
///
/// # Errors
/// Returns [`Violation::SecretVisible`] with the location, never with the value.
pub fn no_secret<'a>(
    location: &str,
    content: &[u8],
    secrets: impl IntoIterator<Item = &'a [u8]>,
) -> Result<(), Violation> {
    let is_visible = secrets
        .into_iter()
        .filter(|secret| !secret.is_empty())
        .any(|secret| content.windows(secret.len()).any(|window| window == secret));
    if is_visible { Err(Violation::SecretVisible(location.to_owned())) } else { Ok(()) }
}

/// Checks J4: at most `limit` jobs ran concurrently.
///
/// Each item has the start and the end of a job, or `None` if it still runs. A job that starts when another one ends does not overlap with
/// it.
///
/// # Errors
/// Returns [`Violation::ConcurrencyExceeded`] with the highest number of jobs that ran at the same time.
pub fn at_most<T: Ord>(limit: usize, jobs: impl IntoIterator<Item = (T, Option<T>)>) -> Result<(), Violation> {
    // Of two steps with the same time, an end (false) sorts before a start (true).
    let mut steps: Vec<(T, bool)> = Vec::new();
    for (started, finished) in jobs {
        // A job without duration does not overlap with other jobs.
        if finished.as_ref().is_none_or(|finished| *finished > started) {
            steps.push((started, true));
            steps.extend(finished.map(|finished| (finished, false)));
        }
    }
    steps.sort();
    let (mut running, mut highest) = (0_usize, 0);
    for (_, starts) in steps {
        running = if starts { running + 1 } else { running.saturating_sub(1) };
        highest = highest.max(running);
    }
    if highest > limit { Err(Violation::ConcurrencyExceeded { found: highest, limit }) } else { Ok(()) }
}

/// Compares each snapshot of a job with the previous one.
#[derive(Debug, Default)]
pub struct InvariantMonitor {
    last: HashMap<JobId, JobSnapshot>,
}

impl InvariantMonitor {
    /// Records a snapshot of a job. Bridges must not be recorded, because they run without an assignment.
    ///
    /// # Errors
    /// Returns the [`Violation`]. The snapshot is recorded anyway.
    pub fn record(&mut self, job: JobId, now: JobSnapshot) -> Result<(), Violation> {
        let before = self.last.insert(job, now);
        if now.status.is_on_runner() && now.assignment == 0 {
            return Err(Violation::RunningUnassigned { job, status: now.status });
        }
        let Some(before) = before else { return Ok(()) };
        // Skipped jobs can still change: the job that caused the skip may be retried.
        let ended = before.status.is_complete() && before.status != JobStatus::Skipped;
        if ended && now.status != before.status {
            return Err(Violation::EndedTwice { job, from: before.status, to: now.status });
        }
        if now.assignment != before.assignment && before.is_active {
            return Err(Violation::AssignedTwice { job, assignment: now.assignment });
        }
        Ok(())
    }

    /// Removes the last snapshot of a job, so that the next one is not compared.
    pub fn forget(&mut self, job: JobId) {
        self.last.remove(&job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId(1);

    fn snapshot(status: JobStatus, assignment: u32, is_active: bool) -> JobSnapshot {
        JobSnapshot { status, assignment, is_active }
    }

    #[test]
    fn state_of_finished_job_must_not_change() {
        let mut monitor = InvariantMonitor::default();
        assert_eq!(monitor.record(JOB, snapshot(JobStatus::Failed, 1, true)), Ok(()));
        assert_eq!(monitor.record(JOB, snapshot(JobStatus::Failed, 1, true)), Ok(()));
        let violation = monitor.record(JOB, snapshot(JobStatus::Success, 1, true)).expect_err("J1");
        assert!(matches!(violation, Violation::EndedTwice { .. }), "{violation}");
    }

    #[test]
    fn job_of_an_active_assignee_must_not_be_assigned_again() {
        let mut monitor = InvariantMonitor::default();
        assert_eq!(monitor.record(JOB, snapshot(JobStatus::Running, 1, false)), Ok(()));
        assert_eq!(monitor.record(JOB, snapshot(JobStatus::Running, 2, false)), Ok(()));
        assert_eq!(monitor.record(JOB, snapshot(JobStatus::Running, 2, true)), Ok(()));
        let violation = monitor.record(JOB, snapshot(JobStatus::Running, 3, false)).expect_err("J2");
        assert!(matches!(violation, Violation::AssignedTwice { .. }), "{violation}");
    }

    #[test]
    fn running_job_must_be_assigned() {
        let violation =
            InvariantMonitor::default().record(JOB, snapshot(JobStatus::Running, 0, false)).expect_err("J2");
        assert!(matches!(violation, Violation::RunningUnassigned { .. }), "{violation}");
    }

    #[test]
    fn at_most_counts_concurrent_jobs() {
        assert_eq!(at_most(2, [(1, Some(3)), (2, Some(4)), (3, Some(5)), (4, None), (2, Some(2))]), Ok(()));
        assert_eq!(
            at_most(1, [(1, Some(3)), (2, None), (0, Some(4))]),
            Err(Violation::ConcurrencyExceeded { found: 3, limit: 1 })
        );
        assert_eq!(at_most(0, std::iter::empty::<(u8, Option<u8>)>()), Ok(()));
    }

    #[test]
    fn checks_of_one_job_accept_only_valid_observations() {
        assert_eq!(reported_once(JOB, 1), Ok(()));
        reported_once(JOB, 0).unwrap_err();
        reported_once(JOB, 2).unwrap_err();
        started_at_most_once(JOB, 0).unwrap();
        started_at_most_once(JOB, 2).unwrap_err();
        let (log, trace) = (LogExtent { bytes: 2, crc32: 1 }, LogExtent { bytes: 2, crc32: 0xab });
        trace_equals_log(JOB, log, log).unwrap();
        let differs = trace_equals_log(JOB, log, trace).unwrap_err();
        assert!(differs.to_string().contains("2 bytes (crc32 000000ab)"), "{differs}");
        no_leftovers([]).unwrap();
        let violation = no_leftovers(["a".to_owned(), "b".to_owned()]).unwrap_err();
        assert!(violation.to_string().ends_with("a, b"), "{violation}");
        no_secret("a log", b"the [MASKED]", [&b"secret"[..], b""]).unwrap();
        let violation = no_secret("a log", b"the secret!", [&b"secret"[..]]).unwrap_err();
        // The message itself contains the word `secret`, but must not quote the content.
        assert!(!violation.to_string().contains("secret!"), "{violation}");
    }
}
