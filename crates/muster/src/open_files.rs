//! Limit of open files (`ulimit -n`), and the number of jobs that it allows.
//!
//! Manager and agent raise their soft limit. By default, jobs keep the original limit, because some programs iterate
//! over all file descriptors up to the limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a manager or an agent opens without jobs: about 16, doubled for safety.
const BASE_FILES: u64 = 32;
/// Maximum number of files that an agent opens for a job: journal, log, connection, pipes, process handles, and files
/// of an archive.
const FILES_PER_JOB: u64 = 16;

/// Raises the soft limit to the hard limit, and returns the previous soft limit. `None` means no limit.
pub(crate) fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "failed to raise the limit of open files");
    }
    current
}

/// Returns the soft limit of this process. `None` means no limit.
pub(crate) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns how many jobs the limit of open files allows at the same time, but at least 1.
pub(crate) fn max_jobs() -> usize {
    limit().map_or(usize::MAX, max_jobs_for)
}

pub(crate) fn warn_if_low(concurrent: usize) {
    let max_jobs = max_jobs();
    if max_jobs < concurrent {
        tracing::warn!(
            concurrent,
            "only {max_jobs} of {concurrent} jobs can run at the same time on this host, because at most {} files may be open; \
                 raise the limit to {} (`ulimit -n`, or LimitNOFILE of the service) and restart",
            limit().unwrap_or(u64::MAX),
            BASE_FILES.saturating_add(FILES_PER_JOB.saturating_mul(concurrent as u64))
        );
    }
}

fn max_jobs_for(files: u64) -> usize {
    usize::try_from(files.saturating_sub(BASE_FILES) / FILES_PER_JOB).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_allows_proportional_jobs_but_at_least_one() {
        for (files, jobs) in [(0, 1), (48, 1), (64, 2), (1024, 62), (524_288, 32_766)] {
            assert_eq!(max_jobs_for(files), jobs, "{files}");
        }
    }
}
