//! Decides which runner may request a job, and when: a pure engine from events and time to decisions.
//!
//! ```text
//! configure, capacities, answers, ends of jobs --> Admission --decide(now)--> requests to start, requests to cancel, wake-up
//! ```
//!
//! A request in flight may bring a job. So it counts against `concurrent` and its runner's `limit` until it is answered, and no
//! request is sent whose job could not be started. If there is less capacity than runners, the runner that waited longest is next.
//!
//! The manager waits for a request that the coordinator may have answered: if the manager lost an answer with a job, GitLab would
//! not give that job to any other runner. If `concurrent`, `limit` or the capacity falls, fewer requests are sent, but those in
//! flight continue: a job that one of them brings waits for its slot.
//!
//! There are three reasons to cancel a request:
//! - Another runner has no request (gitlab-runner lets that runner wait for 50 s, about which the configuration check C002 warns).
//! - The settings with which the request was sent no longer apply.
//! - The manager ends.
//!
//! A request is canceled only after it has been held for [`PollTimings::min_hold`]. For the last two reasons, it is canceled at once
//! if its coordinator answers the same idempotency key with the same job.
//!
//! Invariants, which the tests check in a random simulation:
//! - No request is canceled earlier than these rules allow.
//! - A decision starts no request beyond `concurrent`, `limit` and `request_concurrency`.
//! - Each runner that may send a request does so within a bounded time.
//! - A wake-up is scheduled for every later decision.

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
    /// Minimum time between two requests of a runner that the coordinator does not hold.
    pub(crate) check_interval: Duration,
    /// Minimum time that a request is held before it may be canceled.
    pub(crate) min_hold: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PollId(u64);

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Requests to send.
    pub(crate) start: Vec<(PollId, RunnerKey)>,
    /// Requests to cancel.
    /// Each canceled request still ends with an outcome: [`Outcome::Canceled`], or that of an answer that arrived first.
    pub(crate) cancel: Vec<PollId>,
    /// Time of the next decision if no event happens before.
    pub(crate) wake: Option<Instant>,
}

/// A job request in flight.
#[derive(Debug)]
struct Poll {
    runner: RunnerKey,
    /// Generation of the runner's settings with which the request was sent.
    generation: u64,
    started: Instant,
    /// Whether the coordinator answers the same key with the same job.
    /// The answer to this request then need not be awaited.
    is_repeatable: bool,
    /// Time from which canceling an unanswered request loses no job.
    /// By then, GitLab's front end (Workhorse) holds the request, or the coordinator has abandoned it.
    held_at: Instant,
    canceled: bool,
}

#[derive(Debug)]
pub(crate) struct Admission {
    concurrent: usize,
    /// Number of jobs that may still be received.
    remaining_jobs: usize,
    /// Whether no more requests are sent, and those in flight are canceled when that is safe.
    stopped: bool,
    timings: PollTimings,
    /// Runners in the order of the configuration.
    entries: Vec<RunnerEntry>,
    polls: BTreeMap<PollId, Poll>,
    polls_by_runner: HashMap<RunnerKey, usize>,
    /// Jobs in progress of each runner, including runners that are no longer configured.
    jobs: HashMap<RunnerKey, usize>,
    /// Number of requests sent so far, which is also the number of the last one.
    /// Runners take turns by these numbers.
    sent: u64,
    seed: u64,
}

impl Admission {
    /// Returns an engine without runners. The same seed gives the same waits.
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

    /// Applies settings.
    /// Runners that remain configured keep their state except their health: an operator who changed a setting wants to see at once whether
    /// it helped.
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

    /// Sets the number of jobs that may still be received, whatever the limits allow.
    pub(crate) fn set_remaining_jobs(&mut self, jobs: usize) {
        self.remaining_jobs = jobs;
    }

    /// Sends no more requests from now on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Records that the runner's coordinator answers the same idempotency key with the same job.
    ///
    /// Applies to requests that are sent from now on, until the runner's settings change.
    pub(crate) fn set_repeatable(&mut self, runner: &RunnerKey) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.is_repeatable = true;
        }
    }

    /// Sets the time from which canceling an unanswered request loses no job.
    ///
    /// The initial value is [`PollTimings::min_hold`] after the decision to send the request, because no coordinator can hold the request
    /// earlier.
    pub(crate) fn set_held_at(&mut self, poll: PollId, at: Instant) {
        if let Some(poll) = self.polls.get_mut(&poll) {
            poll.held_at = at;
        }
    }

    /// Sets the maximum number of jobs of the runner's executor.
    pub(crate) fn set_capacity(&mut self, runner: &RunnerKey, capacity: usize) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.capacity = capacity;
        }
    }

    pub(crate) fn count_job(&mut self, runner: &RunnerKey) {
        *self.jobs.entry(runner.clone()).or_default() += 1;
    }

    /// Stops counting a job.
    pub(crate) fn job_ended(&mut self, runner: &RunnerKey) {
        decrement(&mut self.jobs, runner);
    }

    /// Ends a request. Its share of the limits passes to the job that it brought, or is freed.
    pub(crate) fn answered(&mut self, poll: PollId, outcome: Outcome, now: Instant) -> Option<Notice> {
        let Poll { runner, started, generation, .. } = self.polls.remove(&poll)?;
        decrement(&mut self.polls_by_runner, &runner);
        if outcome == Outcome::Job {
            self.count_job(&runner);
        }
        let check_interval = self.timings.check_interval;
        let entry = self.entries.iter_mut().find(|entry| entry.limits.key == runner)?;
        // The outcome of a request with obsolete settings does not count for the current settings.
        (entry.limits.generation == generation)
            .then(|| entry.record_outcome(outcome, started, now, check_interval))
            .flatten()
    }

    /// Returns whether a request has been in flight long enough that the coordinator must be holding it.
    pub(crate) fn is_held(&self, poll: PollId, now: Instant) -> bool {
        self.polls.get(&poll).is_some_and(|poll| now.saturating_duration_since(poll.started) >= REQUEST_HELD_AFTER)
    }

    /// Decides what to do now. Must be called after every event, and at the time of its last wake-up.
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

    /// Returns the statistics of each configured runner.
    pub(crate) fn stats(&self, now: Instant) -> Vec<RunnerStats> {
        let stats = self.entries.iter().map(|entry| {
            let key = &entry.limits.key;
            entry.stats(self.polls_of(key), self.jobs_of(key), now)
        });
        stats.collect()
    }

    /// Returns the statistics of one runner. `None` means that the runner is not configured.
    pub(crate) fn stats_of(&self, runner: &RunnerKey, now: Instant) -> Option<RunnerStats> {
        let entry = self.entries.iter().find(|entry| entry.limits.key == *runner)?;
        Some(entry.stats(self.polls_of(runner), self.jobs_of(runner), now))
    }

    /// Returns the number of requests in flight.
    pub(crate) fn requests(&self) -> usize {
        self.polls.len()
    }

    /// Returns whether the runner has jobs in progress, or requests that may bring one.
    pub(crate) fn has_jobs(&self, runner: &RunnerKey) -> bool {
        self.jobs_of(runner) + self.polls_of(runner) > 0
    }

    /// Returns the number of jobs in progress.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.values().sum()
    }

    /// Cancels requests that must end, as soon as that is safe.
    /// These are requests with obsolete settings, and all requests when the manager ends.
    fn cancel_disallowed_polls(&mut self, now: Instant, decisions: &mut Decisions) {
        let is_obsolete = |poll: &Poll| {
            let entry = self.entries.iter().find(|entry| entry.limits.key == poll.runner);
            let is_current = |entry: &RunnerEntry| entry.limits.generation == poll.generation && entry.limits.enabled;
            self.stopped || !entry.is_some_and(is_current)
        };
        let safe_at = |poll: &Poll| if poll.is_repeatable { poll.started } else { poll.held_at };
        let obsolete = self.active_polls().filter(|(_, poll)| is_obsolete(poll)).map(|(id, poll)| (id, safe_at(poll)));
        let (due, later): (Vec<_>, Vec<_>) = obsolete.partition(|(_, safe_at)| *safe_at <= now);
        decisions.wake = later.into_iter().map(|(_, safe_at)| safe_at).min();
        self.cancel(due.into_iter().map(|(id, _)| id), decisions);
    }

    /// Uses the free capacity for the runners with the fewest requests in flight.
    /// Among equals, the runner that waited longest is first.
    fn start_allowed_polls(&mut self, now: Instant, decisions: &mut Decisions) {
        while self.polls.len() < self.free_capacity() {
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
            let held_at = now + self.timings.min_hold;
            self.polls.insert(id, Poll { runner, generation, started: now, is_repeatable, held_at, canceled: false });
        }
    }

    /// Cancels one held request for each runner that may send a request and has none.
    fn preempt_for_starved_runners(&mut self, now: Instant, decisions: &mut Decisions) {
        let waits = |entry: &&RunnerEntry| self.can_poll_now(entry, now) && self.polls_of(&entry.limits.key) == 0;
        let waiting = self.entries.iter().filter(waits).count();
        let free_capacity = self.free_capacity();
        if waiting == 0 || free_capacity == 0 {
            return;
        }
        let being_canceled = self.polls.values().filter(|poll| poll.canceled).count();
        // There are more requests than capacity if the capacity was larger when they were sent.
        let missing = (self.polls.len() + waiting).saturating_sub(free_capacity + being_canceled);
        let mut held: Vec<(Instant, PollId)> = self.active_polls().map(|(id, poll)| (poll.held_at, id)).collect();
        held.sort_unstable();
        let mut due: Vec<(Instant, PollId)> = held.iter().copied().take_while(|(due, _)| *due <= now).collect();
        // The second request of one runner is canceled before the only request of another.
        due.sort_by_key(|(due, id)| (Reverse(self.polls.get(id).map_or(0, |poll| self.polls_of(&poll.runner))), *due));
        let due: Vec<PollId> = due.into_iter().map(|(_, id)| id).take(missing).collect();
        if due.len() < missing {
            decisions.wake = held.get(due.len()).map(|(due, _)| *due).into_iter().chain(decisions.wake).min();
        }
        self.cancel(due, decisions);
    }

    fn cancel(&mut self, polls: impl IntoIterator<Item = PollId>, decisions: &mut Decisions) {
        for id in polls {
            if let Some(poll) = self.polls.get_mut(&id).filter(|poll| !poll.canceled) {
                poll.canceled = true;
                decisions.cancel.push(id);
            }
        }
    }

    /// Returns how many requests `concurrent` and the remaining jobs allow, including those in flight.
    fn free_capacity(&self) -> usize {
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

    /// Returns the requests that are not being canceled, the newest last.
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
