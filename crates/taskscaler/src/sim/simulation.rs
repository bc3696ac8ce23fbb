//! The simulation: runs an engine with simulated providers, jobs and restarts of the manager.

mod disturbances;
mod final_checks;
mod suspended_jobs;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cloud::{Cloud, chance};
use super::event::SimEvent;
use super::invariants::InvariantChecker;
use super::report::Report;
use super::scenario::Scenario;
use super::trace::Job;
use crate::config::Config;
use crate::engine::{Engine, Violation};
use crate::event::{Action, Event};
use crate::ledger::{Row, RowKey};
use crate::time::{Now, Time};
use crate::types::{GroupId, SlotAssignment, TaskKey};
use muster_fleeting::model::InstanceId;
use suspended_jobs::Left;

/// Time until a job notices that its instance no longer exists, because its connection breaks.
const CONNECTION_BREAKS: Duration = Duration::from_secs(5);
/// Time after which the manager tries again to reserve a slot.
const REQUEST_RETRY_DELAY: Duration = Duration::from_secs(1);

/// State of a job.
#[derive(Debug, Clone, PartialEq)]
enum SimJobState {
    /// The job has not arrived, or waits at the coordinator.
    Server,
    /// The job waits for a slot.
    Waiting,
    /// The job runs on these slots.
    On(SlotAssignment),
    /// The job has completed.
    Done,
}

#[derive(Debug)]
struct Running {
    place: SimJobState,
    /// Environment that the job wants to resume.
    resumes: Option<Left>,
    attempt: u32,
    waited_since: Time,
    started: Time,
}

/// A running simulation.
pub struct Simulation<'a> {
    scenario: &'a Scenario,
    /// Configuration of the engine, with the changes so far.
    config: Config,
    jobs: &'a [Job],
    engine: Engine,
    rows: BTreeMap<RowKey, Row>,
    clouds: Vec<Cloud>,
    random: ChaCha8Rng,
    agenda: BinaryHeap<Reverse<(Time, u64)>>,
    events: HashMap<u64, SimEvent>,
    number: u64,
    /// Time until which the plugin of each group is down.
    down: Vec<Time>,
    /// Whether the provider of each group has machines in stock.
    stock: Vec<bool>,
    /// Sum of the wall clock's jumps, in seconds.
    clock: i64,
    is_draining: bool,
    /// Reservations that no job has used.
    reservations: Vec<TaskKey>,
    /// Number of the manager's restarts.
    life: u32,
    now: Now,
    /// Time at which the engine must be woken. Other planned wake-ups are void.
    wake: Option<Time>,
    /// Jobs that wait at the coordinator.
    queue: VecDeque<usize>,
    /// Time since which the coordinator has no job for an open request. `None` means that no request is open without a job.
    empty_since: Option<Time>,
    /// Whether a retry after a refused reservation is planned.
    asking: bool,
    running: Vec<Running>,
    keys: HashMap<TaskKey, usize>,
    unfinished: usize,
    running_now: usize,
    watch: InvariantChecker,
    report: Report,
}

impl std::fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> Simulation<'a> {
    /// Creates a simulation at its start.
    #[must_use]
    pub fn new(scenario: &'a Scenario, jobs: &'a [Job]) -> Self {
        let now = Now::steady(Time::ZERO, scenario.origin);
        let engine = Engine::new(scenario.config.clone(), now);
        let clouds = (scenario.clouds.iter().zip(&scenario.config.groups))
            .map(|(cloud, group)| Cloud::new(&group.name, cloud.clone(), scenario.faults_end, scenario.origin))
            .collect();
        let new = |job: &Job| Running {
            place: SimJobState::Server,
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
            events: HashMap::new(),
            number: 0,
            down: vec![Time::ZERO; scenario.clouds.len()],
            stock: vec![true; scenario.clouds.len()],
            clock: 0,
            is_draining: false,
            reservations: Vec::new(),
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
            watch: InvariantChecker::default(),
            report: Report::default(),
        };
        for (index, job) in jobs.iter().enumerate().filter(|(index, _)| !scenario.follows(*index)) {
            world.plan(job.at, SimEvent::Arrives(index));
        }
        for at in &scenario.manager_kills {
            world.plan(*at, SimEvent::Kill);
        }
        for at in &scenario.unmanaged_instances {
            world.plan(*at, SimEvent::UnmanagedInstance);
        }
        for (at, turn) in &scenario.disturbances {
            world.plan(*at, SimEvent::Disturbance(turn.clone()));
        }
        if !scenario.disturbances.is_empty() {
            world.plan(scenario.faults_end, SimEvent::FaultsEnd);
        }
        if let Some(every) = scenario.sample_every {
            world.plan(Time::ZERO + every, SimEvent::Sample);
        }
        world.engine_starts();
        world
    }

    fn plan(&mut self, at: Time, happening: SimEvent) {
        self.number += 1;
        self.agenda.push(Reverse((at, self.number)));
        self.events.insert(self.number, happening);
    }

    /// Runs until all jobs are done and the settle time has passed, or until the end of the scenario.
    ///
    /// # Errors
    /// Returns the first [`Violation`].
    pub fn run(mut self) -> Result<Report, Violation> {
        let mut end = self.scenario.end;
        while let Some(Reverse((at, number))) = self.agenda.pop() {
            if at > end {
                break;
            }
            let Some(happening) = self.events.remove(&number) else { continue };
            if matches!(happening, SimEvent::Wake) && self.wake != Some(at) {
                continue;
            }
            self.now = self.moment(at);
            if let Err(mut violation) = self.happens(happening).and_then(|()| self.advance()) {
                let live: Vec<_> = self.clouds.iter().flat_map(|cloud| cloud.live(at)).collect();
                violation.message =
                    format!("{}, at {at:?} with {live:?} and {:?}", violation.message, self.engine.status(self.now));
                return Err(violation);
            }
            if self.unfinished == 0 && self.scenario.stop_when_done {
                break;
            }
            if let Some(quiet) = self.scenario.settle_time.filter(|_| self.unfinished == 0 && end == self.scenario.end)
            {
                let well = Some(self.scenario.faults_end).filter(|heals| *heals < end).unwrap_or(at);
                end = at.max(well) + quiet;
            }
        }
        let end = end.min(self.now.at);
        self.finish(end)
    }

    fn happens(&mut self, happening: SimEvent) -> Result<(), Violation> {
        match happening {
            SimEvent::Delivered { life, event } => {
                if life == self.life {
                    self.report.events += 1;
                    let event = self.cut(event);
                    if let Event::Listed { group, call, result: Ok(list) } = &event {
                        self.clouds[group.0].record_listed((self.life, *call), list);
                    }
                    self.engine.handle(self.now, event);
                }
            }
            SimEvent::Arrives(job) => self.arrives(job),
            SimEvent::Ends { job, attempt } => self.job_ends(job, attempt)?,
            SimEvent::Breaks { job, attempt } => {
                let running = &self.running[job];
                if running.attempt == attempt
                    && let SimJobState::On(lease) = &running.place
                {
                    let key = lease.key.clone();
                    self.engine.handle(self.now, Event::ConnectionLost { key });
                }
            }
            SimEvent::Canceled { job, attempt } => self.canceled(job, attempt)?,
            SimEvent::RequestJobs => self.asking = false,
            SimEvent::Empty => self.finds_no_job(),
            SimEvent::Wake => {
                self.wake = None;
                self.report.events += 1;
                self.engine.handle(self.now, Event::Tick);
            }
            SimEvent::Kill => self.restart()?,
            SimEvent::PluginUp(group) => self.plugin_is_up(group),
            SimEvent::Disturbance(turn) => self.turn(turn)?,
            SimEvent::FaultsEnd => self.heal(),
            SimEvent::UnmanagedInstance => {
                self.clouds[0].create_machine(self.now.at, &mut self.random, true);
            }
            SimEvent::Sample => {
                let machines = self.clouds.iter().map(|cloud| cloud.live(self.now.at).count()).sum();
                let waiting =
                    self.queue.len() + usize::try_from(self.engine.slot_counts().pending).unwrap_or(usize::MAX);
                self.report.sample(self.now.at, waiting, self.running_now, machines);
                if let Some(every) = self.scenario.sample_every {
                    self.plan(self.now.at + every, SimEvent::Sample);
                }
            }
        }
        Ok(())
    }

    /// Requests jobs while there is capacity, stores the engine's changes and performs its actions.
    fn advance(&mut self) -> Result<(), Violation> {
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
            let actions = self.scenario.injected_defect.unwrap_or(std::convert::identity)(self.engine.actions());
            if actions.is_empty() {
                break;
            }
            for action in actions {
                // The manager is killed after it wrote the ledger and before it performs the action.
                if self.now.at < self.scenario.faults_end && chance(&mut self.random, self.scenario.kill_before_actions)
                {
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
                self.plan(at, SimEvent::Wake);
            }
        }
        Ok(())
    }

    fn request_jobs(&mut self) -> Result<(), Violation> {
        while !self.asking
            && let Some(job) = self.queue.front().copied()
        {
            if self.is_draining && self.now.at < self.scenario.faults_end {
                break;
            }
            let key = self.key(job);
            if let Some(promise) = self.reservations.pop() {
                self.engine.rename(&promise, key.clone());
            } else if self.engine.reserve(self.now, key.clone()).is_err() {
                self.empty_since = None;
                self.ask_again();
                return Ok(());
            }
            self.report.ahead += usize::from(self.engine.is_ahead());
            self.queue.pop_front();
            self.requested();
            self.running[job].place = SimJobState::Waiting;
            self.keys.insert(key.clone(), job);
            self.ask_for(job, key)?;
            self.plan_cancel(job);
        }
        self.promise();
        Ok(())
    }

    fn key(&self, job: usize) -> TaskKey {
        TaskKey::new(format!("{job}.{}", self.running[job].attempt))
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        let (at, life) = (self.now.at, self.life);
        let of = action.group().map_or(0, |group| group.0);
        if action.group().is_some_and(|group| self.is_down(group))
            && let Some(event) = Self::unheard(&action)
        {
            self.plan(at + Self::refusal(), SimEvent::Delivered { life, event });
            return Ok(());
        }
        let (delay, event) = match action {
            Action::Grant(lease) => {
                return match self.is_canceled_at_its_grant(&lease) {
                    Some(job) => self.gives_up(job, Event::GrantAbandoned { key: lease.key }),
                    None => self.starts(lease),
                };
            }
            Action::Lost { key, .. } => return self.lost(&key),
            Action::ForgetInstance { .. } | Action::OperatorReply { .. } | Action::EnvironmentSaved { .. } => {
                return Ok(());
            }
            Action::ResumeFailed { key, .. } => {
                self.not_resumed(&key);
                return Ok(());
            }
            Action::RevokeReservation { key } => {
                self.reservations.retain(|promise| *promise != key);
                return Ok(());
            }
            Action::List { group, call } => {
                self.report.lists += 1;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.list(at, (life, call), &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Listed { group, call, result })
            }
            Action::Increase { group, call, n } => {
                self.watch.asked(at)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.increase(at, n, &mut self.random);
                let max = self.config.groups[group.0].max_instances;
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
        if self.clouds[of].duplicates_response(at, &mut self.random) {
            let again = at + delay + Duration::from_millis(self.random.random_range(0..60_000));
            self.plan(again, SimEvent::Delivered { life, event: event.clone() });
        }
        self.plan(at + delay, SimEvent::Delivered { life, event });
        Ok(())
    }

    /// Starts a job on its assigned slots.
    fn starts(&mut self, lease: SlotAssignment) -> Result<(), Violation> {
        let Some(job) = self.keys.get(&lease.key).copied() else {
            return Err(Violation::new("J2", format!("{} has a slot, and nobody asked for it", lease.key)));
        };
        if self.running[job].place != SimJobState::Waiting {
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
        running.place = SimJobState::On(lease);
        self.running_now += 1;
        self.plan(self.now.at + duration, SimEvent::Ends { job, attempt });
        self.plan_break(job, attempt, group, &id);
        Ok(())
    }

    /// Plans a break of the job's connection if the machine will cease to exist.
    fn plan_break(&mut self, job: usize, attempt: u32, group: GroupId, id: &InstanceId) {
        let gone = self.clouds[group.0].machines.get(id).and_then(|machine| machine.deleted_at);
        if let Some(gone) = gone {
            let at = gone.max(self.now.at) + CONNECTION_BREAKS;
            self.plan(at, SimEvent::Breaks { job, attempt });
        }
    }

    fn job_ends(&mut self, job: usize, attempt: u32) -> Result<(), Violation> {
        let running = &self.running[job];
        let SimJobState::On(lease) = running.place.clone() else { return Ok(()) };
        if running.attempt != attempt {
            return Ok(());
        }
        if !self.clouds[lease.group.0].is_awake(self.now.at, &lease.instance) {
            // The job did not complete, because its machine no longer runs.
            self.engine.handle(self.now, Event::ConnectionLost { key: lease.key });
            return Ok(());
        }
        self.leaves(&lease);
        let started = self.running[job].started.max(self.scenario.measured_from);
        self.report.busy_slot_hours += self.now.at.since(started).as_secs_f64() / 3600.0;
        self.report.done += usize::from(self.running[job].waited_since >= self.scenario.measured_from);
        self.unfinished -= 1;
        self.running[job].place = SimJobState::Done;
        self.keys.remove(&lease.key);
        let used = self.jobs[job].used();
        self.engine.handle(self.now, Event::JobUsage { key: lease.key.clone(), usage: used });
        if !self.leaves_environment(job, &lease) {
            self.engine.handle(self.now, Event::Release { key: lease.key });
        }
        Ok(())
    }

    fn leaves(&mut self, lease: &SlotAssignment) {
        self.watch.ended(lease);
        self.running_now -= 1;
    }

    /// Reschedules a job whose instance was lost, as a new attempt.
    fn lost(&mut self, key: &TaskKey) -> Result<(), Violation> {
        let Some(job) = self.keys.remove(key) else { return Ok(()) };
        let SimJobState::On(lease) = self.running[job].place.clone() else {
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
        running.place = SimJobState::Server;
        running.waited_since = self.now.at;
        self.queue.push_back(job);
    }
}
