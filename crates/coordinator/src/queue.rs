//! Jobs that wait for a runner, and requests that wait for a job.
//!
//! Jobs with the same requirement are one group in the order in which they are given out, so a request looks at the head
//! of each group that it may have and takes the best. A request that finds nothing is held here; each new job is offered
//! to the held requests in the order in which they came, so exactly one of those that may have it is woken.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use muster_job::{JobId, RunnerId};
use muster_runner_api::service::JobRequestAnswer;
use muster_runner_api::wire::JobRequest;

use crate::command::ServiceReply;
use crate::facts::NewRunner;

/// What a runner must be to get a job (runner-api 9.3, step 2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Requirement {
    /// The job's tags.
    pub(crate) tags: BTreeSet<String>,
    /// The job's ref is protected.
    pub(crate) protected: bool,
}

impl Requirement {
    /// Why a runner may not have such jobs; `None`: it may.
    pub(crate) fn misfit(&self, runner: &NewRunner) -> Option<String> {
        if runner.paused {
            return Some("the runner is paused".to_owned());
        }
        if runner.ref_protected && !self.protected {
            return Some("the runner takes jobs of protected refs only".to_owned());
        }
        if self.tags.is_empty() && !runner.run_untagged {
            return Some("the runner takes no jobs without tags".to_owned());
        }
        let missing: Vec<_> = self
            .tags
            .iter()
            .filter(|tag| !runner.any_tags && !runner.tags.contains(tag))
            .map(|tag| format!("`{tag}`"))
            .collect();
        match missing.as_slice() {
            [] => None,
            [one] => Some(format!("the runner lacks the tag {one}")),
            more => Some(format!("the runner lacks the tags {}", more.join(", "))),
        }
    }
}

/// The place of a job in its group: longest remaining path first, then the oldest.
type Place = (Reverse<u64>, JobId);

/// A request that is held.
pub(crate) struct Waiter {
    /// Its number, for its timer.
    pub(crate) number: u64,
    /// Whose request it is.
    pub(crate) runner: RunnerId,
    /// The request.
    pub(crate) request: Box<JobRequest>,
    /// Where the answer goes.
    pub(crate) reply: ServiceReply<JobRequestAnswer>,
}

/// The queue of one coordinator.
#[derive(Default)]
pub(crate) struct Queue {
    groups: BTreeMap<Requirement, BTreeSet<Place>>,
    places: HashMap<JobId, (Requirement, Place)>,
    waiters: VecDeque<Waiter>,
    waiters_so_far: u64,
    version: u64,
    /// Tells versions of this process from those of an earlier one.
    process: u32,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new() -> Self {
        Self { process: rand::random(), ..Self::default() }
    }

    /// The opaque version for `X-GitLab-Last-Update`: another one whenever a job is added or a runner changes.
    pub(crate) fn version(&self) -> String {
        format!("{:08x}-{}", self.process, self.version)
    }

    /// A runner changed: requests that found nothing may find something now.
    pub(crate) fn touch(&mut self) {
        self.version += 1;
    }

    /// Adds a pending job; one that is there already stays where it is.
    pub(crate) fn add(&mut self, job: JobId, requirement: Requirement, priority: u64) {
        if self.places.contains_key(&job) {
            return;
        }
        self.version += 1;
        let place = (Reverse(priority), job);
        self.groups.entry(requirement.clone()).or_default().insert(place);
        self.places.insert(job, (requirement, place));
    }

    /// Takes a job out, if it is there.
    pub(crate) fn remove(&mut self, job: JobId) {
        let Some((requirement, place)) = self.places.remove(&job) else { return };
        if let Some(group) = self.groups.get_mut(&requirement) {
            group.remove(&place);
            if group.is_empty() {
                self.groups.remove(&requirement);
            }
        }
    }

    /// The job that a runner would get now.
    pub(crate) fn best_for(&self, runner: &NewRunner) -> Option<JobId> {
        let fitting = self.groups.iter().filter(|(requirement, _)| requirement.misfit(runner).is_none());
        fitting.filter_map(|(_, group)| group.first()).min().map(|(_, job)| *job)
    }

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Jobs that wait, by id.
    pub(crate) fn jobs(&self) -> BTreeSet<JobId> {
        self.places.keys().copied().collect()
    }

    /// What a waiting job requires.
    pub(crate) fn requirement(&self, job: JobId) -> Option<&Requirement> {
        self.places.get(&job).map(|(requirement, _)| requirement)
    }

    /// Holds a request. The answer is its number.
    pub(crate) fn hold(
        &mut self,
        runner: RunnerId,
        request: Box<JobRequest>,
        reply: ServiceReply<JobRequestAnswer>,
    ) -> u64 {
        self.waiters_so_far += 1;
        let number = self.waiters_so_far;
        self.waiters.push_back(Waiter { number, runner, request, reply });
        number
    }

    /// Lets go of the held requests of which `which` is true.
    pub(crate) fn release(&mut self, mut which: impl FnMut(&Waiter) -> bool) -> Vec<Waiter> {
        let mut gone = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            if which(&waiter) { gone.push(waiter) } else { self.waiters.push_back(waiter) }
        }
        gone
    }

    /// Lets go of the newest held requests, down to `most`. Those whose sender has gone do not count.
    pub(crate) fn shed(&mut self, most: usize) -> VecDeque<Waiter> {
        if self.waiters.len() <= most {
            return VecDeque::new();
        }
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        self.waiters.split_off(most.min(self.waiters.len()))
    }

    /// The first held request whose runner may have a waiting job, by its index, with that job. Requests whose sender
    /// has gone are forgotten.
    pub(crate) fn next_match<'a>(
        &mut self,
        settings: impl Fn(RunnerId) -> Option<&'a NewRunner>,
    ) -> Option<(usize, JobId)> {
        self.waiters.retain(|waiter| !waiter.reply.is_closed());
        if self.places.is_empty() {
            return None;
        }
        // Many requests of one runner are held: look once per runner.
        let mut looked: HashMap<RunnerId, Option<JobId>> = HashMap::new();
        self.waiters.iter().enumerate().find_map(|(index, waiter)| {
            let found = *looked
                .entry(waiter.runner)
                .or_insert_with(|| settings(waiter.runner).and_then(|runner| self.best_for(runner)));
            found.map(|job| (index, job))
        })
    }

    /// A held request.
    pub(crate) fn waiter(&self, index: usize) -> Option<&Waiter> {
        self.waiters.get(index)
    }

    /// Takes a held request out.
    pub(crate) fn take(&mut self, index: usize) -> Option<Waiter> {
        self.waiters.remove(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(tags: &[&str]) -> Requirement {
        Requirement { tags: tags.iter().map(ToString::to_string).collect(), protected: false }
    }

    fn runner(tags: &[&str], run_untagged: bool) -> NewRunner {
        NewRunner { tags: tags.iter().map(ToString::to_string).collect(), run_untagged, ..NewRunner::default() }
    }

    #[test]
    fn a_runner_gets_only_jobs_whose_tags_it_has() {
        let mut queue = Queue::new();
        queue.add(JobId(1), requirement(&["gpu"]), 0);
        queue.add(JobId(2), requirement(&[]), 0);
        assert_eq!(queue.best_for(&runner(&[], true)), Some(JobId(2)));
        assert_eq!(queue.best_for(&runner(&["gpu", "linux"], false)), Some(JobId(1)));
        assert_eq!(queue.best_for(&runner(&["linux"], false)), None);
        assert_eq!(queue.best_for(&NewRunner { paused: true, ..runner(&["gpu"], true) }), None);
        assert_eq!(queue.best_for(&NewRunner { ref_protected: true, ..runner(&["gpu"], true) }), None);
    }

    #[test]
    fn the_longest_remaining_path_goes_first_and_then_the_oldest() {
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
    fn a_new_job_changes_the_version_and_the_same_job_again_does_not() {
        let mut queue = Queue::new();
        let before = queue.version();
        queue.add(JobId(1), requirement(&[]), 0);
        let after = queue.version();
        assert_ne!(before, after);
        queue.add(JobId(1), requirement(&[]), 0);
        assert_eq!(queue.version(), after);
    }
}
