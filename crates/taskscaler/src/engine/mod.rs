//! The scaling engine: events and time in, actions out. No I/O, no clock, no randomness.
//!
//! ```text
//! reserve, acquire, Event --> books (instances, slots, requests, leases) --> settle: place, scale, remove, list --> Action
//!                                                                                   \--> Decision (why)  \--> Change (store)
//! ```
//!
//! After each event everything that it makes possible is done at once: a slot that is free is given to who waits longest, what
//! is missing is asked for, what is too much is removed. [`Engine::next_wake`] says when time alone will change something;
//! a driver that calls [`Engine::handle`] with [`Event::Tick`] then needs no other timer.
//!
//! Before it performs [`Engine::actions`], a driver stores [`Engine::changes`]: what is asked for, leased or removed is on
//! disk before anyone is told (life-of-a-job R2).
//!
//! How often instances are listed is decided here too: rarely while nothing is expected, at
//! [`Config::update_interval_when_expecting`] while something is, and more often while a job waits for an instance that,
//! by what was learned of its group, is about to run: then the delay stays within a fiftieth of the boot time, as long as
//! listing takes less than a tenth of the time.

mod ahead;
mod assign;
mod deletion;
mod group;
mod instance;
mod invariants;
mod lease;
mod listing;
mod machine;
mod operator;
mod plugin_events;
mod pool;
mod provider_notices;
mod queue;
mod reconcile;
mod restore;
mod scale;
mod status;
mod suspend;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::config::Config;
use crate::decision::{Decision, DecisionKind, ScaleUpBlock};
use crate::event::{Action, Event};
use crate::forecast::Forecast;
use crate::ledger::{Change, RowKey};
use crate::policy::IdleTarget;
use crate::resources::UsageHistory;
use crate::time::{Now, Time};
use crate::types::{GroupId, JobKind, TaskKey};
use ahead::RequestHistory;
use group::GroupState;
use pool::{Index, Pool};
use queue::Queue;

pub use invariants::Violation;
pub use lease::{EnqueueError, NoCapacity};
pub use status::{
    GroupStatus, InstanceStatus, ScalerStatus, SlotCounts, SlotStatus, Totals, WaitReason, WaitingStatus,
};

/// See the module.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    groups: Vec<GroupState>,
    /// Groups in the order in which they are asked.
    order: Vec<GroupId>,
    pool: Pool,
    queue: Queue,
    leases: HashMap<TaskKey, LeaseLocation>,
    reservations: HashSet<TaskKey>,
    answers: RequestHistory,
    /// When a reservation was last refused: a job could be had as soon as there is a slot for it.
    last_refusal: Option<Time>,
    /// Leases from before a restart that nobody has claimed yet.
    unclaimed: BTreeSet<TaskKey>,
    /// Jobs that wait for an environment that is suspended, and its instance.
    resume_waiters: HashMap<TaskKey, Index>,
    /// For whom an instance is kept, and which.
    held_for_request: Option<(TaskKey, Index)>,
    /// What earlier jobs used.
    usages: UsageHistory,
    idle_target: IdleTarget,
    policy: Option<usize>,
    /// The minute for which [`Self::wanted`] was looked up.
    minute: Option<i64>,
    forecast: Option<Forecast>,
    /// Nothing is kept idle.
    draining: bool,
    stopping: bool,
    /// At the end, also what an operator keeps goes.
    delete_cordoned: bool,
    next_number: u64,
    /// Why instances that are missing are not asked for, as it was last told.
    blocked_groups: Vec<(GroupId, ScaleUpBlock)>,
    /// The formula's last answer.
    desired_change: i64,
    /// Instances to be removed with the next call.
    to_delete: Vec<Index>,
    actions: Vec<Action>,
    decisions: Vec<Decision>,
    dirty: BTreeSet<RowKey>,
}

/// Where a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LeaseLocation {
    index: Index,
    /// The lowest of its slots.
    slot: usize,
    slots: u32,
    since: Time,
    /// The instance's crowd when it began.
    occupancy_ms: u64,
    job_kind: Option<JobKind>,
}

impl Engine {
    /// An engine without instances. Its groups are down until [`Event::GroupUp`].
    #[must_use]
    pub fn new(config: Config, now: Now) -> Self {
        let groups: Vec<GroupState> =
            config.groups.iter().map(|group| GroupState::new(group.clone(), now.at)).collect();
        let (order, ranks) = provider_notices::order(config.group_selection, &groups);
        let pool = Pool::new(config.capacity.get(), config.max_uses.map(std::num::NonZeroU32::get), ranks);
        let forecast = config.forecast.clone().map(Forecast::new);
        Self {
            config,
            groups,
            order,
            pool,
            queue: Queue::default(),
            leases: HashMap::new(),
            reservations: HashSet::new(),
            answers: RequestHistory::default(),
            last_refusal: None,
            unclaimed: BTreeSet::new(),
            resume_waiters: HashMap::new(),
            held_for_request: None,
            usages: UsageHistory::default(),
            idle_target: IdleTarget::default(),
            policy: None,
            minute: None,
            forecast,
            draining: false,
            stopping: false,
            delete_cordoned: false,
            next_number: 1,
            blocked_groups: Vec::new(),
            desired_change: 0,
            to_delete: Vec::new(),
            actions: Vec::new(),
            decisions: Vec::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// What happened, and everything that follows from it.
    pub fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Tick => {}
            Event::PluginUp { group, max_size } => self.plugin_up(now, group, max_size),
            Event::PluginDown { group, cause } => self.plugin_down(group, cause),
            Event::Listed { group, call, result } => self.listed(now, group, call, result),
            Event::Increased { group, call, result } => self.increased(now, group, call, result),
            Event::Decreased { group, ids, result } => self.decreased(now, group, &ids, result),
            Event::Prepared { group, id, result } => self.prepared(now, group, &id, result),
            Event::Health { group, id, result } => self.health(now, group, &id, result),
            Event::HealthUnknown { group, id } => self.health_unknown(now, group, &id),
            Event::ConnectionLost { key } => self.connection_lost(now, &key),
            Event::Unreserve { key } => {
                self.reservations.remove(&key);
            }
            Event::Answered { at_once } => self.request_answered(now, at_once),
            Event::Cancel { key } => {
                self.queue.remove(&key);
                self.cancel_resume(now, &key);
            }
            Event::JobUsage { key, usage: used } => self.record_usage(now, key, used),
            Event::Release { key } => self.release(now, &key),
            Event::GrantAbandoned { key } => self.grant_abandoned(now, &key),
            Event::ClaimsComplete => self.claims_complete(now),
            Event::CanSuspend { group, can } => {
                if let Some(group) = self.group_mut(group) {
                    group.can_suspend = Some(can);
                }
            }
            Event::Suspended { group, ids, result } | Event::Resumed { group, ids, result } => {
                self.suspend_answered(now, group, &ids, result);
            }
            Event::Policies(policies) => {
                self.config.policies = policies;
                self.minute = None;
            }
            Event::Operator { request: question, group, id, action: act, by } => {
                self.apply_operator_action(now, question, (group, id), act, by)
            }
            Event::Retire { group, id, reason: why } => self.retire_instance(now, group, &id, why),
            Event::PriceChanged { group, per_hour } => self.set_price(group, per_hour),
            Event::StockChanged { group, available } => self.set_stock(group, available),
            Event::Drain => {
                self.draining = true;
                self.minute = None;
            }
            Event::DeleteAllOnStop => {
                self.config.delete_on_shutdown = true;
                self.delete_cordoned = true;
            }
            Event::Stop => self.stop(now),
        }
        self.advance(now);
    }

    /// What is to be done, since the last call of this.
    #[must_use]
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// What was decided, since the last call of this.
    #[must_use]
    pub fn decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// What is to be stored before [`Self::actions`] are performed, since the last call of this.
    #[must_use]
    pub fn changes(&mut self) -> Vec<Change> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().map(|key| Change { row: self.row(&key), key }).collect()
    }

    /// The configuration in effect.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Everything that is possible now.
    fn advance(&mut self, now: Now) {
        self.look_up_policy(now);
        self.run_due_timers(now);
        self.assign_slots(now);
        self.scale(now);
        self.flush_deletions(now);
        self.list(now);
    }

    fn look_up_policy(&mut self, now: Now) {
        let minute = now.unix.div_euclid(60);
        if self.minute == Some(minute) {
            return;
        }
        let first = self.minute.is_none();
        self.minute = Some(minute);
        let (policy, wanted) = match self.config.policies.active_at(now.unix) {
            (_, IdleTarget { placement, .. }) if self.draining => {
                (None, IdleTarget { placement, idle_time: std::time::Duration::ZERO, ..IdleTarget::default() })
            }
            wanted => wanted,
        };
        self.pool.set_placement(wanted.placement);
        if first || policy != self.policy {
            self.decide(now, DecisionKind::Policy { index: policy, idle_count: wanted.idle_count });
        }
        (self.policy, self.idle_target) = (policy, wanted);
        self.record_load(now);
    }

    /// For the forecast, every minute.
    fn record_load(&mut self, now: Now) {
        let in_use = self.pool.sums().held + self.queue.slots(self.config.slots_per_new_instance());
        let (boot, inputs) = (self.boot_time(), self.inputs(now));
        // Without it, what is idle for the policy's time would have gone.
        let groups = (0..self.groups.len()).map(GroupId);
        let lasting = groups.flat_map(|group| self.pool.idle(group, now.at, self.idle_target.idle_time, usize::MAX));
        let kept = lasting.map(|(_, index)| self.pool.offered_slots(index)).sum::<u64>().min(inputs.retained_idle);
        let Some(forecast) = &mut self.forecast else { return };
        let changed = forecast.record(now.unix, in_use);
        // What it keeps idle is what is idle because of it, also what boots: it is paid for.
        let slots = inputs.instances.saturating_mul(inputs.capacity);
        let unused = slots.saturating_sub(inputs.acquired + inputs.unavailable + inputs.waiting);
        let wanted = forecast.idle_target(now.unix, in_use, boot);
        let its = forecast.not_yet_idle_for(now.unix, wanted, self.idle_target.idle_time).max(kept).min(unused);
        let days = forecast.record_idle(now.unix, its.saturating_sub(u64::from(self.idle_target.idle_count)));
        self.dirty.extend(changed.into_iter().map(|bucket| RowKey::SlotDemand { bucket }));
        self.dirty.extend(days.into_iter().map(|day| RowKey::ForecastIdle { day }));
    }

    fn decide(&mut self, now: Now, what: DecisionKind) {
        self.decisions.push(Decision { unix: now.unix, kind: what });
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    fn group(&self, group: GroupId) -> Option<&GroupState> {
        self.groups.get(group.0)
    }

    fn group_mut(&mut self, group: GroupId) -> Option<&mut GroupState> {
        self.groups.get_mut(group.0)
    }

    /// When time alone will change something; none: only an event will.
    #[must_use]
    pub fn next_wake(&self, now: Now) -> Option<Time> {
        let due = self.pool.first_due().map(|(due, _)| due);
        let minute = (self.config.policies.is_time_dependent() || self.forecast.is_some()).then(|| {
            let left = 60 - now.unix.rem_euclid(60);
            now.at + std::time::Duration::from_secs(u64::try_from(left).unwrap_or(60))
        });
        let groups = (0..self.groups.len()).flat_map(|group| self.group_wakes(now, GroupId(group)));
        let idle = self.idle_wake(now);
        let overtaken = self.starvation_wake(now);
        let held = self.held_wake(now);
        [due, minute, idle, overtaken, held].into_iter().flatten().chain(groups).min()
    }
}
