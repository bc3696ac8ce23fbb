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
        self.runners.clear();
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
        configure(&mut self.engine, self.concurrent, self.runners.clone());
        self.hungry.clear();
    }

    /// One thing happens.
    pub(super) fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..2 => self.edit(),
            2..30 if !self.jobs.is_empty() => {
                let job = self.jobs.swap_remove(self.rng.random_range(0..self.jobs.len()));
                self.engine.job_ended(&job);
            }
            30..70 if !self.flying.is_empty() => {
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
            self.jobs.push(runner);
        }
    }

    fn decide(&mut self) {
        let decisions = self.engine.decide(self.now);
        self.wake = decisions.wake;
        self.cut.extend(decisions.cut);
        self.flying.extend(decisions.start);
    }

    pub(super) fn check(&mut self) {
        let room = self.concurrent.max(self.jobs.len());
        let live = self.flying.iter().filter(|(poll, _)| !self.cut.contains(poll));
        let live: Vec<RunnerKey> = live.map(|(_, runner)| runner.clone()).collect();
        assert!(self.jobs.len() + live.len() <= room, "more than concurrent");
        let again = self.engine.decide(self.now);
        assert_eq!((again.start, again.cut), (Vec::new(), Vec::new()), "a decision leaves nothing to decide");
        assert_eq!(again.wake, self.wake, "the wake-up stays");
        for limits in self.runners.clone() {
            let requests = live.iter().filter(|runner| **runner == limits.key).count();
            let jobs = self.jobs.iter().filter(|runner| **runner == limits.key).count();
            assert!(requests <= limits.request_concurrency, "more than request_concurrency");
            assert!(limits.limit.is_none_or(|limit| jobs + requests <= limit.max(jobs)), "more than limit");
            self.check_turn(&limits, jobs, requests);
        }
    }

    /// A runner that may ask and has no request gets one in time, and until then there is a wake-up.
    fn check_turn(&mut self, limits: &Limits, jobs: usize, requests: usize) {
        let entry = self.engine.entries.iter().find(|entry| entry.limits.key == limits.key).unwrap();
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
