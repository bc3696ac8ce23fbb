//! Usage of each kind of container, and the number of containers that should therefore wait. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

use muster_agent_api::builtin::PreparedPolicy;
use tokio::time::Instant;

/// Maximum number of jobs to record for one kind of container.
const MAX_JOBS: usize = 1000;

#[derive(Debug)]
pub(super) struct Usage {
    policy: PreparedPolicy,
    jobs: VecDeque<Instant>,
}

impl Usage {
    pub(super) fn new(policy: PreparedPolicy) -> Self {
        Self { policy, jobs: VecDeque::new() }
    }

    pub(super) fn add(&mut self, policy: PreparedPolicy, now: Instant) {
        self.policy = policy;
        if self.jobs.len() == MAX_JOBS {
            self.jobs.pop_front();
        }
        self.jobs.push_back(now);
    }

    /// Returns the time of the last job, if there was one.
    pub(super) fn last(&self) -> Option<Instant> {
        self.jobs.back().copied()
    }

    /// Returns the maximum time for which a container waits.
    pub(super) fn max_idle(&self) -> Duration {
        Duration::from_millis(self.policy.max_idle_ms)
    }

    /// Forgets jobs before the window. Returns whether none are left.
    pub(super) fn prune(&mut self, now: Instant) -> bool {
        let window = Duration::from_millis(self.policy.window_ms);
        while self.jobs.front().is_some_and(|job| now.duration_since(*job) > window) {
            self.jobs.pop_front();
        }
        self.jobs.is_empty()
    }

    /// Returns the number of jobs in the window, or 0 if the last job is older than the maximum idle time.
    fn recent(&self, now: Instant) -> usize {
        let is_idle = self.last().is_none_or(|last| now.duration_since(last) >= self.max_idle());
        if is_idle { 0 } else { self.jobs.len() }
    }
}

/// Returns how many containers of each kind should wait. `kinds` are all kinds of one runner and engine.
///
/// The number is one per `min_uses` jobs in the window. If the sum exceeds the maximum, kinds with more jobs get more.
pub(super) fn shares(kinds: &[&Usage], now: Instant) -> Vec<usize> {
    let recent: Vec<usize> = kinds.iter().map(|kind| kind.recent(now)).collect();
    let maximum = kinds.iter().max_by_key(|kind| kind.last()).map_or(0, |latest| latest.policy.max_containers);
    let mut shares = vec![0; kinds.len()];
    for _ in 0..maximum {
        let candidates =
            shares.iter().zip(&recent).zip(kinds).enumerate().filter_map(|(index, ((share, recent), kind))| {
                let min_uses = usize::try_from(kind.policy.min_uses.max(1)).unwrap_or(usize::MAX);
                (*share < recent / min_uses).then_some((recent / (share + 1), index))
            });
        let Some((_, next)) = candidates.max() else { break };
        if let Some(share) = shares.get_mut(next) {
            *share += 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: PreparedPolicy =
        PreparedPolicy { max_containers: 4, min_uses: 2, window_ms: 100_000, max_idle_ms: 10_000 };

    fn used(seconds: &[u64], start: Instant) -> Usage {
        let mut usage = Usage::new(POLICY);
        seconds.iter().for_each(|second| usage.add(POLICY, start + Duration::from_secs(*second)));
        usage
    }

    #[test]
    fn containers_are_shared_by_popularity_up_to_the_maximum() {
        let start = Instant::now();
        let kinds = [used(&[1; 1], start), used(&[1; 3], start), used(&[1; 12], start), used(&[1; 5], start)];
        let shares_of = |kinds: &[Usage]| shares(&kinds.iter().collect::<Vec<_>>(), start + Duration::from_secs(2));
        assert_eq!(shares_of(&kinds), [0, 0, 3, 1]);
        assert_eq!(shares_of(&kinds[..2]), [0, 1], "one use is too few, and three are enough for one container");
        assert_eq!(shares_of(&[]), [0; 0]);
    }

    #[test]
    fn only_jobs_within_the_window_count_and_an_idle_kind_needs_no_container() {
        let start = Instant::now();
        let mut usage = used(&[0, 95], start);
        let at = |usage: &Usage, second| shares(&[usage], start + Duration::from_secs(second));
        assert_eq!(at(&usage, 96), [1]);
        assert_eq!(at(&usage, 105), [0], "no job for the maximum idle time");
        usage.add(POLICY, start + Duration::from_secs(106));
        assert!(!usage.prune(start + Duration::from_secs(106)));
        assert_eq!(usage.jobs.len(), 2, "the job before the window must be forgotten");
        assert!(usage.prune(start + Duration::from_secs(300)));
    }
}
