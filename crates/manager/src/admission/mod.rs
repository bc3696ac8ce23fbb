//! Decides which runner may request a job, and when.
//!
//! ```text
//! configure, capacities, answers, ends of jobs --> Admission --decide(now)--> requests to start, requests to cancel, wake-up
//! ```
//!
//! A request in flight may bring a job, so it counts against `concurrent` and its runner's `limit`.
//!
//! A request is canceled in three cases: another runner may send a request but `concurrent` leaves it none, the
//! settings of the request no longer apply, or the manager ends. GitLab may already have assigned a job to the request,
//! so it is canceled only from [`Poll::cancelable_from`] on. In the last two cases, a repeatable request
//! ([`Poll::is_repeatable`]) is canceled at once.

mod entry;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use muster_executor::REQUEST_HELD_AFTER;
use tokio::time::Instant;

use entry::RunnerEntry;
pub use entry::RunnerStats;
pub(crate) use entry::{Limits, Notice, Outcome};
use muster_config::settings::{MIN_HOLD, RunnerKey};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PollTimings {
    /// Minimum time between two requests of one runner, if the coordinator does not hold them.
    pub(crate) check_interval: Duration,
    /// Minimum time from sending a request to its cancellation.
    pub(crate) min_hold: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PollId(u64);

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    pub(crate) start: Vec<(PollId, RunnerKey)>,
    /// Requests to cancel. Each still ends with an outcome.
    pub(crate) cancel: Vec<PollId>,
    /// Time of the next call of [`Admission::decide`]. `None` means that only an event requires one.
    pub(crate) wake: Option<Instant>,
}

#[derive(Debug)]
struct Poll {
    runner: RunnerKey,
    /// Generation of the settings with which the request was sent.
    generation: u64,
    started: Instant,
    /// Whether the same idempotency key brings the same job, so that canceling loses no job.
    is_repeatable: bool,
    /// Time from which canceling the request loses no job.
    ///
    /// By then, GitLab's front end holds the request, or the coordinator has abandoned it.
    cancelable_from: Instant,
    canceled: bool,
}

#[derive(Debug)]
pub(crate) struct Admission {
    concurrent: usize,
    remaining_jobs: usize,
    /// Whether to send no more requests, and to cancel those in flight when that is safe.
    stopped: bool,
    timings: PollTimings,
    entries: Vec<RunnerEntry>,
    polls: BTreeMap<PollId, Poll>,
    polls_by_runner: HashMap<RunnerKey, usize>,
    /// Jobs in progress, including those of removed runners.
    jobs: HashMap<RunnerKey, usize>,
    sent: u64,
    seed: u64,
}

impl Admission {
    /// `seed` determines the random waits.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            concurrent: 0,
            remaining_jobs: usize::MAX,
            stopped: false,
            timings: PollTimings { check_interval: Duration::ZERO, min_hold: MIN_HOLD },
            entries: Vec::new(),
            polls: BTreeMap::new(),
            polls_by_runner: HashMap::new(),
            jobs: HashMap::new(),
            sent: 0,
            seed,
        }
    }

    /// Applies settings. Runners that remain configured keep their state except their health.
    pub(crate) fn configure(&mut self, concurrent: usize, timings: PollTimings, runners: Vec<Limits>) {
        self.concurrent = concurrent;
        self.timings = timings;
        let mut known: HashMap<RunnerKey, RunnerEntry> =
            self.entries.drain(..).map(|entry| (entry.limits.key.clone(), entry)).collect();
        for limits in runners {
            self.seed = self.seed.wrapping_add(1);
            let mut entry = known.remove(&limits.key).unwrap_or_else(|| RunnerEntry::new(limits.clone(), self.seed));
            entry.configure(limits);
            self.entries.push(entry);
        }
    }

    pub(crate) fn set_remaining_jobs(&mut self, jobs: usize) {
        self.remaining_jobs = jobs;
    }

    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Records that the same idempotency key brings the same job. New settings of the runner reset this.
    pub(crate) fn set_repeatable(&mut self, runner: &RunnerKey) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.is_repeatable = true;
        }
    }

    /// Sets the time from which canceling loses no job. It is initially [`PollTimings::min_hold`] after sending.
    pub(crate) fn set_cancelable_from(&mut self, poll: PollId, at: Instant) {
        if let Some(poll) = self.polls.get_mut(&poll) {
            poll.cancelable_from = at;
        }
    }

    /// Sets how many requests must be in flight to repeat all requests whose answers may have been lost.
    ///
    /// This overrides only the adaptive limit: a job in a lost answer waits until its request is repeated.
    pub(crate) fn set_needed_requests(&mut self, runner: &RunnerKey, requests: usize) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.needed_requests = requests;
        }
    }

    pub(crate) fn set_capacity(&mut self, runner: &RunnerKey, capacity: usize) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.capacity = capacity;
        }
    }

    pub(crate) fn count_job(&mut self, runner: &RunnerKey) {
        *self.jobs.entry(runner.clone()).or_default() += 1;
    }

    pub(crate) fn job_ended(&mut self, runner: &RunnerKey) {
        decrement(&mut self.jobs, runner);
    }

    /// Records the end of a request. If it brought a job, the job counts against the limits from now on.
    pub(crate) fn answered(&mut self, poll: PollId, outcome: Outcome, now: Instant) -> Option<Notice> {
        let Poll { runner, started, generation, .. } = self.polls.remove(&poll)?;
        decrement(&mut self.polls_by_runner, &runner);
        if outcome == Outcome::Job {
            self.count_job(&runner);
        }
        let check_interval = self.timings.check_interval;
        let entry = self.entries.iter_mut().find(|entry| entry.limits.key == runner)?;
        // The outcome of a request with obsolete settings is ignored.
        (entry.limits.generation == generation)
            .then(|| entry.record_outcome(outcome, started, now, check_interval))
            .flatten()
    }

    /// Returns whether the request has taken so long that the coordinator is certainly holding it.
    pub(crate) fn is_held(&self, poll: PollId, now: Instant) -> bool {
        self.polls.get(&poll).is_some_and(|poll| now.saturating_duration_since(poll.started) >= REQUEST_HELD_AFTER)
    }

    /// Must be called after every event, and at [`Decisions::wake`].
    pub(crate) fn decide(&mut self, now: Instant) -> Decisions {
        let mut decisions = Decisions::default();
        self.cancel_disallowed_polls(now, &mut decisions);
        if self.stopped {
            return decisions;
        }
        self.start_allowed_polls(now, &mut decisions);
        self.preempt_for_starved_runners(now, &mut decisions);
        let wake_ups =
            self.entries.iter().filter(|entry| self.has_capacity_to_poll(entry)).filter_map(|entry| entry.not_before());
        decisions.wake = wake_ups.filter(|wake| *wake > now).chain(decisions.wake).min();
        decisions
    }

    pub(crate) fn stats(&self, now: Instant) -> Vec<RunnerStats> {
        let stats = self.entries.iter().map(|entry| {
            let key = &entry.limits.key;
            entry.stats(self.polls_of(key), self.jobs_of(key), now)
        });
        stats.collect()
    }

    /// `None` means that the runner is not configured.
    pub(crate) fn stats_of(&self, runner: &RunnerKey, now: Instant) -> Option<RunnerStats> {
        let entry = self.entries.iter().find(|entry| entry.limits.key == *runner)?;
        Some(entry.stats(self.polls_of(runner), self.jobs_of(runner), now))
    }

    pub(crate) fn requests(&self) -> usize {
        self.polls.len()
    }

    /// Returns whether the runner has jobs in progress or requests in flight.
    pub(crate) fn has_jobs(&self, runner: &RunnerKey) -> bool {
        self.jobs_of(runner) + self.polls_of(runner) > 0
    }

    pub(crate) fn jobs(&self) -> usize {
        self.jobs.values().sum()
    }

    /// Cancels requests with obsolete settings, and all when the manager ends, as soon as that is safe.
    fn cancel_disallowed_polls(&mut self, now: Instant, decisions: &mut Decisions) {
        let is_obsolete = |poll: &Poll| {
            let entry = self.entries.iter().find(|entry| entry.limits.key == poll.runner);
            let is_current = |entry: &RunnerEntry| entry.limits.generation == poll.generation && entry.limits.enabled;
            self.stopped || !entry.is_some_and(is_current)
        };
        let safe_at = |poll: &Poll| if poll.is_repeatable { poll.started } else { poll.cancelable_from };
        let obsolete = self.active_polls().filter(|(_, poll)| is_obsolete(poll)).map(|(id, poll)| (id, safe_at(poll)));
        let (due, later): (Vec<_>, Vec<_>) = obsolete.partition(|(_, safe_at)| *safe_at <= now);
        decisions.wake = later.into_iter().map(|(_, safe_at)| safe_at).min();
        self.cancel(due.into_iter().map(|(id, _)| id), decisions);
    }

    /// Starts as many requests as allowed. Prefers runners with few requests in flight, then those that waited long.
    fn start_allowed_polls(&mut self, now: Instant, decisions: &mut Decisions) {
        while self.polls.len() < self.max_polls() {
            let candidates = self.entries.iter().enumerate().filter(|(_, entry)| self.can_poll_now(entry, now));
            let next = candidates.min_by_key(|(_, entry)| (self.polls_of(&entry.limits.key), entry.last_turn));
            let Some(index) = next.map(|(index, _)| index) else { return };
            self.sent += 1;
            let id = PollId(self.sent);
            let Some(entry) = self.entries.get_mut(index) else { return };
            entry.last_turn = self.sent;
            entry.requests_total += 1;
            let (runner, generation) = (entry.limits.key.clone(), entry.limits.generation);
            let is_repeatable = entry.is_repeatable;
            decisions.start.push((id, runner.clone()));
            *self.polls_by_runner.entry(runner.clone()).or_default() += 1;
            let cancelable_from = now + self.timings.min_hold;
            self.polls
                .insert(id, Poll { runner, generation, started: now, is_repeatable, cancelable_from, canceled: false });
        }
    }

    /// Cancels one request for each runner that may send a request and has none.
    fn preempt_for_starved_runners(&mut self, now: Instant, decisions: &mut Decisions) {
        let waits = |entry: &&RunnerEntry| self.can_poll_now(entry, now) && self.polls_of(&entry.limits.key) == 0;
        let waiting = self.entries.iter().filter(waits).count();
        let max_polls = self.max_polls();
        if waiting == 0 || max_polls == 0 {
            return;
        }
        let being_canceled = self.polls.values().filter(|poll| poll.canceled).count();
        // If the limit has fallen, more requests than it allows may be in flight.
        let missing = (self.polls.len() + waiting).saturating_sub(max_polls + being_canceled);
        let mut active: Vec<(Instant, PollId)> =
            self.active_polls().map(|(id, poll)| (poll.cancelable_from, id)).collect();
        active.sort_unstable();
        let mut cancelable: Vec<(Instant, PollId)> =
            active.iter().copied().take_while(|(from, _)| *from <= now).collect();
        // The second request of one runner is canceled before the only request of another.
        cancelable.sort_by_key(|(from, id)| {
            (Reverse(self.polls.get(id).map_or(0, |poll| self.polls_of(&poll.runner))), *from)
        });
        let chosen: Vec<PollId> = cancelable.into_iter().map(|(_, id)| id).take(missing).collect();
        if chosen.len() < missing {
            decisions.wake = active.get(chosen.len()).map(|(from, _)| *from).into_iter().chain(decisions.wake).min();
        }
        self.cancel(chosen, decisions);
    }

    fn cancel(&mut self, polls: impl IntoIterator<Item = PollId>, decisions: &mut Decisions) {
        for id in polls {
            if let Some(poll) = self.polls.get_mut(&id).filter(|poll| !poll.canceled) {
                poll.canceled = true;
                decisions.cancel.push(id);
            }
        }
    }

    /// Returns how many requests in flight `concurrent` and the remaining jobs allow.
    fn max_polls(&self) -> usize {
        self.concurrent.saturating_sub(self.jobs()).min(self.remaining_jobs)
    }

    /// Returns whether the runner may send a request once its wait is over.
    fn has_capacity_to_poll(&self, entry: &RunnerEntry) -> bool {
        let key = &entry.limits.key;
        let polls = self.polls_of(key);
        let free = self.jobs_of(key) + polls < entry.max_jobs();
        entry.limits.enabled && free && polls < entry.effective_requests()
    }

    fn can_poll_now(&self, entry: &RunnerEntry, now: Instant) -> bool {
        self.has_capacity_to_poll(entry) && entry.not_before().is_none_or(|earliest| earliest <= now)
    }

    fn jobs_of(&self, runner: &RunnerKey) -> usize {
        self.jobs.get(runner).copied().unwrap_or_default()
    }

    fn polls_of(&self, runner: &RunnerKey) -> usize {
        self.polls_by_runner.get(runner).copied().unwrap_or_default()
    }

    /// Returns the requests that are not being canceled, oldest first.
    fn active_polls(&self) -> impl Iterator<Item = (PollId, &Poll)> {
        self.polls.iter().filter(|(_, poll)| !poll.canceled).map(|(id, poll)| (*id, poll))
    }
}

fn decrement(counts: &mut HashMap<RunnerKey, usize>, runner: &RunnerKey) {
    if let Some(count) = counts.get_mut(runner) {
        *count -= 1;
        if *count == 0 {
            counts.remove(runner);
        }
    }
}
