//! A world of chance around the engine: coordinators that hold, give, fail and refuse, jobs that end, operators that
//! edit. After each step the invariants are checked.

use super::*;

/// A runner that may ask has done so after this, as long as a place is free of jobs: one turn for each of the others,
/// and the answers to what was cut.
const PATIENCE_PER_RUNNER: Duration = Duration::from_secs(12);

pub(super) struct World {
    rng: SmallRng,
    now: Instant,
    engine: Admission,
    runners: Vec<Limits>,
    concurrent: usize,
    flying: Vec<(PollId, RunnerKey)>,
    /// When each request in flight was sent, with which settings, and whether its server was known to repeat assignments.
    sent: HashMap<PollId, (Instant, u64, bool)>,
    /// Runners whose servers are known to.
    repeats: Vec<RunnerKey>,
    stopped: bool,
    cut: Vec<PollId>,
    jobs: Vec<RunnerKey>,
    wake: Option<Instant>,
    /// Since when each runner may ask and has no request.
    hungry: HashMap<RunnerKey, Instant>,
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
            repeats: Vec::new(),
            stopped: false,
            cut: Vec::new(),
            jobs: Vec::new(),
            wake: None,
            hungry: HashMap::new(),
            rng,
        };
        world.edit();
        world.decide();
        world
    }

    /// New settings.
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
        self.repeats.retain(stays);
        configure(&mut self.engine, self.concurrent, self.runners.clone());
        self.hungry.clear();
    }

    /// One thing happens.
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
                // Time passes, but no wake-up is slept through.
                let nap = Duration::from_millis(self.rng.random_range(1..4000));
                self.now = self.wake.map_or(self.now + nap, |wake| wake.min(self.now + nap)).max(self.now);
            }
        }
        // Who is told to give up does so, or had its answer already.
        while let Some(poll) = self.cut.pop() {
            if let Some(which) = self.flying.iter().position(|(flying, _)| *flying == poll) {
                if self.rng.random_bool(0.9) {
                    self.flying.swap_remove(which);
                    self.engine.answered(poll, Outcome::Cut, self.now);
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
            7 => Outcome::Repeated,
            8 => Outcome::Failed { overloaded: self.rng.random(), rate_limited: false, retry_after: None },
            _ => Outcome::Refused,
        };
        self.engine.answered(poll, outcome, self.now);
        if outcome == Outcome::Job {
            self.jobs.push(runner.clone());
        }
        if self.rng.random_bool(0.2) && self.runners.iter().any(|limits| limits.key == runner) {
            self.engine.set_repeats(&runner);
            self.repeats.push(runner);
        }
    }

    fn decide(&mut self) {
        let decisions = self.engine.decide(self.now);
        self.wake = decisions.wake;
        for poll in &decisions.cut {
            self.check_cut(*poll);
        }
        self.cut.extend(decisions.cut);
        for (poll, runner) in decisions.start {
            let limits = self.runners.iter().find(|limits| limits.key == runner).unwrap();
            self.sent.insert(poll, (self.now, limits.generation, self.repeats.contains(&runner)));
            self.flying.push((poll, runner.clone()));
            self.check_start(&runner);
        }
    }

    /// What a server may have answered is waited for.
    fn check_cut(&self, poll: PollId) {
        let (sent, generation, repeats) = self.sent[&poll];
        let (_, runner) = self.flying.iter().find(|(flying, _)| *flying == poll).unwrap();
        let current = self.runners.iter().any(|limits| limits.key == *runner && limits.generation == generation);
        let ends = self.stopped || !current;
        assert!(self.now - sent >= CUT_AFTER || (repeats && ends), "cut after {:?}", self.now - sent);
    }

    /// A request that was just sent has a place in every limit.
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
        let live = self.flying.iter().filter(|(poll, _)| !self.cut.contains(poll));
        let live: Vec<RunnerKey> = live.map(|(_, runner)| runner.clone()).collect();
        let again = self.engine.decide(self.now);
        assert_eq!((again.start, again.cut), (Vec::new(), Vec::new()), "a decision leaves nothing to decide");
        assert_eq!(again.wake, self.wake, "the wake-up stays");
        for limits in self.runners.clone() {
            let requests = live.iter().filter(|runner| **runner == limits.key).count();
            let jobs = self.jobs.iter().filter(|runner| **runner == limits.key).count();
            self.check_turn(&limits, jobs, requests);
        }
    }

    /// A runner that may ask and has no request gets one in time, and until then there is a wake-up.
    fn check_turn(&mut self, limits: &Limits, jobs: usize, requests: usize) {
        let entry = self.engine.entries.iter().find(|entry| entry.limits.key == limits.key).unwrap();
        if self.stopped {
            let ends = self.flying.iter().all(|(poll, _)| self.cut.contains(poll)) || self.wake.is_some();
            assert!(ends, "nothing will end the requests");
            return;
        }
        let waits = entry.not_before().is_some_and(|earliest| earliest > self.now);
        let full = limits.limit.is_some_and(|limit| jobs >= limit) || self.jobs.len() >= self.concurrent;
        let served = self.flying.iter().any(|(_, runner)| *runner == limits.key);
        if requests > 0 || waits || full || served {
            self.hungry.remove(&limits.key);
            assert!(!waits || full || served || self.wake.is_some(), "a wait without a wake-up");
            return;
        }
        let pending = self.flying.iter().any(|(poll, _)| self.cut.contains(poll));
        assert!(self.wake.is_some() || pending, "hungry, and nothing will wake the engine");
        let since = *self.hungry.entry(limits.key.clone()).or_insert(self.now);
        let most = PATIENCE_PER_RUNNER * u32::try_from(self.runners.len()).unwrap();
        assert!(self.now - since <= most, "starved for {:?}", self.now - since);
    }
}
