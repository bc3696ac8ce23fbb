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
mod calls;
mod group;
mod instance;
mod lease;
mod limits;
mod machine;
mod offers;
mod operator;
mod place;
mod pool;
mod queue;
mod reconcile;
mod remove;
mod restore;
mod scale;
mod sleep;
mod status;
#[cfg(test)]
mod tests;
mod update;

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::books::{Change, RowKey};
use crate::config::Config;
use crate::decision::{Decision, Hold, What};
use crate::event::{Action, Event};
use crate::forecast::Forecast;
use crate::need::Usages;
use crate::policy::Wanted;
use crate::time::{Now, Time};
use crate::words::{GroupId, Key, Work};
use ahead::Answers;
use group::Group;
use pool::{Index, Pool};
use queue::Queue;

pub use lease::{AcquireError, NoCapacity};
pub use limits::Violation;
pub use status::{Counts, GroupStatus, InstanceStatus, SlotStatus, Status, Tasks, Wait, WaitingStatus};

/// See the module.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    groups: Vec<Group>,
    /// Groups in the order in which they are asked.
    order: Vec<GroupId>,
    pool: Pool,
    queue: Queue,
    leases: HashMap<Key, Place>,
    reservations: HashSet<Key>,
    answers: Answers,
    /// When a reservation was last refused: a job could be had as soon as there is a slot for it.
    refused: Option<Time>,
    /// Leases from before a restart that nobody has claimed yet.
    unclaimed: BTreeSet<Key>,
    /// Jobs that wait for an environment that is suspended, and its instance.
    wakers: HashMap<Key, Index>,
    /// For whom an instance is kept, and which.
    kept: Option<(Key, Index)>,
    /// What earlier jobs used.
    usages: Usages,
    wanted: Wanted,
    policy: Option<usize>,
    /// The minute for which [`Self::wanted`] was looked up.
    minute: Option<i64>,
    forecast: Option<Forecast>,
    /// Nothing is kept idle.
    draining: bool,
    stopping: bool,
    /// At the end, also what an operator keeps goes.
    nothing_stays: bool,
    next_number: u64,
    /// Why instances that are missing are not asked for, as it was last told.
    held: Vec<(GroupId, Hold)>,
    /// The formula's last answer.
    missing: i64,
    /// Instances to be removed with the next call.
    to_remove: Vec<Index>,
    actions: Vec<Action>,
    decisions: Vec<Decision>,
    dirty: BTreeSet<RowKey>,
}

/// Where a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    index: Index,
    /// The lowest of its slots.
    slot: usize,
    slots: u32,
    since: Time,
    /// The instance's crowd when it began.
    crowd: u64,
    work: Option<Work>,
}

impl Engine {
    /// An engine without instances. Its groups are down until [`Event::GroupUp`].
    #[must_use]
    pub fn new(config: Config, now: Now) -> Self {
        let groups: Vec<Group> = config.groups.iter().map(|group| Group::new(group.clone(), now.at)).collect();
        let (order, ranks) = offers::order(config.order, &groups);
        let pool = Pool::new(config.capacity.get(), config.uses_max.map(std::num::NonZeroU32::get), ranks);
        let forecast = config.forecast.clone().map(Forecast::new);
        Self {
            config,
            groups,
            order,
            pool,
            queue: Queue::default(),
            leases: HashMap::new(),
            reservations: HashSet::new(),
            answers: Answers::default(),
            refused: None,
            unclaimed: BTreeSet::new(),
            wakers: HashMap::new(),
            kept: None,
            usages: Usages::default(),
            wanted: Wanted::default(),
            policy: None,
            minute: None,
            forecast,
            draining: false,
            stopping: false,
            nothing_stays: false,
            next_number: 1,
            held: Vec::new(),
            missing: 0,
            to_remove: Vec::new(),
            actions: Vec::new(),
            decisions: Vec::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// What happened, and everything that follows from it.
    pub fn handle(&mut self, now: Now, event: Event) {
        match event {
            Event::Tick => {}
            Event::GroupUp { group, max_size } => self.group_up(now, group, max_size),
            Event::GroupDown { group, cause } => self.group_down(group, cause),
            Event::Updated { group, call, result } => self.updated(now, group, call, result),
            Event::Increased { group, call, result } => self.increased(now, group, call, result),
            Event::Decreased { group, ids, result } => self.decreased(now, group, &ids, result),
            Event::Prepared { group, id, result } => self.prepared(now, group, &id, result),
            Event::Health { group, id, result } => self.health(now, group, &id, result),
            Event::HealthUnknown { group, id } => self.health_unknown(now, group, &id),
            Event::Suspect { key } => self.suspect(now, &key),
            Event::Unreserve { key } => {
                self.reservations.remove(&key);
            }
            Event::Answered { at_once } => self.request_answered(now, at_once),
            Event::Cancel { key } => {
                self.queue.remove(&key);
                self.stop_waking(now, &key);
            }
            Event::Used { key, used } => self.used(now, key, used),
            Event::Release { key } => self.release(now, &key),
            Event::Unused { key } => self.unused(now, &key),
            Event::Settled => self.settled(now),
            Event::CanSuspend { group, can } => {
                if let Some(group) = self.group_mut(group) {
                    group.can_suspend = Some(can);
                }
            }
            Event::Suspended { group, ids, result } | Event::Resumed { group, ids, result } => {
                self.slept(now, group, &ids, result);
            }
            Event::Policies(policies) => {
                self.config.policies = policies;
                self.minute = None;
            }
            Event::Operator { question, group, id, act, by } => self.operate(now, question, (group, id), act, by),
            Event::Disowned { group, id, why } => self.disowned(now, group, &id, why),
            Event::Priced { group, per_hour } => self.priced(group, per_hour),
            Event::Stock { group, available } => self.stock(group, available),
            Event::Drain => {
                self.draining = true;
                self.minute = None;
            }
            Event::RemoveAtTheEnd => {
                self.config.delete_on_shutdown = true;
                self.nothing_stays = true;
            }
            Event::Stop => self.stop(now),
        }
        self.settle(now);
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
    fn settle(&mut self, now: Now) {
        self.look_up_policy(now);
        self.do_what_is_due(now);
        self.place(now);
        self.scale(now);
        self.remove_what_goes(now);
        self.list(now);
    }

    fn look_up_policy(&mut self, now: Now) {
        let minute = now.unix.div_euclid(60);
        if self.minute == Some(minute) {
            return;
        }
        let first = self.minute.is_none();
        self.minute = Some(minute);
        let (policy, wanted) = match self.config.policies.at(now.unix) {
            (_, Wanted { placement, .. }) if self.draining => {
                (None, Wanted { placement, idle_time: std::time::Duration::ZERO, ..Wanted::default() })
            }
            wanted => wanted,
        };
        self.pool.place_by(wanted.placement);
        if first || policy != self.policy {
            self.decide(now, What::Policy { index: policy, idle_count: wanted.idle_count });
        }
        (self.policy, self.wanted) = (policy, wanted);
        self.record_load(now);
    }

    /// For the forecast, every minute.
    fn record_load(&mut self, now: Now) {
        let in_use = self.pool.sums().held + self.queue.slots(self.config.usable());
        let (boot, inputs) = (self.boot_time(), self.inputs(now));
        // Without it, what is idle for the policy's time would have gone.
        let groups = (0..self.groups.len()).map(GroupId);
        let lasting = groups.flat_map(|group| self.pool.idle(group, now.at, self.wanted.idle_time, usize::MAX));
        let kept = lasting.map(|(_, index)| self.pool.gives(index)).sum::<u64>().min(inputs.kept);
        let Some(forecast) = &mut self.forecast else { return };
        let changed = forecast.record(now.unix, in_use);
        // What it keeps idle is what is idle because of it, also what boots: it is paid for.
        let slots = inputs.instances.saturating_mul(inputs.capacity);
        let unused = slots.saturating_sub(inputs.acquired + inputs.unavailable + inputs.waiting);
        let wanted = forecast.idle(now.unix, in_use, boot);
        let its = forecast.lingering(now.unix, wanted, self.wanted.idle_time).max(kept).min(unused);
        let days = forecast.spend(now.unix, its.saturating_sub(u64::from(self.wanted.idle_count)));
        self.dirty.extend(changed.into_iter().map(|bucket| RowKey::Load { bucket }));
        self.dirty.extend(days.into_iter().map(|day| RowKey::Spent { day }));
    }

    fn decide(&mut self, now: Now, what: What) {
        self.decisions.push(Decision { unix: now.unix, what });
    }

    fn number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    fn group(&self, group: GroupId) -> Option<&Group> {
        self.groups.get(group.0)
    }

    fn group_mut(&mut self, group: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(group.0)
    }

    /// When time alone will change something; none: only an event will.
    #[must_use]
    pub fn next_wake(&self, now: Now) -> Option<Time> {
        let due = self.pool.first_due().map(|(due, _)| due);
        let minute = (self.config.policies.vary() || self.forecast.is_some()).then(|| {
            let left = 60 - now.unix.rem_euclid(60);
            now.at + std::time::Duration::from_secs(u64::try_from(left).unwrap_or(60))
        });
        let groups = (0..self.groups.len()).flat_map(|group| self.group_wakes(now, GroupId(group)));
        let idle = self.idle_wake(now);
        let overtaken = self.overtaken_wake(now);
        let held = self.held_wake(now);
        [due, minute, idle, overtaken, held].into_iter().flatten().chain(groups).min()
    }
}
