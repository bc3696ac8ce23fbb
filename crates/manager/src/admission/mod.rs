//! Decides which runner may request a job, and when: a pure engine from events and time to decisions.
//!
//! ```text
//! configure, capacities, answers, ends of jobs --> Admission --decide(now)--> requests to start, requests to cut, wake-up
//! ```
//!
//! A request in flight may bring a job. So it counts against `concurrent` and its runner's `limit` until it is answered, and no
//! request is sent whose job could not be started. If there is less capacity than runners, the runner that waited longest is next.
//!
//! The manager waits for a request that the coordinator may have answered, because GitLab gives the job of a lost answer to no other
//! runner. If `concurrent`, `limit` or the capacity falls, fewer requests are sent, but those in flight continue: a job that one of
//! them brings waits for its slot. Only a request that has been held for [`Pace::cut_after`] is canceled, for one of three reasons:
//! another runner has no request (gitlab-runner lets it wait for 50 s, C002), its settings no longer apply, or the manager ends. For
//! the last two reasons a request is canceled at once if its coordinator answers the same idempotency key with the same job.
//!
//! Invariants, checked by the properties in `tests.rs`: no request is canceled before its time; a decision starts no request beyond
//! `concurrent`, `limit` and `request_concurrency`; each runner that may send a request does so within a bound; every later decision
//! has a wake-up.

mod entry;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use muster_executor::REQUEST_HELD_AFTER;
use tokio::time::Instant;

use entry::Entry;
pub use entry::RunnerFigures;
pub(crate) use entry::{Limits, Notice, Outcome};
use muster_config::settings::{CUT_AFTER, RunnerKey};

/// Timings of polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Minimum time between two requests of a runner that the coordinator does not hold.
    pub(crate) check_interval: Duration,
    /// Time that a request is held in any case before it may be canceled.
    pub(crate) cut_after: Duration,
}

/// ID of a job request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PollId(u64);

/// Decisions to carry out now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Requests to send.
    pub(crate) start: Vec<(PollId, RunnerKey)>,
    /// Requests to cancel. Each is still answered, with [`Outcome::Cut`] or with the job that it brought anyway.
    pub(crate) cut: Vec<PollId>,
    /// Time of the next decision if no event happens before.
    pub(crate) wake: Option<Instant>,
}

#[derive(Debug)]
struct Poll {
    runner: RunnerKey,
    /// Generation of the runner's settings that it was sent with.
    generation: u64,
    started: Instant,
    /// Whether its coordinator answers the same key with the same job, so that the request need not be awaited.
    repeatable: bool,
    /// Time at which the front end is known to hold the request, or the coordinator to have given it up, if it is unanswered.
    held_at: Instant,
    cut: bool,
}

/// The admission engine.
#[derive(Debug)]
pub(crate) struct Admission {
    concurrent: usize,
    /// Number of jobs that may still be received.
    left: usize,
    /// Whether no more requests are sent, and those in flight are canceled when that is safe.
    stopped: bool,
    pace: Pace,
    /// Runners in the order of the configuration.
    entries: Vec<Entry>,
    polls: BTreeMap<PollId, Poll>,
    /// Number of polls of each runner.
    polls_by_runner: HashMap<RunnerKey, usize>,
    /// Jobs in progress of each runner, including runners that are no longer configured.
    jobs: HashMap<RunnerKey, usize>,
    /// Number of requests sent so far: the number of the last one, by which runners take turns.
    sent: u64,
    seed: u64,
}

impl Admission {
    /// Returns an engine without runners. The same seed gives the same waits.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            concurrent: 0,
            left: usize::MAX,
            stopped: false,
            pace: Pace { check_interval: Duration::ZERO, cut_after: CUT_AFTER },
            entries: Vec::new(),
            polls: BTreeMap::new(),
            polls_by_runner: HashMap::new(),
            jobs: HashMap::new(),
            sent: 0,
            seed,
        }
    }

    /// Applies settings. Runners that stay keep what is known of them except their health: an operator who changed something wants to
    /// see at once whether it helped.
    pub(crate) fn configure(&mut self, concurrent: usize, pace: Pace, runners: Vec<Limits>) {
        self.concurrent = concurrent;
        self.pace = pace;
        let mut known: HashMap<RunnerKey, Entry> =
            self.entries.drain(..).map(|entry| (entry.limits.key.clone(), entry)).collect();
        for limits in runners {
            self.seed = self.seed.wrapping_add(1);
            let mut entry = known.remove(&limits.key).unwrap_or_else(|| Entry::new(limits.clone(), self.seed));
            entry.configure(limits);
            self.entries.push(entry);
        }
    }

    /// Sets the number of jobs that may still be received, whatever the limits allow.
    pub(crate) fn set_left(&mut self, left: usize) {
        self.left = left;
    }

    /// Sends no more requests from now on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Records that the runner's coordinator answers the same idempotency key with the same job.
    ///
    /// It applies to requests that are sent from now on, until the runner's settings change.
    pub(crate) fn set_repeats(&mut self, runner: &RunnerKey) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.repeats = true;
        }
    }

    /// Sets the time at which the front end is known to hold an unanswered request, or the coordinator to have given it up.
    ///
    /// The initial value is [`Pace::cut_after`] after the decision to send the request: no coordinator has it before.
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

    /// Counts a job of an earlier start.
    pub(crate) fn job_recovered(&mut self, runner: &RunnerKey) {
        *self.jobs.entry(runner.clone()).or_default() += 1;
    }

    /// Stops counting a job.
    pub(crate) fn job_ended(&mut self, runner: &RunnerKey) {
        one_less(&mut self.jobs, runner);
    }

    /// Ends a request. Its share of the limits passes to the job that it brought, or is freed.
    pub(crate) fn answered(&mut self, poll: PollId, outcome: Outcome, now: Instant) -> Option<Notice> {
        let Poll { runner, started, generation, .. } = self.polls.remove(&poll)?;
        one_less(&mut self.polls_by_runner, &runner);
        if outcome == Outcome::Job {
            self.job_recovered(&runner);
        }
        let check_interval = self.pace.check_interval;
        let entry = self.entries.iter_mut().find(|entry| entry.limits.key == runner)?;
        // The result of settings that no longer apply says nothing about the current ones.
        (entry.limits.generation == generation).then(|| entry.judge(outcome, started, now, check_interval)).flatten()
    }

    /// Returns whether a request has been in flight for so long that the coordinator must be holding it.
    pub(crate) fn is_held(&self, poll: PollId, now: Instant) -> bool {
        self.polls.get(&poll).is_some_and(|poll| now.saturating_duration_since(poll.started) >= REQUEST_HELD_AFTER)
    }

    /// Decides what to do now. Must be called after every event, and at the time of its last wake-up.
    pub(crate) fn decide(&mut self, now: Instant) -> Decisions {
        let mut decisions = Decisions::default();
        self.cut_obsolete(now, &mut decisions);
        if self.stopped {
            return decisions;
        }
        self.start_what_may_be(now, &mut decisions);
        self.make_room_for_others(now, &mut decisions);
        let waits = self.entries.iter().filter(|entry| self.could_ask(entry)).filter_map(|entry| entry.not_before());
        decisions.wake = waits.filter(|wake| *wake > now).chain(decisions.wake).min();
        decisions
    }

    /// Returns the statistics of each configured runner.
    pub(crate) fn figures(&self, now: Instant) -> Vec<RunnerFigures> {
        let figures = self.entries.iter().map(|entry| {
            let key = &entry.limits.key;
            entry.figures(self.polls_of(key), self.jobs_of(key), now)
        });
        figures.collect()
    }

    /// Returns the statistics of one runner. `None` if it is not configured.
    pub(crate) fn figures_of(&self, runner: &RunnerKey, now: Instant) -> Option<RunnerFigures> {
        let entry = self.entries.iter().find(|entry| entry.limits.key == *runner)?;
        Some(entry.figures(self.polls_of(runner), self.jobs_of(runner), now))
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

    /// Cancels requests whose settings no longer apply, and all requests when the manager ends, as soon as that is safe.
    fn cut_obsolete(&mut self, now: Instant, decisions: &mut Decisions) {
        let is_obsolete = |poll: &Poll| {
            let entry = self.entries.iter().find(|entry| entry.limits.key == poll.runner);
            let is_current = |entry: &Entry| entry.limits.generation == poll.generation && entry.limits.enabled;
            self.stopped || !entry.is_some_and(is_current)
        };
        let safe_at = |poll: &Poll| if poll.repeatable { poll.started } else { poll.held_at };
        let obsolete = self.live().filter(|(_, poll)| is_obsolete(poll)).map(|(id, poll)| (id, safe_at(poll)));
        let (due, later): (Vec<_>, Vec<_>) = obsolete.partition(|(_, safe_at)| *safe_at <= now);
        decisions.wake = later.into_iter().map(|(_, safe_at)| safe_at).min();
        self.cut(due.into_iter().map(|(id, _)| id), decisions);
    }

    /// Uses the free capacity: first runners without a request, and among them the one that waited longest.
    fn start_what_may_be(&mut self, now: Instant, decisions: &mut Decisions) {
        while self.polls.len() < self.places() {
            let may = self.entries.iter().enumerate().filter(|(_, entry)| self.may_ask(entry, now));
            let next = may.min_by_key(|(_, entry)| (self.polls_of(&entry.limits.key), entry.last_turn));
            let Some(index) = next.map(|(index, _)| index) else { return };
            self.sent += 1;
            let id = PollId(self.sent);
            let Some(entry) = self.entries.get_mut(index) else { return };
            entry.last_turn = self.sent;
            entry.requests_total += 1;
            let (runner, generation) = (entry.limits.key.clone(), entry.limits.generation);
            let repeatable = entry.repeats;
            decisions.start.push((id, runner.clone()));
            *self.polls_by_runner.entry(runner.clone()).or_default() += 1;
            let held_at = now + self.pace.cut_after;
            self.polls.insert(id, Poll { runner, generation, started: now, repeatable, held_at, cut: false });
        }
    }

    /// Cancels requests that were held long enough, one for each runner that may send a request and has none.
    fn make_room_for_others(&mut self, now: Instant, decisions: &mut Decisions) {
        let waits = |entry: &&Entry| self.may_ask(entry, now) && self.polls_of(&entry.limits.key) == 0;
        let waiting = self.entries.iter().filter(waits).count();
        let places = self.places();
        if waiting == 0 || places == 0 {
            return;
        }
        let on_their_way = self.polls.values().filter(|poll| poll.cut).count();
        // There are more requests than capacity if the capacity was larger when they were sent.
        let wanted = (self.polls.len() + waiting).saturating_sub(places + on_their_way);
        let mut held: Vec<(Instant, PollId)> = self.live().map(|(id, poll)| (poll.held_at, id)).collect();
        held.sort_unstable();
        let mut due: Vec<(Instant, PollId)> = held.iter().copied().take_while(|(due, _)| *due <= now).collect();
        // The second request of one runner is canceled before the only request of another.
        due.sort_by_key(|(due, id)| (Reverse(self.polls.get(id).map_or(0, |poll| self.polls_of(&poll.runner))), *due));
        let due: Vec<PollId> = due.into_iter().map(|(_, id)| id).take(wanted).collect();
        if due.len() < wanted {
            decisions.wake = held.get(due.len()).map(|(due, _)| *due).into_iter().chain(decisions.wake).min();
        }
        self.cut(due, decisions);
    }

    fn cut(&mut self, polls: impl IntoIterator<Item = PollId>, decisions: &mut Decisions) {
        for id in polls {
            if let Some(poll) = self.polls.get_mut(&id).filter(|poll| !poll.cut) {
                poll.cut = true;
                decisions.cut.push(id);
            }
        }
    }

    /// Returns the number of requests that `concurrent` allows now, including those in flight.
    fn places(&self) -> usize {
        self.concurrent.saturating_sub(self.jobs()).min(self.left)
    }

    /// Returns whether the runner may send a request once its wait is over.
    fn could_ask(&self, entry: &Entry) -> bool {
        let key = &entry.limits.key;
        let polls = self.polls_of(key);
        let free = self.jobs_of(key) + polls < entry.jobs_max();
        entry.limits.enabled && free && polls < entry.effective_requests()
    }

    fn may_ask(&self, entry: &Entry, now: Instant) -> bool {
        self.could_ask(entry) && entry.not_before().is_none_or(|earliest| earliest <= now)
    }

    fn jobs_of(&self, runner: &RunnerKey) -> usize {
        self.jobs.get(runner).copied().unwrap_or_default()
    }

    fn polls_of(&self, runner: &RunnerKey) -> usize {
        self.polls_by_runner.get(runner).copied().unwrap_or_default()
    }

    /// Returns the requests that are not being canceled, the newest last.
    fn live(&self) -> impl Iterator<Item = (PollId, &Poll)> {
        self.polls.iter().filter(|(_, poll)| !poll.cut).map(|(id, poll)| (*id, poll))
    }
}

fn one_less(counts: &mut HashMap<RunnerKey, usize>, runner: &RunnerKey) {
    if let Some(count) = counts.get_mut(runner) {
        *count -= 1;
        if *count == 0 {
            counts.remove(runner);
        }
    }
}
