//! The scaling engine: events and time in, actions out. No I/O, no clock, no randomness.
//!
//! ```text
//!             events, requests                               actions, decisions, changed rows
//!                    |                                                      ^
//!                    v                                                      |
//!  Reservations, Queue, StarvationHold --> Leases, Suspensions --> Inventory: Groups, Pool, Outbox
//!                    \                                                ^
//!                     \--> IdlePlan, UsageHistory --> scaling --------/
//! ```
//!
//! After each event, [`Engine`] assigns free slots to the oldest requests, requests additional instances, and deletes
//! surplus ones. At the time that [`Engine::next_wake`] returns, the driver must call [`Engine::handle`] with
//! [`Event::Tick`].
//!
//! A driver stores [`Engine::changes`] before it performs the [`Engine::actions`] that depend on them. The ledger thus
//! contains each request, assignment and deletion before it takes effect.

mod creation_control;
mod deletion;
mod error;
mod group;
mod groups;
mod hold;
mod idle_plan;
mod instance;
mod invariants;
mod inventory;
mod jobs;
mod leases;
mod lifecycle;
mod list_schedule;
mod metric_states;
mod outbox;
mod pool;
mod queue;
mod reservations;
mod restore;
mod scale_up;
mod scaling;
mod status;
mod suspend;
#[cfg(test)]
mod tests;
mod unmanaged;

use std::time::Duration;

use crate::config::{Config, UnmanagedPolicy};
use crate::decision::{Decision, DecisionKind, ScaleUpBlock};
use crate::event::{Action, Event};
use crate::formula;
use crate::ledger::Change;
use crate::resources::UsageHistory;
use crate::time::{Now, Time};
use crate::types::{GroupId, TaskKey};
use deletion::Deletions;
use group::Plugin;
use hold::StarvationHold;
use idle_plan::IdlePlan;
use inventory::Inventory;
use leases::Leases;
use queue::Queue;
use reservations::Reservations;
use status::StatusView;
use suspend::Suspensions;

pub use error::{EnqueueError, NoCapacity};
pub use invariants::Violation;
pub use status::{
    GroupStatus, InstanceStatus, ScalerStatus, SlotCounts, SlotStatus, Totals, WaitReason, WaitingStatus,
};

/// The scaling engine.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    inventory: Inventory,
    leases: Leases,
    queue: Queue,
    reservations: Reservations,
    hold: StarvationHold,
    suspensions: Suspensions,
    deletions: Deletions,
    plan: IdlePlan,
    /// Resource usage of earlier jobs.
    usages: UsageHistory,
    is_stopping: bool,
    /// Whether stopping also deletes cordoned instances.
    deletes_cordoned: bool,
    /// Groups that cannot create needed instances, as last recorded in the history.
    blocked_groups: Vec<(GroupId, ScaleUpBlock)>,
    /// Instances to create (positive) or to delete (negative), as last computed.
    desired_change: i64,
}

impl Engine {
    /// Creates an engine without instances. Its groups are down until [`Event::PluginUp`].
    #[must_use]
    pub fn new(config: Config, now: Now) -> Self {
        Self {
            inventory: Inventory::new(&config, now),
            leases: Leases::default(),
            queue: Queue::default(),
            reservations: Reservations::default(),
            hold: StarvationHold::default(),
            suspensions: Suspensions::new(config.suspended_ttl),
            deletions: Deletions::default(),
            plan: IdlePlan::new(config.forecast.clone()),
            usages: UsageHistory::default(),
            is_stopping: false,
            deletes_cordoned: false,
            blocked_groups: Vec::new(),
            desired_change: 0,
            config,
        }
    }

    /// Handles an event, and performs all steps that the event makes possible.
    pub fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Tick => {}
            Event::PluginUp { group, max_size } => self.inventory.handle_plugin_up(now, &self.config, group, max_size),
            Event::PluginDown { group, cause } => {
                if let Some(group) = self.inventory.groups.get_mut(group) {
                    group.plugin = Plugin::Down { cause };
                }
            }
            Event::Listed { group, call, result } => self.handle_list(now, group, call, result),
            Event::Increased { group, call, result } => {
                self.inventory.handle_increase_answer(now, &self.config, group, call, result);
            }
            Event::Decreased { group, ids, result } => {
                let retry = self.config.deletion_retry_interval;
                deletion::handle_answer(&mut self.inventory, now, group, &ids, result, retry);
            }
            Event::Prepared { group, id, result } => self.handle_prepared(now, group, &id, result),
            Event::Health { group, id, result } => self.handle_health(now, group, &id, result),
            Event::HealthUnknown { group, id } => self.inventory.health_unknown(now, group, &id),
            Event::ConnectionLost { key } => {
                if let Some(index) = self.leases.instance(&key) {
                    self.inventory.connection_lost(now, index);
                }
            }
            Event::Unreserve { key } => self.reservations.remove(&key),
            Event::JobRequestAnswered { is_immediate_job } => self.reservations.record_answer(now, is_immediate_job),
            Event::Cancel { key } => {
                self.queue.remove(&key);
                self.cancel_resume(now, &key);
            }
            Event::JobUsage { key, usage } => self.record_usage(now, key, usage),
            Event::Release { key } => self.release(now, &key),
            Event::AssignmentAbandoned { key } => self.assignment_abandoned(now, &key),
            Event::ClaimsComplete => self.claims_complete(now),
            Event::CanSuspend { group, can } => {
                if let Some(group) = self.inventory.groups.get_mut(group) {
                    group.can_suspend = Some(can);
                }
            }
            Event::Suspended { group, ids, result } | Event::Resumed { group, ids, result } => {
                self.handle_suspend_answer(now, group, &ids, result);
            }
            Event::Policies(policies) => {
                self.config.policies = policies;
                self.plan.require_lookup();
            }
            Event::Operator { request, group, id, action, by } => {
                self.apply_operator_action(now, request, (group, id), action, by);
            }
            Event::Retire { group, id, reason } => self.retire_instance(now, group, &id, reason),
            Event::PriceChanged { group, per_hour } => {
                if self.inventory.groups.set_price(group, per_hour) {
                    self.inventory.pool.set_ranks(&self.inventory.groups.ranks());
                }
            }
            Event::StockChanged { group, available } => {
                if let Some(group) = self.inventory.groups.get_mut(group) {
                    group.is_out_of_stock = !available;
                }
            }
            Event::Drain => self.plan.drain(),
            Event::DeleteAllOnStop => {
                self.config.delete_on_shutdown = true;
                // The group may have another scaler by now, whose new instances are unknown to this one.
                self.config.unmanaged = UnmanagedPolicy::Ignore;
                self.deletes_cordoned = true;
            }
            Event::Stop => self.stop(now),
        }
        self.advance(now);
    }

    /// Takes the actions to perform.
    #[must_use]
    pub fn actions(&mut self) -> Vec<Action> {
        self.inventory.outbox.take_actions()
    }

    /// Takes the decisions since the last call.
    #[must_use]
    pub fn decisions(&mut self) -> Vec<Decision> {
        self.inventory.outbox.take_decisions()
    }

    /// Takes the changed ledger rows.
    ///
    /// They must be stored before the [`Self::actions`] that depend on them are performed.
    #[must_use]
    pub fn changes(&mut self) -> Vec<Change> {
        let dirty = self.inventory.outbox.take_dirty();
        dirty.into_iter().map(|key| Change { row: self.row(&key), key }).collect()
    }

    /// Returns the configuration in effect.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn advance(&mut self, now: Now) {
        self.look_up_policy(now);
        self.run_due_timers(now);
        self.assign_slots(now);
        self.scale(now);
        // Deletions that were just decided are due now.
        self.run_due_timers(now);
        self.deletions.call(&mut self.inventory, now);
        self.start_lists(now);
    }

    fn look_up_policy(&mut self, now: Now) {
        let Some(has_changed) = self.plan.look_up(now, &self.config.policies) else { return };
        let (index, idle_count) = (self.plan.policy(), self.plan.target().idle_count);
        self.inventory.pool.set_placement(self.plan.target().placement);
        if has_changed {
            self.inventory.record_decision(now, DecisionKind::Policy { index, idle_count });
        }
        self.record_load(now);
    }

    /// Returns the next time at which something changes without an event. `None` means never.
    #[must_use]
    pub fn next_wake(&self, now: Now) -> Option<Time> {
        let due = self.inventory.pool.first_due().map(|(due, _)| due);
        let minute = (self.config.policies.is_time_dependent() || self.plan.has_forecast()).then(|| {
            let remaining_s = 60 - now.unix.rem_euclid(60);
            now.at + Duration::from_secs(u64::try_from(remaining_s).unwrap_or(60))
        });
        let groups = self.inventory.groups.ids().flat_map(|group| self.group_wakes(now, group));
        let idle = self.idle_wake(now);
        let hold = self.hold.next_wake(now, &self.queue);
        let unanswered_requests = self.reservations.next_wake(now, &self.queue);
        [due, minute, idle, hold, unanswered_requests].into_iter().flatten().chain(groups).min()
    }

    fn group_wakes(&self, now: Now, id: GroupId) -> Vec<Time> {
        let Some(group) = self.inventory.groups.get(id) else { return Vec::new() };
        let expiry = group.requests.next_expiry().filter(|expiry| *expiry > now.at);
        let mut wakes: Vec<Time> = self.next_list(id).into_iter().chain(expiry).collect();
        for (_, block) in self.blocked_groups.iter().filter(|(blocked, _)| *blocked == id) {
            wakes.extend(group.creation.block_ends(block, now.at));
        }
        wakes
    }

    /// Returns the number of slots by state, in constant time.
    #[must_use]
    pub fn slot_counts(&self) -> SlotCounts {
        let totals = self.inventory.pool.totals();
        SlotCounts {
            idle: totals.free,
            pending: self.queue.len() as u64,
            acquired: totals.assigned,
            reserved: self.reservations.len(),
            unavailable: totals.unavailable,
        }
    }

    /// Returns the totals for metrics.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals::new(&self.inventory, self.desired_change)
    }

    /// Returns the full status. Takes time in proportion to the number of instances.
    #[must_use]
    pub fn status(&self, now: Now) -> ScalerStatus {
        let (inputs, view) = (self.inputs(now), self.view(now));
        ScalerStatus {
            slots: self.slot_counts(),
            desired_change: formula::required(&inputs),
            idle_target: formula::idle_target(&inputs),
            policy: self.plan.policy().map(|index| index + 1),
            cost_per_hour: self.inventory.cost_per_hour(),
            scale_up_blocked: view.block_messages(),
            waiting: view.waiting(),
            booting: self.inventory.booting(),
            next_ready_in_ms: view.next_ready_in_ms(),
            groups: view.groups(),
            instances: view.instances(),
        }
    }

    /// Returns why a request waits. `None` means that the key is not queued.
    #[must_use]
    pub fn explain_waiting(&self, now: Now, key: &TaskKey) -> Option<WaitReason> {
        self.view(now).wait_reason(key)
    }

    fn view(&self, now: Now) -> StatusView<'_> {
        StatusView { now, inventory: &self.inventory, queue: &self.queue, blocked_groups: &self.blocked_groups }
    }

    /// Checks the invariants. Takes time in proportion to the number of instances.
    ///
    /// # Errors
    /// The first [`Violation`].
    pub fn check(&self) -> Result<(), Violation> {
        let pool = &self.inventory.pool;
        invariants::check_instances(pool)?;
        self.leases.check(pool)?;
        if let Some(key) = self.leases.keys().find(|key| self.queue.get(key).is_some()) {
            return Err(Violation::new("R2", format!("{key} is queued for slots although it has a lease")));
        }
        if !self.is_stopping {
            invariants::check_queue(pool, &self.queue)?;
            self.hold.check(pool, &self.queue)?;
        }
        Ok(())
    }
}
