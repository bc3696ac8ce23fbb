//! Runs an engine with simulated providers, jobs and restarts of the manager.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes of jobs and groups come from the scenario, whose lists do not change"
)]

mod disturbances;
mod final_checks;
mod jobs;
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
use crate::types::{SlotAssignment, TaskKey};
use suspended_jobs::SavedEnvironment;

const CONNECTION_BREAK_DELAY: Duration = Duration::from_secs(5);
const REQUEST_RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq)]
enum SimJobState {
    /// The job has not arrived, or waits at the coordinator.
    AtCoordinator,
    /// The job waits for a slot.
    Waiting,
    Running(SlotAssignment),
    /// The job has completed.
    Done,
}

#[derive(Debug)]
struct SimJob {
    state: SimJobState,
    /// Environment that the job wants to resume.
    resumes: Option<SavedEnvironment>,
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
    /// Last number of an event or a reservation.
    last_number: u64,
    /// Time until which the plugin of each group is down.
    down_until: Vec<Time>,
    /// Whether the provider of each group has machines in stock.
    has_stock: Vec<bool>,
    clock_offset_s: i64,
    is_draining: bool,
    /// Reservations that no job has used.
    reservations: Vec<TaskKey>,
    /// Number of the manager's current run, incremented by each restart.
    manager_run: u32,
    now: Now,
    wake: Option<Time>,
    /// Jobs that wait at the coordinator.
    queue: VecDeque<usize>,
    /// Time since which the coordinator has had no job for the manager's next request. `None` if it has one.
    ///
    /// Also `None` after a start of the manager or a refused reservation, until the coordinator has sent the next job.
    empty_since: Option<Time>,
    /// Whether a retry after a refused reservation is planned.
    retry_is_planned: bool,
    sim_jobs: Vec<SimJob>,
    /// Indexes of the jobs that have requested slots, by their task keys.
    keys: HashMap<TaskKey, usize>,
    unfinished: usize,
    running_count: usize,
    checker: InvariantChecker,
    report: Report,
}

impl std::fmt::Debug for Simulation<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").field("now", &self.now).finish_non_exhaustive()
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
        let initial = |job: &Job| SimJob {
            state: SimJobState::AtCoordinator,
            resumes: None,
            attempt: 0,
            waited_since: job.at,
            started: Time::ZERO,
        };
        let mut simulation = Self {
            scenario,
            config: scenario.config.clone(),
            jobs,
            engine,
            rows: BTreeMap::new(),
            clouds,
            random: ChaCha8Rng::seed_from_u64(scenario.seed),
            agenda: BinaryHeap::new(),
            events: HashMap::new(),
            last_number: 0,
            down_until: vec![Time::ZERO; scenario.clouds.len()],
            has_stock: vec![true; scenario.clouds.len()],
            clock_offset_s: 0,
            is_draining: false,
            reservations: Vec::new(),
            manager_run: 0,
            now,
            wake: None,
            queue: VecDeque::new(),
            empty_since: None,
            retry_is_planned: false,
            sim_jobs: jobs.iter().map(initial).collect(),
            keys: HashMap::new(),
            unfinished: jobs.len(),
            running_count: 0,
            checker: InvariantChecker::default(),
            report: Report::default(),
        };
        for (index, job) in jobs.iter().enumerate().filter(|(index, _)| !scenario.arrives_after_previous(*index)) {
            simulation.plan(job.at, SimEvent::JobArrives(index));
        }
        for at in &scenario.manager_kills {
            simulation.plan(*at, SimEvent::Kill);
        }
        for at in &scenario.unmanaged_instances {
            simulation.plan(*at, SimEvent::UnmanagedInstance);
        }
        for (at, disturbance) in &scenario.disturbances {
            simulation.plan(*at, SimEvent::Disturbance(disturbance.clone()));
        }
        if !scenario.disturbances.is_empty() {
            simulation.plan(scenario.faults_end, SimEvent::FaultsEnd);
        }
        if let Some(interval) = scenario.sample_interval {
            simulation.plan(Time::ZERO + interval, SimEvent::Sample);
        }
        simulation.report_plugins();
        simulation
    }

    fn plan(&mut self, at: Time, event: SimEvent) {
        self.last_number += 1;
        self.agenda.push(Reverse((at, self.last_number)));
        self.events.insert(self.last_number, event);
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
            let Some(event) = self.events.remove(&number) else { continue };
            if matches!(event, SimEvent::Wake) && self.wake != Some(at) {
                continue;
            }
            self.now = self.now_at(at);
            if let Err(mut violation) = self.handle(event).and_then(|()| self.advance()) {
                let live: Vec<_> = self.clouds.iter().flat_map(|cloud| cloud.live(at)).collect();
                violation.message =
                    format!("{}, at {at:?} with {live:?} and {:?}", violation.message, self.engine.status(self.now));
                return Err(violation);
            }
            if self.unfinished == 0 && self.scenario.stop_when_done {
                break;
            }
            if let Some(settle_time) =
                self.scenario.settle_time.filter(|_| self.unfinished == 0 && end == self.scenario.end)
            {
                let faults_end = Some(self.scenario.faults_end).filter(|faults_end| *faults_end < end).unwrap_or(at);
                end = at.max(faults_end) + settle_time;
            }
        }
        let end = end.min(self.now.at);
        self.finish(end)
    }

    fn handle(&mut self, event: SimEvent) -> Result<(), Violation> {
        match event {
            SimEvent::Delivered { manager_run, event } => {
                if manager_run == self.manager_run {
                    self.report.events += 1;
                    let event = self.with_failure_if_down(event);
                    if let Event::Listed { group, call, result: Ok(list) } = &event {
                        self.clouds[group.0].record_listed((self.manager_run, *call), list);
                    }
                    self.engine.handle(self.now, event);
                }
            }
            SimEvent::JobArrives(job) => self.job_arrives(job),
            SimEvent::JobEnds { job, attempt } => self.end_job(job, attempt)?,
            SimEvent::ConnectionBreaks { job, attempt } => {
                let sim_job = &self.sim_jobs[job];
                if sim_job.attempt == attempt
                    && let SimJobState::Running(lease) = &sim_job.state
                {
                    let key = lease.key.clone();
                    self.engine.handle(self.now, Event::ConnectionLost { key });
                }
            }
            SimEvent::JobCanceled { job, attempt } => self.cancel_job(job, attempt)?,
            SimEvent::RequestJobs => self.retry_is_planned = false,
            SimEvent::EmptyAnswer => self.report_empty_answer(),
            SimEvent::Wake => {
                self.wake = None;
                self.report.events += 1;
                self.engine.handle(self.now, Event::Tick);
            }
            SimEvent::Kill => self.restart()?,
            SimEvent::PluginUp(group) => self.report_plugin_up(group),
            SimEvent::Disturbance(disturbance) => self.disturb(disturbance)?,
            SimEvent::FaultsEnd => self.end_disturbances(),
            SimEvent::UnmanagedInstance => {
                self.clouds[0].create_machine(self.now.at, &mut self.random, true);
            }
            SimEvent::Sample => {
                let machines = self.clouds.iter().map(|cloud| cloud.live(self.now.at).count()).sum();
                let waiting =
                    self.queue.len() + usize::try_from(self.engine.slot_counts().pending).unwrap_or(usize::MAX);
                self.report.sample(self.now.at, waiting, self.running_count, machines);
                if let Some(interval) = self.scenario.sample_interval {
                    self.plan(self.now.at + interval, SimEvent::Sample);
                }
            }
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<(), Violation> {
        self.request_jobs()?;
        loop {
            if self.scenario.checks_invariants {
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
                // The manager is killed between writing the ledger and performing the action.
                if self.now.at < self.scenario.faults_end && chance(&mut self.random, self.scenario.kill_before_actions)
                {
                    return self.restart();
                }
                self.perform(action)?;
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
        while !self.retry_is_planned
            && let Some(job) = self.queue.front().copied()
        {
            if self.is_draining && self.now.at < self.scenario.faults_end {
                break;
            }
            let key = self.key(job);
            if let Some(reservation) = self.reservations.pop() {
                self.engine.rename(&reservation, key.clone());
            } else if self.engine.reserve(self.now, key.clone()).is_err() {
                self.empty_since = None;
                self.plan_request_retry();
                return Ok(());
            }
            self.report.requested_ahead += usize::from(self.engine.is_ahead());
            self.queue.pop_front();
            self.report_answered_request();
            self.sim_jobs[job].state = SimJobState::Waiting;
            self.keys.insert(key.clone(), job);
            self.request_slots(job, key)?;
            self.plan_cancel(job);
        }
        self.reserve_for_requests();
        Ok(())
    }

    fn key(&self, job: usize) -> TaskKey {
        TaskKey::new(format!("{job}.{}", self.sim_jobs[job].attempt))
    }

    fn perform(&mut self, action: Action) -> Result<(), Violation> {
        let (at, manager_run) = (self.now.at, self.manager_run);
        let group_index = action.group().map_or(0, |group| group.0);
        if action.group().is_some_and(|group| self.is_down(group))
            && let Some(event) = Self::failed_call(&action)
        {
            self.plan(at + Self::failed_call_delay(), SimEvent::Delivered { manager_run, event });
            return Ok(());
        }
        let (delay, event) = match action {
            Action::Assign(lease) => {
                return match self.canceled_after_assignment(&lease) {
                    Some(job) => self.cancel_request(job, Event::AssignmentAbandoned { key: lease.key }),
                    None => self.start_job(lease),
                };
            }
            Action::Lost { key, .. } => return self.lose_job(&key),
            Action::ForgetInstance { .. } | Action::OperatorReply { .. } | Action::EnvironmentSaved { .. } => {
                return Ok(());
            }
            Action::ResumeFailed { key, .. } => {
                self.requeue_without_environment(&key);
                return Ok(());
            }
            Action::RevokeReservation { key } => {
                self.reservations.retain(|reservation| *reservation != key);
                return Ok(());
            }
            Action::List { group, call } => {
                self.report.lists += 1;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.list(at, (manager_run, call), &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Listed { group, call, result })
            }
            Action::Increase { group, call, count } => {
                self.checker.record_create_call(at)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.increase(at, count, &mut self.random);
                let max = self.config.groups[group.0].max_instances;
                self.checker.check_instance_count(cloud, at, max)?;
                let delay = cloud.delay(at, &mut self.random);
                self.checker.check_cost(&self.clouds, &self.config, at)?;
                (delay, Event::Increased { group, call, result })
            }
            Action::Decrease { group, ids } => {
                self.checker.check_deletion_or_suspension(group, &ids)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.decrease(at, &ids, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Decreased { group, ids, result })
            }
            Action::Suspend { group, ids } => {
                self.checker.check_deletion_or_suspension(group, &ids)?;
                let cloud = &mut self.clouds[group.0];
                let result = cloud.suspend(at, &ids, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Suspended { group, ids, result })
            }
            Action::Resume { group, ids } => {
                let cloud = &mut self.clouds[group.0];
                let result = cloud.resume(at, &ids, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Resumed { group, ids, result })
            }
            Action::Prepare { group, id, .. } => {
                let (duration, result) = self.clouds[group.0].prepare(at, &id, &mut self.random);
                (duration, Event::Prepared { group, id, result })
            }
            Action::Heartbeat { group, id } => {
                let cloud = &self.clouds[group.0];
                let result = cloud.heartbeat(at, &id, &mut self.random);
                (cloud.delay(at, &mut self.random), Event::Health { group, id, result })
            }
        };
        if self.clouds[group_index].duplicates_response(at, &mut self.random) {
            let second_delivery = at + delay + Duration::from_millis(self.random.random_range(0..60_000));
            self.plan(second_delivery, SimEvent::Delivered { manager_run, event: event.clone() });
        }
        self.plan(at + delay, SimEvent::Delivered { manager_run, event });
        Ok(())
    }
}
