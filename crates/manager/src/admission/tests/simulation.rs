//! Random simulation of coordinators, jobs and operators.

use super::*;

/// A runner may starve for this time multiplied by the number of configured runners, because each of them may have one
/// turn first.
const MAX_STARVATION_PER_RUNNER: Duration = Duration::from_secs(12);

pub(super) struct Simulation {
    rng: SmallRng,
    now: Instant,
    engine: Admission,
    runners: Vec<Limits>,
    concurrent: usize,
    in_flight: Vec<(PollId, RunnerKey)>,
    /// Send time, generation of the settings, and repeatability of each request in flight.
    sent: HashMap<PollId, (Instant, u64, bool)>,
    /// Runners for which the same idempotency key brings the same job.
    repeatable: Vec<RunnerKey>,
    stopped: bool,
    cancel: Vec<PollId>,
    jobs: Vec<RunnerKey>,
    wake: Option<Instant>,
    /// Time since which a runner may poll but has no request in flight.
    starved: HashMap<RunnerKey, Instant>,
}

impl Simulation {
    pub(super) fn new(mut rng: SmallRng) -> Self {
        let engine = Admission::new(rng.random());
        let mut simulation = Self {
            now: Instant::now(),
            engine,
            runners: Vec::new(),
            concurrent: 0,
            in_flight: Vec::new(),
            sent: HashMap::new(),
            repeatable: Vec::new(),
            stopped: false,
            cancel: Vec::new(),
            jobs: Vec::new(),
            wake: None,
            starved: HashMap::new(),
            rng,
        };
        simulation.change_settings();
        simulation.decide();
        simulation
    }

    fn change_settings(&mut self) {
        self.concurrent = self.rng.random_range(1..8);
        let generation = self.rng.random_range(1..3);
        let before = std::mem::take(&mut self.runners);
        for number in 0..self.rng.random_range(1..7) {
            let limit = self.rng.random_bool(0.4).then(|| self.rng.random_range(1..4));
            self.runners.push(Limits {
                generation,
                limit,
                request_concurrency: self.rng.random_range(1..4),
                adaptive: self.rng.random(),
                strict: self.rng.random_bool(0.2),
                ..runner(&format!("r{number}"))
            });
        }
        let is_unchanged = |key: &RunnerKey| {
            let is_same = |limits: &&Limits| limits.key == *key && limits.generation == generation;
            before.iter().any(|limits| is_same(&limits)) && self.runners.iter().any(|limits| is_same(&limits))
        };
        self.repeatable.retain(is_unchanged);
        configure(&mut self.engine, self.concurrent, self.runners.clone());
        self.starved.clear();
    }

    pub(super) fn step(&mut self) {
        match self.rng.random_range(0..1000) {
            0 => {
                self.stopped = true;
                self.engine.stop();
            }
            1..20 => self.change_settings(),
            20..300 if !self.jobs.is_empty() => {
                let job = self.jobs.swap_remove(self.rng.random_range(0..self.jobs.len()));
                self.engine.job_ended(&job);
            }
            300..700 if !self.in_flight.is_empty() => {
                let index = self.rng.random_range(0..self.in_flight.len());
                self.answer(index);
            }
            _ => {
                let step = Duration::from_millis(self.rng.random_range(1..4000));
                self.now = self.wake.map_or(self.now + step, |wake| wake.min(self.now + step)).max(self.now);
            }
        }
        // A canceled request ends as canceled, or with an answer that arrived first.
        while let Some(poll) = self.cancel.pop() {
            if let Some(index) = self.in_flight.iter().position(|(in_flight, _)| *in_flight == poll) {
                if self.rng.random_bool(0.9) {
                    self.in_flight.swap_remove(index);
                    self.engine.answered(poll, Outcome::Canceled, self.now);
                } else {
                    self.answer(index);
                }
            }
        }
        self.decide();
    }

    fn answer(&mut self, index: usize) {
        let (poll, runner) = self.in_flight.swap_remove(index);
        let outcome = match self.rng.random_range(0..10) {
            0..4 => Outcome::Job,
            4..7 => Outcome::Empty { changed: self.rng.random() },
            7 => Outcome::Duplicate,
            8 => Outcome::Failed { overloaded: self.rng.random(), rate_limited: false, retry_after: None },
            _ => Outcome::Refused,
        };
        self.engine.answered(poll, outcome, self.now);
        if outcome == Outcome::Job {
            self.jobs.push(runner.clone());
        }
        if self.rng.random_bool(0.2) && self.runners.iter().any(|limits| limits.key == runner) {
            self.engine.set_repeatable(&runner);
            self.repeatable.push(runner);
        }
    }

    fn decide(&mut self) {
        let decisions = self.engine.decide(self.now);
        self.wake = decisions.wake;
        for poll in &decisions.cancel {
            self.check_cancellation(*poll);
        }
        self.cancel.extend(decisions.cancel);
        for (poll, runner) in decisions.start {
            let limits = self.runners.iter().find(|limits| limits.key == runner).unwrap();
            self.sent.insert(poll, (self.now, limits.generation, self.repeatable.contains(&runner)));
            self.in_flight.push((poll, runner.clone()));
            self.check_start(&runner);
        }
    }

    /// Asserts that a request is canceled only after [`MIN_HOLD`], or if it is obsolete and repeatable.
    fn check_cancellation(&self, poll: PollId) {
        let (sent, generation, is_repeatable) = self.sent[&poll];
        let (_, runner) = self.in_flight.iter().find(|(in_flight, _)| *in_flight == poll).unwrap();
        let current = self.runners.iter().any(|limits| limits.key == *runner && limits.generation == generation);
        let is_obsolete = self.stopped || !current;
        assert!(self.now - sent >= MIN_HOLD || (is_repeatable && is_obsolete), "canceled after {:?}", self.now - sent);
    }

    fn check_start(&self, runner: &RunnerKey) {
        assert!(!self.stopped, "no request may be sent after the stop");
        let limits = self.runners.iter().find(|limits| limits.key == *runner).unwrap();
        let requests = self.in_flight.iter().filter(|(_, owner)| owner == runner).count();
        let jobs = self.jobs.iter().filter(|owner| *owner == runner).count();
        assert!(self.jobs.len() + self.in_flight.len() <= self.concurrent, "`concurrent` must not be exceeded");
        assert!(requests <= limits.request_concurrency, "`request_concurrency` must not be exceeded");
        assert!(limits.limit.is_none_or(|limit| jobs + requests <= limit), "`limit` must not be exceeded");
    }

    pub(super) fn check(&mut self) {
        let active = self.in_flight.iter().filter(|(poll, _)| !self.cancel.contains(poll));
        let active: Vec<RunnerKey> = active.map(|(_, runner)| runner.clone()).collect();
        let repeated = self.engine.decide(self.now);
        assert_eq!((repeated.start, repeated.cancel), (Vec::new(), Vec::new()), "a repeated decision must be empty");
        assert_eq!(repeated.wake, self.wake, "a repeated decision must have the same wake-up");
        for limits in self.runners.clone() {
            let requests = active.iter().filter(|runner| **runner == limits.key).count();
            let jobs = self.jobs.iter().filter(|runner| **runner == limits.key).count();
            self.check_starvation(&limits, jobs, requests);
        }
    }

    /// Asserts that a starved runner gets a request in time.
    fn check_starvation(&mut self, limits: &Limits, jobs: usize, requests: usize) {
        let entry = self.engine.entries.iter().find(|entry| entry.limits.key == limits.key).unwrap();
        if self.stopped {
            let will_end = self.in_flight.iter().all(|(poll, _)| self.cancel.contains(poll)) || self.wake.is_some();
            assert!(will_end, "the remaining requests must be canceled at some time");
            return;
        }
        let waits = entry.not_before().is_some_and(|earliest| earliest > self.now);
        let is_full = limits.limit.is_some_and(|limit| jobs >= limit) || self.jobs.len() >= self.concurrent;
        let has_request = self.in_flight.iter().any(|(_, runner)| *runner == limits.key);
        if requests > 0 || waits || is_full || has_request {
            self.starved.remove(&limits.key);
            assert!(!waits || is_full || has_request || self.wake.is_some(), "a waiting runner must have a wake-up");
            return;
        }
        let pending = self.in_flight.iter().any(|(poll, _)| self.cancel.contains(poll));
        assert!(self.wake.is_some() || pending, "a starved runner must have a wake-up");
        let since = *self.starved.entry(limits.key.clone()).or_insert(self.now);
        let max_starvation = MAX_STARVATION_PER_RUNNER * u32::try_from(self.runners.len()).unwrap();
        assert!(self.now - since <= max_starvation, "starved for {:?}", self.now - since);
    }
}
