//! The queue of jobs that wait for a runner.
//!
//! Jobs with the same requirement form one group, ordered by [`QueuePosition`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_job::JobId;

use crate::facts::RunnerSpec;

/// Requirement of a job for its runner (docs/spec/runner-api.md, section 9.3, step 2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Requirement {
    pub(crate) tags: BTreeSet<String>,
    /// Whether the ref of the job is protected.
    pub(crate) protected: bool,
}

impl Requirement {
    /// Returns why a runner does not match, for example "is paused". `None` if it matches.
    pub(crate) fn mismatch_reason(&self, runner: &RunnerSpec) -> Option<String> {
        if runner.paused {
            return Some("is paused".to_owned());
        }
        if runner.ref_protected && !self.protected {
            return Some("only runs jobs of protected refs".to_owned());
        }
        if self.tags.is_empty() && !runner.run_untagged {
            return Some("does not run untagged jobs".to_owned());
        }
        let missing: Vec<_> = self
            .tags
            .iter()
            .filter(|tag| !runner.any_tags && !runner.tags.contains(tag))
            .map(|tag| format!("`{tag}`"))
            .collect();
        match missing.as_slice() {
            [] => None,
            [tag] => Some(format!("lacks the tag {tag}")),
            tags => Some(format!("lacks the tags {}", tags.join(", "))),
        }
    }
}

/// Position of a job in its group. The job with the longest path to the end of its pipeline comes first
/// ([`crate::schedule::priority`]), and among equal ones, the job with the lowest ID.
type QueuePosition = (Reverse<u64>, JobId);

#[derive(Default)]
pub(crate) struct Queue {
    groups: BTreeMap<Requirement, BTreeSet<QueuePosition>>,
    positions: HashMap<JobId, (Requirement, QueuePosition)>,
    version: u64,
    /// Random number of this process, so that its versions differ from the versions of earlier processes.
    process: u32,
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self { process: rand::random(), ..Self::default() }
    }

    /// Opaque value of `X-GitLab-Last-Update`.
    pub(crate) fn version(&self) -> String {
        format!("{:08x}-{}", self.process, self.version)
    }

    /// Changes the version after a runner changed, because a request that got no job may get one now.
    pub(crate) fn change_version(&mut self) {
        self.version += 1;
    }

    /// Adds a pending job, unless it is already in the queue.
    pub(crate) fn add(&mut self, job: JobId, requirement: Requirement, priority: u64) {
        if self.positions.contains_key(&job) {
            return;
        }
        self.version += 1;
        let position = (Reverse(priority), job);
        self.groups.entry(requirement.clone()).or_default().insert(position);
        self.positions.insert(job, (requirement, position));
    }

    pub(crate) fn remove(&mut self, job: JobId) {
        let Some((requirement, position)) = self.positions.remove(&job) else { return };
        if let Some(group) = self.groups.get_mut(&requirement) {
            group.remove(&position);
            if group.is_empty() {
                self.groups.remove(&requirement);
            }
        }
    }

    pub(crate) fn best_for(&self, runner: &RunnerSpec) -> Option<JobId> {
        let matching = self.groups.iter().filter(|(requirement, _)| requirement.mismatch_reason(runner).is_none());
        matching.filter_map(|(_, group)| group.first()).min().map(|(_, job)| *job)
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn jobs(&self) -> BTreeSet<JobId> {
        self.positions.keys().copied().collect()
    }

    pub(crate) fn requirement(&self, job: JobId) -> Option<&Requirement> {
        self.positions.get(&job).map(|(requirement, _)| requirement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(tags: &[&str]) -> Requirement {
        Requirement { tags: tags.iter().map(ToString::to_string).collect(), protected: false }
    }

    fn runner(tags: &[&str], run_untagged: bool) -> RunnerSpec {
        RunnerSpec { tags: tags.iter().map(ToString::to_string).collect(), run_untagged, ..RunnerSpec::default() }
    }

    #[test]
    fn runner_gets_only_jobs_with_matching_tags() {
        let mut queue = Queue::new();
        queue.add(JobId(1), requirement(&["gpu"]), 0);
        queue.add(JobId(2), requirement(&[]), 0);
        assert_eq!(queue.best_for(&runner(&[], true)), Some(JobId(2)));
        assert_eq!(queue.best_for(&runner(&["gpu", "linux"], false)), Some(JobId(1)));
        assert_eq!(queue.best_for(&runner(&["linux"], false)), None);
        assert_eq!(queue.best_for(&RunnerSpec { paused: true, ..runner(&["gpu"], true) }), None);
        assert_eq!(queue.best_for(&RunnerSpec { ref_protected: true, ..runner(&["gpu"], true) }), None);
    }

    #[test]
    fn queue_orders_by_remaining_path_then_age() {
        let mut queue = Queue::new();
        queue.add(JobId(1), requirement(&[]), 1);
        queue.add(JobId(3), requirement(&["a"]), 5);
        queue.add(JobId(2), requirement(&[]), 5);
        let all = runner(&["a"], true);
        let mut order = Vec::new();
        while let Some(job) = queue.best_for(&all) {
            queue.remove(job);
            order.push(job);
        }
        assert_eq!(order, [JobId(2), JobId(3), JobId(1)]);
    }

    #[test]
    fn adding_a_job_changes_the_queue_version_only_once() {
        let mut queue = Queue::new();
        let before = queue.version();
        queue.add(JobId(1), requirement(&[]), 0);
        let after = queue.version();
        assert_ne!(before, after);
        queue.add(JobId(1), requirement(&[]), 0);
        assert_eq!(queue.version(), after);
    }
}
