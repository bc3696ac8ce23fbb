//! How many files a process may have open (`ulimit -n`), and how many jobs that suffices for.
//!
//! The limit that counts has a higher one above it, up to which a program may raise its own. Manager and agent do; the
//! processes of jobs have what the manager was started with, since some programs go through all numbers up to the limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a manager or an agent has open whatever it does: about 16, and some room.
const ALWAYS: u64 = 32;
/// What a job has open at its agent at the most: its journal and log, the ends of pipes and processes, the files of an archive
/// and its connection. At the manager it has fewer.
const OF_A_JOB: u64 = 16;

/// Raises the limit of this process as far as it may; what it was, none where there was no limit.
pub(crate) fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
    current
}

/// How many this process may have open; none where there is no limit.
pub(crate) fn permitted() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The jobs at the same time that the limit of this process suffices for; one at least.
pub(crate) fn jobs_max() -> usize {
    permitted().map_or(usize::MAX, suffices_for)
}

/// Says so where the limit does not suffice for `concurrent` jobs.
pub(crate) fn tell(concurrent: usize) {
    let most = jobs_max();
    if most < concurrent {
        tracing::warn!(
            concurrent,
            "the limit of {} open files suffices for {most} jobs at the same time on this host: no more are requested. \
             For {concurrent}, raise it to {} (`ulimit -n`, or LimitNOFILE of the service), and start again",
            permitted().unwrap_or(u64::MAX),
            ALWAYS.saturating_add(OF_A_JOB.saturating_mul(concurrent as u64))
        );
    }
}

fn suffices_for(files: u64) -> usize {
    usize::try_from(files.saturating_sub(ALWAYS) / OF_A_JOB).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_suffices_for_some_jobs_and_always_for_one() {
        for (files, jobs) in [(0, 1), (48, 1), (64, 2), (1024, 62), (524_288, 32_766)] {
            assert_eq!(suffices_for(files), jobs, "{files}");
        }
    }
}
