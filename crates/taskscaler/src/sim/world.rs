//! An engine, providers, and jobs; restarts of the manager at any moment.

mod end;
mod naps;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::check::Watch;
use super::cloud::{Cloud, chance};
use super::happening::Happening;
use super::report::Report;
use super::scenario::Scenario;
use super::trace::Job;
use crate::books::{Row, RowKey};
use crate::config::Config;
use crate::engine::{Engine, Violation};
use crate::event::{Action, Event};
use crate::time::{Now, Time};
use crate::words::{GroupId, Key, Lease};
use muster_fleeting::model::InstanceId;
use naps::Left;

/// An instance that dies is noticed by its job's connection after so long.
const CONNECTION_BREAKS: Duration = Duration::from_secs(5);
/// After a refusal the manager asks for a job again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Where a job is.
#[derive(Debug, Clone, PartialEq)]
enum Place {
    /// It has not come, or waits at the server.
    Server,
    /// It waits for a slot.
    Waiting,
    On(Lease),
    Done,
}

#[derive(Debug)]
struct Running {
    place: Place,
    /// The environment that it asks for.
    resumes: Option<Left>,
    attempt: u32,
    waited_since: Time,
    started: Time,
}

/// See the module.
pub struct World<'a> {
    scenario: &'a Scenario,
    /// The engine's, as it is by now.
    config: Config,
    jobs: &'a [Job],
    engine: Engine,
    rows: BTreeMap<RowKey, Row>,
    clouds: Vec<Cloud>,
    random: ChaCha8Rng,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: HashMap<u64, Happening>,
    number: u64,
    /// Until when each group's plugin is down.
    down: Vec<Time>,
    /// Whether each group's plugin says that there are machines to be had.
    stock: Vec<bool>,
    /// Seconds that the wall clock was set forward.
    clock: i64,
    is_draining: bool,
    /// Promises that no job has used.
    promises: Vec<Key>,
    life: u32,
    now: Now,
    /// The engine is woken then; an earlier wake makes this one void.
    wake: Option<Time>,
    queue: VecDeque<usize>,
    /// Since when the server has had no job for a request in flight.
    empty_since: Option<Time>,
    asking: bool,
    running: Vec<Running>,
    keys: HashMap<Key, usize>,
    unfinished: usize,
    running_now: usize,
    watch: Watch,
    report: Report,
}

impl std::fmt::Debug for World<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> World<'a> {
    /// A world in which nothing has happened yet.
    #[must_use]
    pub fn new(scenario: &'a Scenario, jobs: &'a [Job]) -> Self {
        let now = Now::steady(Time::ZERO, scenario.origin);
        let engine = Engine::new(scenario.config.clone(), now);
        let clouds = (scenario.clouds.iter().zip(&scenario.config.groups))
            .map(|(cloud, group)| Cloud::new(&group.name, cloud.clone(), scenario.heals, scenario.origin))
            .collect();
        let new = |job: &Job| Running {
            place: Place::Server,
            resumes: None,
            attempt: 0,
            waited_since: job.at,
            started: Time::ZERO,
        };
        let mut world = Self {
            scenario,
            config: scenario.config.clone(),
            jobs,
            engine,
            rows: BTreeMap::new(),
            clouds,
            random: ChaCha8Rng::seed_from_u64(scenario.seed),
            agenda: BinaryHeap::new(),
            happenings: HashMap::new(),
            number: 0,
            down: vec![Time::ZERO; scenario.clouds.len()],
            stock: vec![true; scenario.clouds.len()],
            clock: 0,
            is_draining: false,
            promises: Vec::new(),
            life: 0,
            now,
            wake: None,
            queue: VecDeque::new(),
            empty_since: None,
            asking: false,
            running: jobs.iter().map(new).collect(),
            keys: HashMap::new(),
            unfinished: jobs.len(),
            running_now: 0,
            watch: Watch::default(),
            report: Report::default(),
        };
        for (index, job) in jobs.iter().enumerate().filter(|(index, _)| !scenario.follows(*index)) {
            world.plan(job.at, Happening::Arrives(index));
        }
        for at in &scenario.kills {
            world.plan(*at, Happening::Kill);
        }
        for at in &scenario.foreign {
            world.plan(*at, Happening::Foreign);
        }
        for (at, turn) in &scenario.turns {
            world.plan(*at, Happening::Turn(turn.clone()));
        }
        if !scenario.turns.is_empty() {
            world.plan(scenario.heals, Happening::Heal);
        }
        if let Some(every) = scenario.sample_every {
            world.plan(Time::ZERO + every, Happening::Sample);
        }
        world.engine_starts();
        world
    }

    fn plan(&mut self, at: Time, happening: Happening) {
        self.number += 1;
        self.agenda.push(Reverse((at, self.number)));
        self.happenings.insert(self.number, happening);
    }

    /// Until all jobs are done and the fleet is quiet, or until the scenario's end.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn run(mut self) -> Result<Report, Violation> {
        let mut end = self.scenario.end;
        while let Some(Reverse((at, number))) = self.agenda.pop() {
            if at > end {
                break;
            }
            let Some(happening) = self.happenings.remove(&number) else { continue };
            if matches!(happening, Happening::Wake) && self.wake != Some(at) {
                continue;
            }
            self.now = self.moment(at);
            if let Err(mut violation) = self.happens(happening).and_then(|()| self.settle()) {
                let live: Vec<_> = self.clouds.iter().flat_map(|cloud| cloud.live(at)).collect();
                violation.what =
                    format!("{}, at {at:?} with {live:?} and {:?}", violation.what, self.engine.status(self.now));
                return Err(violation);
            }
            if self.unfinished == 0 && self.scenario.stop_when_done {
                break;
            }
            if let Some(quiet) = self.scenario.quiet.filter(|_| self.unfinished == 0 && end == self.scenario.end) {
                let well = Some(self.scenario.heals).filter(|heals| *heals < end).unwrap_or(at);
                end = at.max(well) + quiet;
            }
        }
        let end = end.min(self.now.at);
        self.finish(end)
    }

    fn happens(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Told { life, event } => {
                if life == self.life {
                    self.report.events += 1;
                    let event = self.cut(event);
                    if let Event::Updated { group, call, result: Ok(list) } = &event {
                        self.clouds[group.0].is_told((self.life, *call), list);
                    }
                    self.engine.handle(self.now, event);
                }
            }
            Happening::Arrives(job) => self.arrives(job),
            Happening::Ends { job, attempt } => self.job_ends(job, attempt)?,
            Happening::Breaks { job, attempt } => {
                let running = &self.running[job];
                if running.attempt == attempt
                    && let Place::On(lease) = &running.place
                {
                    let key = lease.key.clone();
                    self.engine.handle(self.now, Event::Suspect { key });
                }
            }
            Happening::Canceled { job, attempt } => self.canceled(job, attempt)?,
            Happening::AskForJobs => self.asking = false,
            Happening::Empty => self.finds_no_job(),
            Happening::Wake => {
                self.wake = None;
                self.report.events += 1;
                self.engine.handle(self.now, Event::Tick);
            }
            Happening::Kill => self.restart()?,
            Happening::PluginUp(group) => self.plugin_is_up(group),
            Happening::Turn(turn) => self.turn(turn)?,
            Happening::Heal => self.heal(),
            Happening::Foreign => {
                self.clouds[0].make(self.now.at, &mut self.random, true);
            }
            Happening::Sample => {
                let machines = self.clouds.iter().map(|cloud| cloud.live(self.now.at).count()).sum();
                let waiting = self.queue.len() + usize::try_from(self.engine.tasks().pending).unwrap_or(usize::MAX);
                self.report.sample(self.now.at, waiting, self.running_now, machines);
                if let Some(every) = self.scenario.sample_every {
                    self.plan(self.now.at + every, Happening::Sample);
                }
            }
        }
        Ok(())
    }

    /// Requests jobs while there is capacity, then stores and does what the engine says.
    fn settle(&mut self) -> Result<(), Violation> {
        self.request_jobs()?;
        loop {
            if self.scenario.checked {
                self.engine.check()?;
            }
            let _ = self.engine.decisions();
            for change in self.engine.changes() {
                match change.row {
                    Some(row) => self.rows.insert(change.key, row),
                    None => self.rows.remove(&change.key),
                };
            }
            let actions = self.scenario.spoilt.unwrap_or(std::convert::identity)(self.engine.actions());
            if actions.is_empty() {
                break;
            }
            for action in actions {
                // Killed with the books written, and nothing of it told to anyone.
                if self.now.at < self.scenario.heals && chance(&mut self.random, self.scenario.killed_before_acting) {
                    return self.restart();
                }
                self.act(action)?;
            }
            self.request_jobs()?;
        }
        let wake = self.engine.next_wake(self.now).map(|at| at.max(self.now.at + Duration::from_millis(1)));
        if wake != self.wake {
            self.wake = wake;
            if let Some(at) = wake {
                self.plan(at, Happening::Wake);
            }
        }
        Ok(())
    }

    fn request_jobs(&mut self) -> Result<(), Violation> {
        while !self.asking
            && let Some(job) = self.queue.front().copied()
        {
            if self.is_draining && self.now.at < self.scenario.heals {
                break;
            }
            let key = self.key(job);
            if let Some(promise) = self.promises.pop() {
                self.engine.rename(&promise, key.clone());
            } else if self.engine.reserve(self.now, key.clone()).is_err() {
                self.empty_since = None;
                self.ask_again();
                return Ok(());
            }
            self.report.ahead += usize::from(self.engine.is_ahead());
            self.queue.pop_front();
            self.requested();
            self.running[job].place = Place::Waiting;
            self.keys.insert(key.clone(), job);
            self.ask_for(job, key)?;
            self.plan_cancel(job);
        }
        self.promise();
        Ok(())
    }

    fn key(&self, job: usize) -> Key {
        Key::new(format!("{job}.{}", self.running[job].attempt))
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        let (at, life) = (self.now.at, self.life);
        let of = action.group().map_or(0, |group| group.0);
        if action.group().is_some_and(|group| self.is_down(group))
            && let Some(event) = Self::unheard(&action)
        {
            self.plan(at + Self::refusal(), Happening::Told { life, event });
            return Ok(());
        }
        let (delay, event) = match action {
            Action::Grant(lease) => {
                return match self.is_canceled_at_its_grant(&lease) {
                    Some(job) => self.gives_up(job, Event::Unused { key: lease.key }),
                    None => self.starts(lease),
                };
            }
            Action::Lost { key, .. } => return self.lost(&key),
            Action::Forget { .. } | Action::Answer { .. } | Action::Parked { .. } => return Ok(()),
            Action::NotResumed { key, .. } => {
                self.not_resumed(&key);
                return Ok(());
            }
            Action::Withdraw { key } => {
                self.promises.retain(|promise| *promise != key);
                return Ok(());
            }
            Action::Update { group, call } => {
                self.report.lists += 1;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.list(at, (life, call), &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Updated { group, call, result })
            }
            Action::Increase { group, call, n } => {
                self.watch.asked(at)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.increase(at, n, &mut self.random);
                let max = self.config.groups[group.0].instances_max;
                self.watch.made(cloud, at, max)?;
                let delay = cloud.delay(at, &mut self.random);
                self.watch.spent(&self.clouds, &self.config, at)?;
                (delay, Event::Increased { group, call, result })
            }
            Action::Decrease { group, ids } => {
                self.watch.removed(group, &ids)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.decrease(at, &ids, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Decreased { group, ids, result })
            }
            Action::Suspend { group, ids } => {
                self.watch.removed(group, &ids)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.sleep(at, &ids, false, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Suspended { group, ids, result })
            }
            Action::Resume { group, ids } => {
                let cloud = &mut self.clouds[group.0];
                let result = cloud.sleep(at, &ids, true, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Resumed { group, ids, result })
            }
            Action::Prepare { group, id, .. } => {
                let (takes, result) = self.clouds[group.0].prepare(at, &id, &mut self.random);
                (takes, Event::Prepared { group, id, result })
            }
            Action::Heartbeat { group, id } => {
                let cloud = &self.clouds[group.0];
                let result = cloud.heartbeat(at, &id, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Health { group, id, result })
            }
        };
        if self.clouds[of].says_twice(at, &mut self.random) {
            let again = at + delay + Duration::from_millis(self.random.random_range(0..60_000));
            self.plan(again, Happening::Told { life, event: event.clone() });
        }
        self.plan(at + delay, Happening::Told { life, event });
        Ok(())
    }

    /// A job gets its slot, and starts.
    fn starts(&mut self, lease: Lease) -> Result<(), Violation> {
        let Some(job) = self.keys.get(&lease.key).copied() else {
            return Err(Violation::new("J2", format!("{} has a slot, and nobody asked for it", lease.key)));
        };
        if self.running[job].place != Place::Waiting {
            let what = format!("{} has a slot, and is {:?}", lease.key, self.running[job].place);
            return Err(Violation::new("J2", what));
        }
        let resumes = self.running[job].resumes.take();
        self.watch.granted(&lease, resumes.as_ref().map(|left| left.name.as_str()), &self.scenario.config)?;
        self.report.resumed += usize::from(resumes.is_some());
        let duration = self.jobs[job].duration;
        let running = &mut self.running[job];
        let attempt = running.attempt;
        let waited = self.now.at.since(running.waited_since);
        if running.waited_since >= self.scenario.measured_from {
            self.report.waits_ms.push(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        }
        running.started = self.now.at;
        let (group, id) = (lease.group, lease.instance.clone());
        running.place = Place::On(lease);
        self.running_now += 1;
        self.plan(self.now.at + duration, Happening::Ends { job, attempt });
        self.plan_break(job, attempt, group, &id);
        Ok(())
    }

    /// If the machine dies under the job, its connection breaks.
    fn plan_break(&mut self, job: usize, attempt: u32, group: GroupId, id: &InstanceId) {
        let gone = self.clouds[group.0].machines.get(id).and_then(|machine| machine.gone);
        if let Some(gone) = gone {
            let at = gone.max(self.now.at) + CONNECTION_BREAKS;
            self.plan(at, Happening::Breaks { job, attempt });
        }
    }

    fn job_ends(&mut self, job: usize, attempt: u32) -> Result<(), Violation> {
        let running = &self.running[job];
        let Place::On(lease) = running.place.clone() else { return Ok(()) };
        if running.attempt != attempt {
            return Ok(());
        }
        if !self.clouds[lease.group.0].is_awake(self.now.at, &lease.instance) {
            // It did not end: its machine is gone, and its connection broke, or will.
            self.engine.handle(self.now, Event::Suspect { key: lease.key });
            return Ok(());
        }
        self.leaves(&lease);
        let started = self.running[job].started.max(self.scenario.measured_from);
        self.report.busy_slot_hours += self.now.at.since(started).as_secs_f64() / 3600.0;
        self.report.done += usize::from(self.running[job].waited_since >= self.scenario.measured_from);
        self.unfinished -= 1;
        self.running[job].place = Place::Done;
        self.keys.remove(&lease.key);
        let used = self.jobs[job].used();
        self.engine.handle(self.now, Event::Used { key: lease.key.clone(), used });
        if !self.leaves_environment(job, &lease) {
            self.engine.handle(self.now, Event::Release { key: lease.key });
        }
        Ok(())
    }

    fn leaves(&mut self, lease: &Lease) {
        self.watch.ended(lease);
        self.running_now -= 1;
    }

    /// A job's instance is gone: the job is tried again, as a new attempt.
    fn lost(&mut self, key: &Key) -> Result<(), Violation> {
        let Some(job) = self.keys.remove(key) else { return Ok(()) };
        let Place::On(lease) = self.running[job].place.clone() else {
            return Err(Violation::new("J2", format!("{key} is lost, and was {:?}", self.running[job].place)));
        };
        self.leaves(&lease);
        self.report.moved += 1;
        self.again(job);
        Ok(())
    }

    fn again(&mut self, job: usize) {
        let running = &mut self.running[job];
        running.attempt += 1;
        running.place = Place::Server;
        running.waited_since = self.now.at;
        self.queue.push_back(job);
    }
}
