//! Disturbances of a simulation, and restarts of the manager.

use std::time::Duration;

use super::{SimJobState, Simulation};
use crate::engine::{Engine, Violation};
use crate::event::{Action, Event};
use crate::operator::OperatorAction;
use crate::sim::cloud::chance;
use crate::sim::disturbance::Disturbance;
use crate::sim::event::SimEvent;
use crate::time::{HELD_AFTER, Time};
use crate::types::{GroupId, TaskKey};
use muster_fleeting::model::InstanceId;

/// Time that the coordinator takes to answer a request that it does not hold.
const ANSWER: Duration = Duration::from_millis(50);
/// Error message of a plugin that is down.
const DOWN: &str = "the plugin has ended";

impl Simulation<'_> {
    pub(super) fn turn(&mut self, turn: Disturbance) -> Result<(), Violation> {
        match turn {
            Disturbance::Down { group, lasts } => {
                let until = self.now.at + lasts;
                self.down[group] = self.down[group].max(until);
                self.plan(until, SimEvent::PluginUp(group));
                let cause = DOWN.to_owned();
                self.engine.handle(self.now, Event::PluginDown { group: GroupId(group), cause });
            }
            Disturbance::Retire { group, machine } => {
                if let Some(id) = self.machine(group, machine) {
                    let (group, why) = (GroupId(group), "spoilt".to_owned());
                    self.engine.handle(self.now, Event::Retire { group, id, reason: why });
                }
            }
            Disturbance::PriceChanged { group, per_hour } => {
                self.config.groups[group].price_per_hour = per_hour;
                self.watch.priced(self.now.at);
                self.engine.handle(self.now, Event::PriceChanged { group: GroupId(group), per_hour });
            }
            Disturbance::StockChanged { group, available } => {
                self.stock[group] = available;
                self.engine.handle(self.now, Event::StockChanged { group: GroupId(group), available });
            }
            Disturbance::Operator { group, machine, act } => {
                let id = machine.and_then(|machine| self.machine(group, machine));
                if machine.is_none() || id.is_some() {
                    self.operate(group, id, act);
                }
            }
            Disturbance::Policies(policies) => {
                self.config.policies = policies.clone();
                self.engine.handle(self.now, Event::Policies(policies));
            }
            Disturbance::Clock(seconds) => {
                self.clock += seconds;
                self.now = self.moment(self.now.at);
                self.engine.handle(self.now, Event::Tick);
            }
            Disturbance::Drain => {
                self.is_draining = true;
                // Open requests end without a job.
                for key in std::mem::take(&mut self.reservations) {
                    self.engine.handle(self.now, Event::Unreserve { key });
                }
                self.engine.handle(self.now, Event::Drain);
            }
            Disturbance::Stop(lasts) => {
                self.engine.handle(self.now, Event::Stop);
                self.plan((self.now.at + lasts).min(self.scenario.faults_end), SimEvent::Kill);
            }
        }
        Ok(())
    }

    fn operate(&mut self, group: usize, id: Option<InstanceId>, act: OperatorAction) {
        let (group, by) = (GroupId(group), "somebody".to_owned());
        self.engine.handle(self.now, Event::Operator { request: 0, group, id, action: act, by });
    }

    /// Returns the ID of an existing machine by its index, modulo their number.
    fn machine(&self, group: usize, number: usize) -> Option<InstanceId> {
        let there: Vec<&InstanceId> = self.clouds[group].live(self.now.at).map(|(id, _)| id).collect();
        there.get(number % there.len().max(1)).map(|id| (*id).clone())
    }

    /// Ends all disturbances: stock and prices are as at the start, and nothing is cordoned or drained.
    pub(super) fn heal(&mut self) {
        for group in 0..self.clouds.len() {
            self.stock[group] = true;
            self.engine.handle(self.now, Event::StockChanged { group: GroupId(group), available: true });
            // A higher price could exceed the cost limit forever.
            let per_hour = self.scenario.config.groups[group].price_per_hour;
            self.watch.priced(self.now.at);
            self.config.groups[group].price_per_hour = per_hour;
            self.engine.handle(self.now, Event::PriceChanged { group: GroupId(group), per_hour });
            self.operate(group, None, OperatorAction::Uncordon);
        }
        for instance in self.engine.status(self.now).instances {
            let group = self.config.groups.iter().position(|group| group.name == instance.group);
            if let Some(group) = group.filter(|_| instance.state == "cordoned") {
                self.operate(group, Some(InstanceId::new(instance.id)), OperatorAction::Uncordon);
            }
        }
    }

    pub(super) fn is_down(&self, group: GroupId) -> bool {
        self.down[group.0] > self.now.at
    }

    pub(super) fn plugin_is_up(&mut self, group: usize) {
        if !self.is_down(GroupId(group)) {
            self.engine.handle(self.now, Event::PluginUp { group: GroupId(group), max_size: 0 });
        }
    }

    /// Reports the plugins' states to a new engine.
    pub(super) fn engine_starts(&mut self) {
        self.can_suspend();
        for group in (0..self.clouds.len()).map(GroupId) {
            // The restart of a plugin that is down is planned already.
            let event = match self.is_down(group) {
                true => Event::PluginDown { group, cause: DOWN.to_owned() },
                false => Event::PluginUp { group, max_size: 0 },
            };
            self.plan(self.now.at, SimEvent::Delivered { life: self.life, event });
            if !self.stock[group.0] {
                let event = Event::StockChanged { group, available: false };
                self.plan(self.now.at, SimEvent::Delivered { life: self.life, event });
            }
        }
    }

    /// Returns the result of a call while its plugin is down. `None` means that the call waits for the plugin.
    pub(super) fn unheard(action: &Action) -> Option<Event> {
        let why = || DOWN.to_owned();
        match action.clone() {
            Action::List { group, call } => Some(Event::Listed { group, call, result: Err(why()) }),
            Action::Increase { group, call, .. } => Some(Event::Increased { group, call, result: Err(why()) }),
            Action::Decrease { group, ids } => Some(Event::Decreased { group, ids, result: Err(why()) }),
            Action::Suspend { group, ids } => Some(Event::Suspended { group, ids, result: Err(why()) }),
            Action::Resume { group, ids } => Some(Event::Resumed { group, ids, result: Err(why()) }),
            Action::Heartbeat { group, id } => Some(Event::HealthUnknown { group, id }),
            _ => None,
        }
    }

    /// Replaces a result by an error if the plugin failed in the meantime.
    pub(super) fn cut(&self, event: Event) -> Event {
        let why = || DOWN.to_owned();
        match event {
            Event::Listed { group, call, .. } if self.is_down(group) => {
                Event::Listed { group, call, result: Err(why()) }
            }
            Event::Increased { group, call, .. } if self.is_down(group) => {
                Event::Increased { group, call, result: Err(why()) }
            }
            Event::Decreased { group, ids, .. } if self.is_down(group) => {
                Event::Decreased { group, ids, result: Err(why()) }
            }
            Event::Suspended { group, ids, .. } if self.is_down(group) => {
                Event::Suspended { group, ids, result: Err(why()) }
            }
            Event::Resumed { group, ids, .. } if self.is_down(group) => {
                Event::Resumed { group, ids, result: Err(why()) }
            }
            Event::Health { group, id, .. } if self.is_down(group) => Event::HealthUnknown { group, id },
            event => event,
        }
    }

    /// Reports an answered job request. It was immediate unless the coordinator held the request until a job arrived.
    pub(super) fn requested(&mut self) {
        let at_once = self.empty_since.take().is_none_or(|since| self.now.at.since(since) < HELD_AFTER);
        self.engine.handle(self.now, Event::Answered { at_once });
        if self.queue.is_empty() {
            self.empty_since = Some(self.now.at);
            if !self.scenario.holds_requests {
                self.plan(self.now.at + ANSWER, SimEvent::Empty);
            }
        }
    }

    /// Reports that a job request was answered without a job.
    pub(super) fn finds_no_job(&mut self) {
        if self.empty_since.is_some() {
            self.engine.handle(self.now, Event::Answered { at_once: false });
        }
    }

    /// Reserves slots for the manager's open job requests.
    pub(super) fn promise(&mut self) {
        let wanted =
            if self.is_draining || self.now.at >= self.scenario.faults_end { 0 } else { self.scenario.reservations };
        while self.reservations.len() < wanted && !self.asking {
            let key = TaskKey::new(format!("promise-{}", self.number));
            self.number += 1;
            if self.engine.reserve(self.now, key.clone()).is_err() {
                self.ask_again();
            } else {
                self.reservations.push(key);
            }
        }
    }

    /// Restarts a killed manager from its ledger. Calls in progress take effect, but their results are lost.
    pub(super) fn restart(&mut self) -> Result<(), Violation> {
        self.life += 1;
        self.wake = None;
        self.asking = false;
        self.empty_since = None;
        self.is_draining = false;
        self.reservations.clear();
        let rows = self.rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        let (engine, unknown) = Engine::restore(self.config.clone(), rows, self.now);
        if let Some(row) = unknown.first() {
            return Err(Violation::new("R2", format!("{row:?} is not read again")));
        }
        self.engine = engine;
        for job in 0..self.running.len() {
            let key = self.key(job);
            match self.running[job].place.clone() {
                SimJobState::Server | SimJobState::Done => {}
                SimJobState::Waiting if self.waits_for_environment(job) && chance(&mut self.random, 0.5) => {
                    self.asks_again(job)?;
                }
                SimJobState::Waiting => match self.engine.claim(&key) {
                    // The ledger contained the assignment, but the job had not received it.
                    Some(lease) => self.starts(lease)?,
                    None => self.ask_for(job, key)?,
                },
                SimJobState::On(lease) => match self.engine.claim(&key) {
                    Some(again) if again.same_slots(&lease) => {
                        self.plan_break(job, self.running[job].attempt, lease.group, &lease.instance);
                    }
                    Some(again) => {
                        return Err(Violation::new("R2", format!("{key} was on {lease:?} and is on {again:?}")));
                    }
                    // The ledger contained the loss, but the job had not been notified.
                    None => {
                        self.keys.remove(&key);
                        self.leaves(&lease);
                        self.report.moved += 1;
                        self.again(job);
                    }
                },
            }
        }
        self.engine.handle(self.now, Event::ClaimsComplete);
        self.engine_starts();
        self.advance()
    }

    pub(super) fn ask_again(&mut self) {
        self.asking = true;
        self.plan(self.now.at + super::REQUEST_RETRY_DELAY, SimEvent::RequestJobs);
    }

    /// Returns the time after which a call fails while its plugin is down.
    pub(super) const fn refusal() -> Duration {
        Duration::from_millis(10)
    }

    /// Returns the monotonic and the wall-clock time at a moment.
    pub(super) fn moment(&self, at: Time) -> crate::time::Now {
        crate::time::Now::steady(at, self.scenario.origin.saturating_add(self.clock))
    }
}
