//! Who may ask for a job, and when: a pure engine. Events and time in, decisions out.
//!
//! ```text
//! configure, capacities, answers, ends of jobs --> Admission --decide(now)--> requests to start, requests to cut, wake-up
//! ```
//!
//! A request in flight may bring a job, so it reserves a place in `concurrent` and in its runner's `limit` until it is
//! answered: no request is sent whose job could not be started. Where there are fewer places than runners, the one that
//! waited longest is next.
//!
//! A request that the server may have answered is waited for, since GitLab gives its job to nobody else. When `concurrent`,
//! `limit` or the capacity falls, fewer requests are sent, and those in flight stay: a job that one of them brings waits
//! for its slot. Only a request that was held for [`Pace::cut_after`] is cut, for one of three reasons: another runner has
//! none (GitLab Runner lets it wait for 50 s, C002), its settings are not in force any more, or the manager is to end. For the
//! last two a request is cut at once if its server gives the same job again to the same idempotency key.
//!
//! Invariants, checked by the properties in `tests.rs`: no request is cut before its time; a decision starts no request beyond
//! `concurrent`, `limit` and `request_concurrency`; each runner that may ask does so within a bound; whatever is to happen
//! later has a wake-up.

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

/// When things are done that nothing tells the time of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Between two requests of a runner that the coordinator does not hold.
    pub(crate) check_interval: Duration,
    /// How long a request is waited for in any case.
    pub(crate) cut_after: Duration,
}

/// One job request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PollId(u64);

/// What is to be done now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    /// Requests to send.
    pub(crate) start: Vec<(PollId, RunnerKey)>,
    /// Requests to give up; each is still to be answered with [`Outcome::Cut`], or with what it brought all the same.
    pub(crate) cut: Vec<PollId>,
    /// When to ask again if nothing happens before.
    pub(crate) wake: Option<Instant>,
}

#[derive(Debug)]
struct Poll {
    runner: RunnerKey,
    /// The generation of the runner's settings that it was sent with.
    generation: u64,
    started: Instant,
    /// Its server gives the same job again to the same key, so that its answer need not be waited for.
    repeatable: bool,
    /// Unanswered until then, it is held by the front end, or given up by the server.
    held_at: Instant,
    cut: bool,
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Admission {
    concurrent: usize,
    /// Jobs that may still be taken.
    left: usize,
    /// No more requests are sent, and those in flight are cut when that is safe.
    stopped: bool,
    pace: Pace,
    /// In the order of the file.
    entries: Vec<Entry>,
    polls: BTreeMap<PollId, Poll>,
    /// How many of the polls are whose.
    polls_by_runner: HashMap<RunnerKey, usize>,
    /// Jobs under way, also of runners that are not in the file any more.
    jobs: HashMap<RunnerKey, usize>,
    /// Requests sent so far: the next one's number, and the clock of turns.
    sent: u64,
    seed: u64,
}

impl Admission {
    /// An engine without runners. The same seed gives the same waits.
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

    /// New settings. Runners that stay keep what is known of them, except for their health: an operator who changed
    /// something wants to see at once whether it helped.
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

    /// So many jobs may still be taken, whatever there is room for.
    pub(crate) fn set_left(&mut self, left: usize) {
        self.left = left;
    }

    /// No more requests are sent from now on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// The runner's server gives the same job again to the same idempotency key. Holds for requests that are sent from now
    /// on, until the runner's settings change.
    pub(crate) fn set_repeats(&mut self, runner: &RunnerKey) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.repeats = true;
        }
    }

    /// When the request, unanswered until then, is held by the front end, or given up by the server. Until this is told, that is
    /// [`Pace::cut_after`] after the decision to send it: no server has it yet.
    pub(crate) fn set_held_at(&mut self, poll: PollId, at: Instant) {
        if let Some(poll) = self.polls.get_mut(&poll) {
            poll.held_at = at;
        }
    }

    /// The most jobs that the runner's provider can have.
    pub(crate) fn set_capacity(&mut self, runner: &RunnerKey, capacity: usize) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.limits.key == *runner) {
            entry.capacity = capacity;
        }
    }

    /// A job of an earlier start is under way.
    pub(crate) fn job_recovered(&mut self, runner: &RunnerKey) {
        *self.jobs.entry(runner.clone()).or_default() += 1;
    }

    /// A job has ended.
    pub(crate) fn job_ended(&mut self, runner: &RunnerKey) {
        one_less(&mut self.jobs, runner);
    }

    /// A request is over. Its place becomes the job's, or free.
    pub(crate) fn answered(&mut self, poll: PollId, outcome: Outcome, now: Instant) -> Option<Notice> {
        let Poll { runner, started, generation, .. } = self.polls.remove(&poll)?;
        one_less(&mut self.polls_by_runner, &runner);
        if outcome == Outcome::Job {
            self.job_recovered(&runner);
        }
        let check_interval = self.pace.check_interval;
        let entry = self.entries.iter_mut().find(|entry| entry.limits.key == runner)?;
        // What came of settings that are not valid any more says nothing about those that are.
        (entry.limits.generation == generation).then(|| entry.judge(outcome, started, now, check_interval)).flatten()
    }

    /// Whether a request has been in flight for so long that the coordinator held it.
    pub(crate) fn is_held(&self, poll: PollId, now: Instant) -> bool {
        self.polls.get(&poll).is_some_and(|poll| now.saturating_duration_since(poll.started) >= REQUEST_HELD_AFTER)
    }

    /// What is to be done now. To be called after every event, and at the time of its last wake-up.
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

    /// What is known of each runner of the file.
    pub(crate) fn figures(&self, now: Instant) -> Vec<RunnerFigures> {
        let figures = self.entries.iter().map(|entry| {
            let key = &entry.limits.key;
            entry.figures(self.polls_of(key), self.jobs_of(key), now)
        });
        figures.collect()
    }

    /// What is known of one runner, if it is in the file.
    pub(crate) fn figures_of(&self, runner: &RunnerKey, now: Instant) -> Option<RunnerFigures> {
        let entry = self.entries.iter().find(|entry| entry.limits.key == *runner)?;
        Some(entry.figures(self.polls_of(runner), self.jobs_of(runner), now))
    }

    /// Requests in flight.
    pub(crate) fn requests(&self) -> usize {
        self.polls.len()
    }

    /// Whether jobs of the runner are under way, or may come with a request's answer.
    pub(crate) fn has_jobs(&self, runner: &RunnerKey) -> bool {
        self.jobs_of(runner) + self.polls_of(runner) > 0
    }

    /// Jobs under way.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.values().sum()
    }

    /// Cuts requests whose settings are not in force any more, and all when the manager is to end, as soon as that is safe.
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

    /// Fills the free places: first those who have no request, and of these the one that waited longest.
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

    /// Cuts requests that were held long enough, so that each runner that may ask and has no request gets a place.
    fn make_room_for_others(&mut self, now: Instant, decisions: &mut Decisions) {
        let waits = |entry: &&Entry| self.may_ask(entry, now) && self.polls_of(&entry.limits.key) == 0;
        let waiting = self.entries.iter().filter(waits).count();
        let places = self.places();
        if waiting == 0 || places == 0 {
            return;
        }
        let on_their_way = self.polls.values().filter(|poll| poll.cut).count();
        // More requests than places: the places were more when they were sent.
        let wanted = (self.polls.len() + waiting).saturating_sub(places + on_their_way);
        let mut held: Vec<(Instant, PollId)> = self.live().map(|(id, poll)| (poll.held_at, id)).collect();
        held.sort_unstable();
        let mut due: Vec<(Instant, PollId)> = held.iter().copied().take_while(|(due, _)| *due <= now).collect();
        // Rather the second request of one runner than the only one of another.
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

    /// Places for requests, taken or not.
    fn places(&self) -> usize {
        self.concurrent.saturating_sub(self.jobs()).min(self.left)
    }

    /// Whether the runner has anything to ask for, once its wait is over.
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

    /// Requests that are not being cut, the newest last.
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
