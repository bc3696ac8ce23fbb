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

const ANSWER_DELAY: Duration = Duration::from_millis(50);
const PLUGIN_DOWN_ERROR: &str = "the plugin is down";

impl Simulation<'_> {
    pub(super) fn disturb(&mut self, disturbance: Disturbance) -> Result<(), Violation> {
        match disturbance {
            Disturbance::PluginDown { group, duration } => {
                let until = self.now.at + duration;
                self.down_until[group] = self.down_until[group].max(until);
                self.plan(until, SimEvent::PluginUp(group));
                let cause = PLUGIN_DOWN_ERROR.to_owned();
                self.engine.handle(self.now, Event::PluginDown { group: GroupId(group), cause });
            }
            Disturbance::Retire { group, machine } => {
                if let Some(id) = self.machine(group, machine) {
                    let (group, reason) = (GroupId(group), "interruption announced".to_owned());
                    self.engine.handle(self.now, Event::Retire { group, id, reason });
                }
            }
            Disturbance::PriceChanged { group, per_hour } => {
                self.config.groups[group].price_per_hour = per_hour;
                self.checker.record_price_change(self.now.at);
                self.engine.handle(self.now, Event::PriceChanged { group: GroupId(group), per_hour });
            }
            Disturbance::StockChanged { group, available } => {
                self.has_stock[group] = available;
                self.engine.handle(self.now, Event::StockChanged { group: GroupId(group), available });
            }
            Disturbance::Operator { group, machine, action } => {
                let id = machine.and_then(|machine| self.machine(group, machine));
                if machine.is_none() || id.is_some() {
                    self.apply_operator_action(group, id, action);
                }
            }
            Disturbance::Policies(policies) => {
                self.config.policies = policies.clone();
                self.engine.handle(self.now, Event::Policies(policies));
            }
            Disturbance::ClockJump(seconds) => {
                self.clock_offset_s += seconds;
                self.now = self.now_at(self.now.at);
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
            Disturbance::Stop(duration) => {
                self.engine.handle(self.now, Event::Stop);
                self.plan((self.now.at + duration).min(self.scenario.faults_end), SimEvent::Kill);
            }
        }
        Ok(())
    }

    fn apply_operator_action(&mut self, group: usize, id: Option<InstanceId>, action: OperatorAction) {
        let (group, by) = (GroupId(group), "operator".to_owned());
        self.engine.handle(self.now, Event::Operator { request: 0, group, id, action, by });
    }

    /// Returns the ID of an existing machine. `index` is taken modulo the number of existing machines.
    fn machine(&self, group: usize, index: usize) -> Option<InstanceId> {
        let existing: Vec<&InstanceId> = self.clouds[group].live(self.now.at).map(|(id, _)| id).collect();
        existing.get(index % existing.len().max(1)).map(|id| (*id).clone())
    }

    pub(super) fn end_disturbances(&mut self) {
        for group in 0..self.clouds.len() {
            self.has_stock[group] = true;
            self.engine.handle(self.now, Event::StockChanged { group: GroupId(group), available: true });
            // Restore the initial price, because with a higher one the cost could exceed the limit permanently.
            let per_hour = self.scenario.config.groups[group].price_per_hour;
            self.checker.record_price_change(self.now.at);
            self.config.groups[group].price_per_hour = per_hour;
            self.engine.handle(self.now, Event::PriceChanged { group: GroupId(group), per_hour });
            self.apply_operator_action(group, None, OperatorAction::Uncordon);
        }
        for instance in self.engine.status(self.now).instances {
            let group = self.config.groups.iter().position(|group| group.name == instance.group);
            if let Some(group) = group.filter(|_| instance.state == "cordoned") {
                self.apply_operator_action(group, Some(InstanceId::new(instance.id)), OperatorAction::Uncordon);
            }
        }
    }

    pub(super) fn is_down(&self, group: GroupId) -> bool {
        self.down_until[group.0] > self.now.at
    }

    /// Does nothing if the plugin has failed again.
    pub(super) fn report_plugin_up(&mut self, group: usize) {
        if !self.is_down(GroupId(group)) {
            self.engine.handle(self.now, Event::PluginUp { group: GroupId(group), max_size: 0 });
        }
    }

    pub(super) fn report_plugins(&mut self) {
        self.report_suspend_support();
        for group in (0..self.clouds.len()).map(GroupId) {
            // If the plugin is down, the event that reports its restart is planned already.
            let event = match self.is_down(group) {
                true => Event::PluginDown { group, cause: PLUGIN_DOWN_ERROR.to_owned() },
                false => Event::PluginUp { group, max_size: 0 },
            };
            self.plan(self.now.at, SimEvent::Delivered { manager_run: self.manager_run, event });
            if !self.has_stock[group.0] {
                let event = Event::StockChanged { group, available: false };
                self.plan(self.now.at, SimEvent::Delivered { manager_run: self.manager_run, event });
            }
        }
    }

    /// Returns the event that reports the failure of a call to a plugin that is down. `None` means that the action is
    /// performed anyway.
    pub(super) fn failed_call(action: &Action) -> Option<Event> {
        let error = || PLUGIN_DOWN_ERROR.to_owned();
        match action.clone() {
            Action::List { group, call } => Some(Event::Listed { group, call, result: Err(error()) }),
            Action::Increase { group, call, .. } => Some(Event::Increased { group, call, result: Err(error()) }),
            Action::Decrease { group, ids } => Some(Event::Decreased { group, ids, result: Err(error()) }),
            Action::Suspend { group, ids } => Some(Event::Suspended { group, ids, result: Err(error()) }),
            Action::Resume { group, ids } => Some(Event::Resumed { group, ids, result: Err(error()) }),
            Action::Heartbeat { group, id } => Some(Event::HealthUnknown { group, id }),
            _ => None,
        }
    }

    /// Replaces the result of a call by a failure if the plugin of the group is down. Returns other events unchanged.
    pub(super) fn with_failure_if_down(&self, event: Event) -> Event {
        let error = || PLUGIN_DOWN_ERROR.to_owned();
        match event {
            Event::Listed { group, call, .. } if self.is_down(group) => {
                Event::Listed { group, call, result: Err(error()) }
            }
            Event::Increased { group, call, .. } if self.is_down(group) => {
                Event::Increased { group, call, result: Err(error()) }
            }
            Event::Decreased { group, ids, .. } if self.is_down(group) => {
                Event::Decreased { group, ids, result: Err(error()) }
            }
            Event::Suspended { group, ids, .. } if self.is_down(group) => {
                Event::Suspended { group, ids, result: Err(error()) }
            }
            Event::Resumed { group, ids, .. } if self.is_down(group) => {
                Event::Resumed { group, ids, result: Err(error()) }
            }
            Event::Health { group, id, .. } if self.is_down(group) => Event::HealthUnknown { group, id },
            event => event,
        }
    }

    pub(super) fn report_answered_request(&mut self) {
        let is_immediate_job = self.empty_since.take().is_none_or(|since| self.now.at.since(since) < HELD_AFTER);
        self.engine.handle(self.now, Event::JobRequestAnswered { is_immediate_job });
        if self.queue.is_empty() {
            self.empty_since = Some(self.now.at);
            if !self.scenario.holds_requests {
                self.plan(self.now.at + ANSWER_DELAY, SimEvent::EmptyAnswer);
            }
        }
    }

    pub(super) fn report_empty_answer(&mut self) {
        if self.empty_since.is_some() {
            self.engine.handle(self.now, Event::JobRequestAnswered { is_immediate_job: false });
        }
    }

    pub(super) fn reserve_for_requests(&mut self) {
        let wanted =
            if self.is_draining || self.now.at >= self.scenario.faults_end { 0 } else { self.scenario.reservations };
        while self.reservations.len() < wanted && !self.retry_is_planned {
            let key = TaskKey::new(format!("reservation-{}", self.last_number));
            self.last_number += 1;
            if self.engine.reserve(self.now, key.clone()).is_err() {
                self.plan_request_retry();
            } else {
                self.reservations.push(key);
            }
        }
    }

    /// Restarts the manager. Calls in progress take effect, but their results are lost.
    pub(super) fn restart(&mut self) -> Result<(), Violation> {
        self.manager_run += 1;
        self.wake = None;
        self.retry_is_planned = false;
        self.empty_since = None;
        self.is_draining = false;
        self.reservations.clear();
        let rows = self.rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect();
        let (engine, unknown) = Engine::restore(self.config.clone(), rows, self.now);
        if let Some(row) = unknown.first() {
            return Err(Violation::new("R2", format!("{row:?} was not restored")));
        }
        self.engine = engine;
        for job in 0..self.sim_jobs.len() {
            let key = self.key(job);
            match self.sim_jobs[job].state.clone() {
                SimJobState::AtCoordinator | SimJobState::Done => {}
                SimJobState::Waiting if self.waits_for_environment(job) && chance(&mut self.random, 0.5) => {
                    self.request_after_restart(job)?;
                }
                SimJobState::Waiting => match self.engine.claim(&key) {
                    // The ledger contained the assignment, but the job had not received it.
                    Some(lease) => self.start_job(lease)?,
                    None => self.request_slots(job, key)?,
                },
                SimJobState::Running(lease) => match self.engine.claim(&key) {
                    Some(restored) if restored.same_slots(&lease) => {
                        self.plan_connection_break(job, self.sim_jobs[job].attempt, lease.group, &lease.instance);
                    }
                    Some(restored) => {
                        return Err(Violation::new(
                            "R2",
                            format!("the lease of {key} changed from {lease:?} to {restored:?} with a restart"),
                        ));
                    }
                    // The ledger contained the loss, but the job had not been notified.
                    None => {
                        self.keys.remove(&key);
                        self.end_lease(&lease);
                        self.report.rescheduled += 1;
                        self.requeue(job);
                    }
                },
            }
        }
        self.engine.handle(self.now, Event::ClaimsComplete);
        self.report_plugins();
        self.advance()
    }

    pub(super) fn plan_request_retry(&mut self) {
        self.retry_is_planned = true;
        self.plan(self.now.at + super::REQUEST_RETRY_DELAY, SimEvent::RequestJobs);
    }

    pub(super) const fn failed_call_delay() -> Duration {
        Duration::from_millis(10)
    }

    pub(super) fn now_at(&self, at: Time) -> crate::time::Now {
        crate::time::Now::steady(at, self.scenario.origin.saturating_add(self.clock_offset_s))
    }
}
