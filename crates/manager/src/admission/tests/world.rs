//! A random simulation around the engine: coordinators that hold, answer, fail and refuse, jobs that end, and operators that edit. The
//! invariants are checked after each event.

use super::*;

/// Maximum time until a runner that may poll has done so, while some capacity is free of jobs: one turn for each other runner, and the
/// answers to canceled requests.
const MAX_STARVATION_PER_RUNNER: Duration = Duration::from_secs(12);

pub(super) struct World {
    rng: SmallRng,
    now: Instant,
    engine: Admission,
    runners: Vec<Limits>,
    concurrent: usize,
    flying: Vec<(PollId, RunnerKey)>,
    /// Requests in flight: when each was sent, with which settings, and whether its server was known to repeat assignments.
    sent: HashMap<PollId, (Instant, u64, bool)>,
    /// Runners whose servers are known to repeat assignments.
    is_repeatable: Vec<RunnerKey>,
    stopped: bool,
    cancel: Vec<PollId>,
    jobs: Vec<RunnerKey>,
    wake: Option<Instant>,
    /// Time since which a runner may poll and has no request.
    starved: HashMap<RunnerKey, Instant>,
}

impl World {
    pub(super) fn new(mut rng: SmallRng) -> Self {
        let engine = Admission::new(rng.random());
        let mut world = Self {
            now: Instant::now(),
            engine,
            runners: Vec::new(),
            concurrent: 0,
            flying: Vec::new(),
            sent: HashMap::new(),
            is_repeatable: Vec::new(),
            stopped: false,
            cancel: Vec::new(),
            jobs: Vec::new(),
            wake: None,
            starved: HashMap::new(),
            rng,
        };
        world.edit();
        world.decide();
        world
    }

    /// Changes the settings.
    fn edit(&mut self) {
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
        let stays = |key: &RunnerKey| {
            let is_it = |limits: &&Limits| limits.key == *key && limits.generation == generation;
            before.iter().any(|limits| is_it(&limits)) && self.runners.iter().any(|limits| is_it(&limits))
        };
        self.is_repeatable.retain(stays);
        configure(&mut self.engine, self.concurrent, self.runners.clone());
        self.starved.clear();
    }

    /// Simulates one event.
    pub(super) fn step(&mut self) {
        match self.rng.random_range(0..1000) {
            0 => {
                self.stopped = true;
                self.engine.stop();
            }
            1..20 => self.edit(),
            20..300 if !self.jobs.is_empty() => {
                let job = self.jobs.swap_remove(self.rng.random_range(0..self.jobs.len()));
                self.engine.job_ended(&job);
            }
            300..700 if !self.flying.is_empty() => {
                let which = self.rng.random_range(0..self.flying.len());
                self.answer(which);
            }
            _ => {
                // Time passes, but not beyond the next wake-up.
                let step = Duration::from_millis(self.rng.random_range(1..4000));
                self.now = self.wake.map_or(self.now + step, |wake| wake.min(self.now + step)).max(self.now);
            }
        }
        // A canceled request ends, or had its answer already.
        while let Some(poll) = self.cancel.pop() {
            if let Some(which) = self.flying.iter().position(|(flying, _)| *flying == poll) {
                if self.rng.random_bool(0.9) {
                    self.flying.swap_remove(which);
                    self.engine.answered(poll, Outcome::Canceled, self.now);
                } else {
                    self.answer(which);
                }
            }
        }
        self.decide();
    }

    fn answer(&mut self, which: usize) {
        let (poll, runner) = self.flying.swap_remove(which);
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
            self.is_repeatable.push(runner);
        }
    }

    fn decide(&mut self) {
        let decisions = self.engine.decide(self.now);
        self.wake = decisions.wake;
        for poll in &decisions.cancel {
            self.check_cut(*poll);
        }
        self.cancel.extend(decisions.cancel);
        for (poll, runner) in decisions.start {
            let limits = self.runners.iter().find(|limits| limits.key == runner).unwrap();
            self.sent.insert(poll, (self.now, limits.generation, self.is_repeatable.contains(&runner)));
            self.flying.push((poll, runner.clone()));
            self.check_start(&runner);
        }
    }

    /// Asserts that no request is canceled that a server may have answered.
    fn check_cut(&self, poll: PollId) {
        let (sent, generation, is_repeatable) = self.sent[&poll];
        let (_, runner) = self.flying.iter().find(|(flying, _)| *flying == poll).unwrap();
        let current = self.runners.iter().any(|limits| limits.key == *runner && limits.generation == generation);
        let ends = self.stopped || !current;
        assert!(self.now - sent >= MIN_HOLD || (is_repeatable && ends), "canceled after {:?}", self.now - sent);
    }

    /// Asserts that a request that was just sent is within every limit.
    fn check_start(&self, runner: &RunnerKey) {
        assert!(!self.stopped, "asked after the end");
        let limits = self.runners.iter().find(|limits| limits.key == *runner).unwrap();
        let requests = self.flying.iter().filter(|(_, of)| of == runner).count();
        let jobs = self.jobs.iter().filter(|of| *of == runner).count();
        assert!(self.jobs.len() + self.flying.len() <= self.concurrent, "more than concurrent");
        assert!(requests <= limits.request_concurrency, "more than request_concurrency");
        assert!(limits.limit.is_none_or(|limit| jobs + requests <= limit), "more than limit");
    }

    pub(super) fn check(&mut self) {
        let live = self.flying.iter().filter(|(poll, _)| !self.cancel.contains(poll));
        let live: Vec<RunnerKey> = live.map(|(_, runner)| runner.clone()).collect();
        let again = self.engine.decide(self.now);
        assert_eq!((again.start, again.cancel), (Vec::new(), Vec::new()), "a decision leaves nothing to decide");
        assert_eq!(again.wake, self.wake, "the wake-up stays");
        for limits in self.runners.clone() {
            let requests = live.iter().filter(|runner| **runner == limits.key).count();
            let jobs = self.jobs.iter().filter(|runner| **runner == limits.key).count();
            self.check_turn(&limits, jobs, requests);
        }
    }

    /// Asserts that a runner that may poll and has no request gets one in time, and that there is a wake-up until then.
    fn check_turn(&mut self, limits: &Limits, jobs: usize, requests: usize) {
        let entry = self.engine.entries.iter().find(|entry| entry.limits.key == limits.key).unwrap();
        if self.stopped {
            let ends = self.flying.iter().all(|(poll, _)| self.cancel.contains(poll)) || self.wake.is_some();
            assert!(ends, "nothing will end the requests");
            return;
        }
        let waits = entry.not_before().is_some_and(|earliest| earliest > self.now);
        let full = limits.limit.is_some_and(|limit| jobs >= limit) || self.jobs.len() >= self.concurrent;
        let served = self.flying.iter().any(|(_, runner)| *runner == limits.key);
        if requests > 0 || waits || full || served {
            self.starved.remove(&limits.key);
            assert!(!waits || full || served || self.wake.is_some(), "a wait without a wake-up");
            return;
        }
        let pending = self.flying.iter().any(|(poll, _)| self.cancel.contains(poll));
        assert!(self.wake.is_some() || pending, "starved without a wake-up");
        let since = *self.starved.entry(limits.key.clone()).or_insert(self.now);
        let most = MAX_STARVATION_PER_RUNNER * u32::try_from(self.runners.len()).unwrap();
        assert!(self.now - since <= most, "starved for {:?}", self.now - since);
    }
}
