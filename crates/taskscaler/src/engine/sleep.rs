//! Environments that jobs leave for later ones: their instances are suspended, and resumed for one job alone.
//!
//! ```text
//! Ready, leased --suspend--> Falling --listed: suspended--> Asleep --resume--> Waking --listed: running--> Rousing
//!      |                        ^  |  ^--listed: running----/                    |                        ^  |
//!      |                        |  \--not asked to suspend, and wanted, listed: running------------------/  |
//!      |                        \--nobody waits any more-------------------------/---------------------------/
//!      \<-------------------------------------------------------------------------------ready, and granted-/
//! ```
//!
//! Both calls are only asked for; what came of them is what the list says. Each is repeated as long as the list says that it
//! had no effect. An environment ends at its time, unless a job waits for it, and a job that waits is told within
//! [`RESUMED_WITHIN`]: nothing waits or stays without a limit. Once a job has it, it is no environment any more: a job that was
//! given it just before a kill, and not told, does not get it again, since nobody could tell whether it was used.

mod phase;

use std::time::Duration;

use muster_fleeting::model::{InstanceId, InstanceState};

use self::phase::Waker;
pub(super) use self::phase::{OLD_LIST, Phase, RESUMED_WITHIN, Sleep};
use super::instance::{Instance, State};
use super::{Engine, Place};
use crate::decision::What;
use crate::event::Action;
use crate::sleep::{Environment, NotResumed, NotSuspended, Step};
use crate::time::Now;
use crate::words::{GroupId, Key, Removal};

/// A suspension that had no effect is repeated after this.
const SUSPENDED_AGAIN: Duration = Duration::from_secs(60);
/// The same of a resumption: somebody waits for it.
const RESUMED_AGAIN: Duration = Duration::from_secs(15);

/// What is to be done about one, by what is known.
enum Do {
    Nothing,
    Suspend,
    Resume,
    Prepare,
}

impl Engine {
    /// The job of a lease has ended, and leaves its environment for a later job: the lease ends, and its instance is suspended.
    /// [`Action::Parked`] says when that is in the books; its name is the lease's key.
    ///
    /// # Errors
    /// [`NotSuspended`]: the lease goes on.
    pub fn suspend(&mut self, now: Now, key: &Key, owner: &str) -> Result<(), NotSuspended> {
        let index = self.can_suspend(key)?;
        let until_unix = now.unix.saturating_add_unsigned(self.config.suspended_max.as_secs());
        let environment = Environment { name: key.to_string(), owner: owner.to_owned(), until_unix };
        self.drop_lease(now, key);
        self.pool.change(index, |instance| instance.environment = Some(environment));
        self.fall_asleep(now, index, Some(InstanceState::Running));
        self.step(now, index, Step::Left);
        self.actions.push(Action::Parked { key: key.clone() });
        self.settle(now);
        Ok(())
    }

    /// Whether the instance of a lease could be suspended when its job has ended.
    ///
    /// # Errors
    /// [`NotSuspended`].
    pub fn may_suspend(&self, key: &Key) -> Result<(), NotSuspended> {
        self.can_suspend(key).map(drop)
    }

    fn can_suspend(&self, key: &Key) -> Result<usize, NotSuspended> {
        if !self.is_for_one_job() {
            return Err(NotSuspended::Shared);
        }
        let index = self.leases.get(key).ok_or(NotSuspended::Gone)?.index;
        let instance = self.pool.get(index).ok_or(NotSuspended::Gone)?;
        // It may be from before the configuration said so.
        if instance.held > 1 {
            return Err(NotSuspended::Shared);
        }
        let group = self.group(instance.group).ok_or(NotSuspended::Gone)?;
        if group.can_suspend == Some(false) {
            return Err(NotSuspended::NoCapability);
        }
        let why = match &instance.state {
            State::Booting | State::Preparing | State::Ready => None,
            State::Draining(why) => Some(why.to_string()),
            State::Aside { by, .. } => Some(format!("drained by {by}")),
            State::Deleting(_) | State::Asleep(_) => return Err(NotSuspended::Gone),
        };
        let why = why.or_else(|| group.drained.as_ref().map(|by| format!("its group was drained by {by}")));
        if let Some(why) = why {
            return Err(NotSuspended::Goes { why });
        }
        if self.stopping && self.config.delete_on_shutdown {
            return Err(NotSuspended::Ends);
        }
        let asleep = self.pool.asleep();
        if let Some(max) = self.most().filter(|max| asleep + 1 >= *max) {
            return Err(NotSuspended::LastPlace { asleep, max });
        }
        if self.config.spend_max_per_hour.is_some_and(|max| self.spend_asleep(Some(instance.group)) > max + 1e-9) {
            return Err(NotSuspended::Spend);
        }
        Ok(index)
    }

    /// Waits for the environment of this name; [`Action::Grant`] gives its instance to `key`, and [`Action::NotResumed`] says why
    /// not, within five minutes. A promise that `key` had is given back.
    ///
    /// # Errors
    /// [`NotResumed`].
    pub fn resume(&mut self, now: Now, key: Key, name: &str, owner: &str) -> Result<(), NotResumed> {
        self.reservations.remove(&key);
        let index = self.can_resume(now, name, owner)?;
        let waker = Waker { key: key.clone(), since: now.at };
        self.pool.change(index, |instance| {
            if let State::Asleep(sleep) = &mut instance.state {
                sleep.waker = Some(waker);
            }
        });
        self.wakers.insert(key.clone(), index);
        self.step(now, index, Step::Wanted(key));
        if let Some(group) = self.pool.get(index).map(|instance| instance.group)
            && let Some(group) = self.group_mut(group)
        {
            group.updates.urgent = Some(now.at);
        }
        self.tend(now, index);
        self.settle(now);
        Ok(())
    }

    /// The instance of an environment, asleep.
    fn can_resume(&self, now: Now, name: &str, owner: &str) -> Result<usize, NotResumed> {
        if self.stopping {
            return Err(NotResumed::Stopping);
        }
        let is_it = |environment: &Environment| environment.name == name;
        let found = self.pool.iter().find(|(_, instance)| instance.environment.as_ref().is_some_and(is_it));
        let (index, instance) = found.ok_or(NotResumed::Unknown)?;
        if instance.environment.as_ref().is_none_or(|environment| environment.owner != owner) {
            return Err(NotResumed::NotYours);
        }
        if self.group(instance.group).is_some_and(|group| group.can_suspend == Some(false)) {
            return Err(NotResumed::NoCapability);
        }
        match &instance.state {
            State::Asleep(sleep) if sleep.waker.is_some() => Err(NotResumed::InUse),
            State::Asleep(sleep) if sleep.until <= now.at => Err(NotResumed::Unknown),
            State::Asleep(_) => Ok(index),
            State::Deleting(deleting) => Err(NotResumed::Lost(deleting.why.to_string())),
            State::Booting | State::Preparing | State::Ready | State::Draining(_) | State::Aside { .. } => {
                Err(NotResumed::Unknown)
            }
        }
    }

    /// Whether an environment of this name is there for a job.
    #[must_use]
    pub fn has_environment(&self, name: &str) -> bool {
        let is_it = |environment: &Environment| environment.name == name;
        let is_there = |instance: &Instance| matches!(instance.state, State::Asleep(_));
        let mut all = self.pool.iter().map(|(_, instance)| instance);
        all.any(|instance| is_there(instance) && instance.environment.as_ref().is_some_and(is_it))
    }

    /// From the books: an instance with an environment is suspended. Where the configuration lets jobs share instances by now,
    /// nobody can have it for himself, and it goes.
    pub(super) fn sleep_on(&mut self, now: Now, index: usize) {
        self.fall_asleep(now, index, None);
        // An earlier manager may have asked it to suspend a moment ago.
        self.pool.change(index, |instance| {
            if let State::Asleep(sleep) = &mut instance.state {
                sleep.asked = true;
            }
        });
        if !self.is_for_one_job() {
            self.delete(now, index, Removal::Expired);
        }
    }

    /// Each instance is for one job alone.
    fn is_for_one_job(&self) -> bool {
        self.config.capacity.get() == 1 && self.config.uses_max.is_some_and(|uses| uses.get() == 1)
    }

    /// An instance that has an environment, and no job, is suspended.
    fn fall_asleep(&mut self, now: Now, index: usize, seen: Option<InstanceState>) {
        let most = self.config.suspended_max;
        self.pool.change(index, |instance| {
            let Some(environment) = &instance.environment else { return };
            // A clock that was set back keeps none for longer than it may be.
            let left = u64::try_from(environment.until_unix.saturating_sub(now.unix)).unwrap_or(0);
            let until = now.at + Duration::from_secs(left).min(most);
            let sleep = Sleep { seen, ..Sleep::new(now.at, until) };
            let due = sleep.due();
            instance.enter(State::Asleep(sleep), now.at, Some(due));
        });
        self.touch(index);
        self.tend(now, index);
    }

    /// What the list says of an instance that is kept.
    pub(super) fn seen_asleep(&mut self, now: Now, index: usize, seen: InstanceState) {
        self.pool.change(index, |instance| {
            if let State::Asleep(sleep) = &mut instance.state {
                sleep.seen = Some(seen);
            }
        });
        self.tend(now, index);
    }

    /// Does what comes next for an instance that is kept.
    pub(super) fn tend(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        let State::Asleep(mut sleep) = instance.state.clone() else { return };
        let (group, id, since) = (instance.group, instance.id.clone(), instance.since);
        if sleep.waker.as_ref().is_some_and(|waker| now.at >= waker.since + RESUMED_WITHIN) {
            // Who comes later may have more luck.
            self.fail_waker(now, index, &format!("it did not run and get ready within {} s", RESUMED_WITHIN.as_secs()));
            sleep.waker = None;
            sleep.fall_again(now.at);
        }
        if sleep.waker.is_none() && now.at >= sleep.until {
            return self.delete(now, index, Removal::Expired);
        }
        let before = sleep.phase;
        sleep.phase = sleep.next(now.at, since);
        sleep.asked &= sleep.seen != Some(InstanceState::Suspended);
        let is_new = sleep.phase != before;
        if is_new {
            sleep.again = now.at;
        }
        let what = match (sleep.phase, sleep.seen) {
            (Phase::Falling, Some(InstanceState::Running)) if now.at >= sleep.again => {
                sleep.again = now.at + SUSPENDED_AGAIN;
                sleep.asked = true;
                Do::Suspend
            }
            (Phase::Waking, Some(InstanceState::Suspended)) if now.at >= sleep.again => {
                sleep.again = now.at + RESUMED_AGAIN;
                Do::Resume
            }
            (Phase::Rousing, _) if is_new => Do::Prepare,
            _ => Do::Nothing,
        };
        let (phase, due) = (sleep.phase, sleep.due());
        self.pool.change(index, |instance| {
            instance.state = State::Asleep(sleep);
            instance.due = Some(due);
            if is_new {
                instance.since = now.at;
            }
        });
        match phase {
            Phase::Asleep if is_new => self.step(now, index, Step::Suspended(now.at.since(since))),
            Phase::Falling if is_new => self.step(now, index, Step::Awake),
            _ => {}
        }
        match what {
            Do::Nothing => {}
            Do::Suspend => self.actions.push(Action::Suspend { group, ids: vec![id] }),
            Do::Resume => self.actions.push(Action::Resume { group, ids: vec![id] }),
            Do::Prepare => self.actions.push(Action::Prepare { group, id, again: true }),
        }
    }

    /// The answer to either call. What was accepted shows in the list; what was not is asked again.
    pub(super) fn slept(
        &mut self,
        now: Now,
        group: GroupId,
        ids: &[InstanceId],
        result: Result<Vec<InstanceId>, String>,
    ) {
        let (accepted, error) = match result {
            Ok(accepted) => (accepted, "the plugin did not accept it".to_owned()),
            Err(error) => (Vec::new(), error),
        };
        for id in ids.iter().filter(|id| !accepted.contains(id)) {
            if let Some(index) = self.pool.find(group, id) {
                self.step(now, index, Step::Failed(error.clone()));
                self.rouse_what_runs(now, index);
            }
        }
        // It changes now.
        if let Some(group) = self.group_mut(group) {
            group.updates.urgent = Some(now.at);
        }
    }

    /// It could not be suspended, and somebody waits for it already: it runs.
    fn rouse_what_runs(&mut self, now: Now, index: usize) {
        let prepares = self.pool.change(index, |instance| {
            let State::Asleep(sleep) = &mut instance.state else { return None };
            sleep.asked = false;
            let is_up = (sleep.phase, sleep.seen) == (Phase::Falling, Some(InstanceState::Running));
            (is_up && sleep.waker.is_some()).then(|| {
                sleep.phase = Phase::Rousing;
                (instance.group, instance.id.clone())
            })
        });
        if let Some((group, id)) = prepares.flatten() {
            self.actions.push(Action::Prepare { group, id, again: true });
            self.tend(now, index);
        }
    }

    /// It runs again, and is ready or not: the job that waits has it, or is told.
    pub(super) fn roused(&mut self, now: Now, index: usize, result: Result<(), String>) {
        let Some(State::Asleep(Sleep { phase: Phase::Rousing, waker, .. })) =
            self.pool.get(index).map(|instance| instance.state.clone())
        else {
            return;
        };
        let Some(Waker { key, since }) = waker else {
            // Nobody waits for it any more.
            self.pool.change(index, |instance| {
                if let State::Asleep(sleep) = &mut instance.state {
                    (sleep.phase, sleep.again) = (Phase::Falling, now.at);
                }
            });
            return self.tend(now, index);
        };
        if let Err(error) = result {
            return self.delete(now, index, Removal::NotResumed { error });
        }
        let beat = self.next_heartbeat(now);
        let held = self.pool.change(index, |instance| {
            instance.enter(State::Ready, now.at, beat);
            instance.failures = 0;
            instance.believed_from = now.at + OLD_LIST;
            let crowd = instance.crowd_at(now.at);
            (instance.hold(1, &key, now.at), crowd)
        });
        let Some((slot, crowd)) = held else { return };
        let place = Place { index, slot, slots: 1, since: now.at, crowd, work: None };
        self.wakers.remove(&key);
        self.leases.insert(key.clone(), place);
        self.step(now, index, Step::Resumed(key.clone(), now.at.since(since)));
        self.pool.change(index, |instance| instance.resumed = instance.environment.take());
        self.touch(index);
        if let Some(lease) = self.lease_at(&key, place) {
            self.actions.push(Action::Grant(lease));
        }
    }

    /// A lease was granted, and nobody took it. What it was resumed with is there for another job again: none has been told.
    pub(super) fn unused(&mut self, now: Now, key: &Key) {
        let index = self.leases.get(key).map(|place| place.index);
        let is_kept = |instance: &mut Instance| match instance.state {
            State::Ready => instance.resumed.take(),
            _ => None,
        };
        let Some((index, environment)) = index.and_then(|index| Some((index, self.pool.change(index, is_kept)??)))
        else {
            return self.release(now, key);
        };
        self.drop_lease(now, key);
        self.pool.change(index, |instance| instance.environment = Some(environment));
        self.fall_asleep(now, index, Some(InstanceState::Running));
        self.step(now, index, Step::Unwanted);
    }

    /// Nobody waits for it any more: it is suspended again.
    pub(super) fn stop_waking(&mut self, now: Now, key: &Key) {
        let Some(index) = self.wakers.remove(key) else { return };
        self.pool.change(index, |instance| {
            if let State::Asleep(sleep) = &mut instance.state {
                sleep.waker = None;
                sleep.fall_again(now.at);
            }
        });
        self.step(now, index, Step::Unwanted);
        self.tend(now, index);
    }

    /// The same for all: the engine stops.
    pub(super) fn wake_none(&mut self, now: Now) {
        let keys: Vec<Key> = self.wakers.keys().cloned().collect();
        for key in keys {
            self.stop_waking(now, &key);
        }
    }

    /// The instance goes: who waits for it is told.
    pub(super) fn fail_waker(&mut self, now: Now, index: usize, why: &str) {
        let waker = self.pool.change(index, |instance| match &mut instance.state {
            State::Asleep(sleep) => sleep.waker.take(),
            _ => None,
        });
        if let Some(Waker { key, .. }) = waker.flatten() {
            self.wakers.remove(&key);
            self.step(now, index, Step::NotResumed(key.clone(), why.to_owned()));
            self.actions.push(Action::NotResumed { key, why: NotResumed::Lost(why.to_owned()) });
        }
    }

    /// Where fewer instances may be, or they cost more: what sleeps never takes the last place. The one goes first that would
    /// have gone first.
    pub(super) fn make_room_among_sleepers(&mut self, now: Now) {
        let is_too_many = |engine: &Self| {
            let asleep = engine.pool.asleep();
            let too_dear =
                || engine.config.spend_max_per_hour.is_some_and(|max| engine.spend_asleep(None) > max + 1e-9);
            asleep > 0 && (engine.most().is_some_and(|most| asleep >= most) || too_dear())
        };
        while is_too_many(self) {
            let sleepers = self.pool.iter().filter_map(|(index, instance)| match &instance.state {
                State::Asleep(sleep) if sleep.waker.is_none() => Some((sleep.until, instance.born, index)),
                _ => None,
            });
            let Some((.., index)) = sleepers.min() else { return };
            self.delete(now, index, Removal::LastPlace);
        }
    }

    /// The most instances of all groups together; none: no limit.
    fn most(&self) -> Option<u64> {
        self.groups.iter().map(|group| group.max().map(u64::from)).sum()
    }

    /// What the suspended instances, and one more in this group, cost per hour, beside the cheapest one that another job may get.
    /// They count in full: each may run again at any time, and nobody says what it costs while it does not.
    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    fn spend_asleep(&self, more: Option<GroupId>) -> f64 {
        let price = |id: GroupId| self.group(id).map_or(0.0, |group| group.config.price_per_hour);
        let asleep =
            (0..self.groups.len()).map(|index| self.pool.asleep_in(GroupId(index)) as f64 * price(GroupId(index)));
        let cheapest = (0..self.groups.len()).map(|index| price(GroupId(index))).reduce(f64::min);
        asleep.sum::<f64>() + more.map_or(0.0, price) + cheapest.unwrap_or_default()
    }

    fn step(&mut self, now: Now, index: usize, step: Step) {
        let Some(instance) = self.pool.get(index) else { return };
        let Some(environment) = &instance.environment else { return };
        let (group, id, name) = (instance.group, instance.id.clone(), Key::new(&environment.name));
        self.decide(now, What::Environment { group, id, name, step });
    }
}
