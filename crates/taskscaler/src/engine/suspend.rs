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

mod state;

use std::time::Duration;

use muster_fleeting::model::{InstanceId, InstanceState};

use self::state::ResumeWaiter;
pub(super) use self::state::{MAX_LIST_AGE, RESUME_TIMEOUT, SuspendState, Suspension};
use super::instance::{Instance, InstancePhase};
use super::{Engine, LeaseLocation};
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::suspend::{ResumeError, SuspendError, SuspendEvent, SuspendedEnvironment};
use crate::time::Now;
use crate::types::{GroupId, RemovalReason, TaskKey};

/// A suspension that had no effect is repeated after this.
const SUSPEND_RETRY_DELAY: Duration = Duration::from_secs(60);
/// The same of a resumption: somebody waits for it.
const RESUME_RETRY_DELAY: Duration = Duration::from_secs(15);

/// What is to be done about one, by what is known.
enum SuspendAction {
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
    pub fn suspend(&mut self, now: Now, key: &TaskKey, owner: &str) -> Result<(), SuspendError> {
        let index = self.can_suspend(key)?;
        let until_unix = now.unix.saturating_add_unsigned(self.config.suspended_ttl.as_secs());
        let environment = SuspendedEnvironment { name: key.to_string(), owner: owner.to_owned(), until_unix };
        self.remove_lease(now, key);
        self.pool.change(index, |instance| instance.saved_environment = Some(environment));
        self.begin_suspend(now, index, Some(InstanceState::Running));
        self.record_suspend_event(now, index, SuspendEvent::Saved);
        self.actions.push(Action::EnvironmentSaved { key: key.clone() });
        self.advance(now);
        Ok(())
    }

    /// Whether the instance of a lease could be suspended when its job has ended.
    ///
    /// # Errors
    /// [`NotSuspended`].
    pub fn may_suspend(&self, key: &TaskKey) -> Result<(), SuspendError> {
        self.can_suspend(key).map(drop)
    }

    fn can_suspend(&self, key: &TaskKey) -> Result<usize, SuspendError> {
        if !self.is_single_job() {
            return Err(SuspendError::Shared);
        }
        let index = self.leases.get(key).ok_or(SuspendError::InstanceLost)?.index;
        let instance = self.pool.get(index).ok_or(SuspendError::InstanceLost)?;
        // It may be from before the configuration said so.
        if instance.held > 1 {
            return Err(SuspendError::Shared);
        }
        let group = self.group(instance.group).ok_or(SuspendError::InstanceLost)?;
        if group.can_suspend == Some(false) {
            return Err(SuspendError::NoCapability);
        }
        let why = match &instance.state {
            InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => None,
            InstancePhase::Draining(why) => Some(why.to_string()),
            InstancePhase::Cordoned { by, .. } => Some(format!("drained by {by}")),
            InstancePhase::Deleting(_) | InstancePhase::Suspended(_) => return Err(SuspendError::InstanceLost),
        };
        let why = why.or_else(|| group.drained.as_ref().map(|by| format!("its group was drained by {by}")));
        if let Some(why) = why {
            return Err(SuspendError::InstanceDeleting { reason: why });
        }
        if self.stopping && self.config.delete_on_shutdown {
            return Err(SuspendError::ShuttingDown);
        }
        let asleep = self.pool.suspended();
        if let Some(max) = self.max_instances().filter(|max| asleep + 1 >= *max) {
            return Err(SuspendError::NoSpareInstance { suspended: asleep, max });
        }
        if self
            .config
            .max_cost_per_hour
            .is_some_and(|max| self.suspended_cost_per_hour(Some(instance.group)) > max + 1e-9)
        {
            return Err(SuspendError::CostLimit);
        }
        Ok(index)
    }

    /// Waits for the environment of this name; [`Action::Grant`] gives its instance to `key`, and [`Action::NotResumed`] says why
    /// not, within five minutes. A promise that `key` had is given back.
    ///
    /// # Errors
    /// [`NotResumed`].
    pub fn resume(&mut self, now: Now, key: TaskKey, name: &str, owner: &str) -> Result<(), ResumeError> {
        self.reservations.remove(&key);
        let index = self.can_resume(now, name, owner)?;
        let waker = ResumeWaiter { key: key.clone(), since: now.at };
        self.pool.change(index, |instance| {
            if let InstancePhase::Suspended(sleep) = &mut instance.state {
                sleep.waiter = Some(waker);
            }
        });
        self.resume_waiters.insert(key.clone(), index);
        self.record_suspend_event(now, index, SuspendEvent::ResumeRequested(key));
        if let Some(group) = self.pool.get(index).map(|instance| instance.group)
            && let Some(group) = self.group_mut(group)
        {
            group.list_schedule.urgent = Some(now.at);
        }
        self.advance_suspended(now, index);
        self.advance(now);
        Ok(())
    }

    /// The instance of an environment, asleep.
    fn can_resume(&self, now: Now, name: &str, owner: &str) -> Result<usize, ResumeError> {
        if self.stopping {
            return Err(ResumeError::Stopping);
        }
        let is_it = |environment: &SuspendedEnvironment| environment.name == name;
        let found = self.pool.iter().find(|(_, instance)| instance.saved_environment.as_ref().is_some_and(is_it));
        let (index, instance) = found.ok_or(ResumeError::Unknown)?;
        if instance.saved_environment.as_ref().is_none_or(|environment| environment.owner != owner) {
            return Err(ResumeError::NotOwner);
        }
        if self.group(instance.group).is_some_and(|group| group.can_suspend == Some(false)) {
            return Err(ResumeError::NoCapability);
        }
        match &instance.state {
            InstancePhase::Suspended(sleep) if sleep.waiter.is_some() => Err(ResumeError::InUse),
            InstancePhase::Suspended(sleep) if sleep.until <= now.at => Err(ResumeError::Unknown),
            InstancePhase::Suspended(_) => Ok(index),
            InstancePhase::Deleting(deleting) => Err(ResumeError::InstanceLost(deleting.reason.to_string())),
            InstancePhase::Booting
            | InstancePhase::Preparing
            | InstancePhase::Ready
            | InstancePhase::Draining(_)
            | InstancePhase::Cordoned { .. } => Err(ResumeError::Unknown),
        }
    }

    /// Whether an environment of this name is there for a job.
    #[must_use]
    pub fn has_environment(&self, name: &str) -> bool {
        let is_it = |environment: &SuspendedEnvironment| environment.name == name;
        let is_there = |instance: &Instance| matches!(instance.state, InstancePhase::Suspended(_));
        let mut all = self.pool.iter().map(|(_, instance)| instance);
        all.any(|instance| is_there(instance) && instance.saved_environment.as_ref().is_some_and(is_it))
    }

    /// From the books: an instance with an environment is suspended. Where the configuration lets jobs share instances by now,
    /// nobody can have it for himself, and it goes.
    pub(super) fn restore_suspended(&mut self, now: Now, index: usize) {
        self.begin_suspend(now, index, None);
        // An earlier manager may have asked it to suspend a moment ago.
        self.pool.change(index, |instance| {
            if let InstancePhase::Suspended(sleep) = &mut instance.state {
                sleep.suspend_requested = true;
            }
        });
        if !self.is_single_job() {
            self.delete(now, index, RemovalReason::Expired);
        }
    }

    /// Each instance is for one job alone.
    fn is_single_job(&self) -> bool {
        self.config.capacity.get() == 1 && self.config.max_uses.is_some_and(|uses| uses.get() == 1)
    }

    /// An instance that has an environment, and no job, is suspended.
    fn begin_suspend(&mut self, now: Now, index: usize, seen: Option<InstanceState>) {
        let most = self.config.suspended_ttl;
        self.pool.change(index, |instance| {
            let Some(environment) = &instance.saved_environment else { return };
            // A clock that was set back keeps none for longer than it may be.
            let left = u64::try_from(environment.until_unix.saturating_sub(now.unix)).unwrap_or(0);
            let until = now.at + Duration::from_secs(left).min(most);
            let sleep = Suspension { last_listed: seen, ..Suspension::new(now.at, until) };
            let due = sleep.due();
            instance.enter(InstancePhase::Suspended(sleep), now.at, Some(due));
        });
        self.mark_dirty(index);
        self.advance_suspended(now, index);
    }

    /// What the list says of an instance that is kept.
    pub(super) fn observe_suspended(&mut self, now: Now, index: usize, seen: InstanceState) {
        self.pool.change(index, |instance| {
            if let InstancePhase::Suspended(sleep) = &mut instance.state {
                sleep.last_listed = Some(seen);
            }
        });
        self.advance_suspended(now, index);
    }

    /// Does what comes next for an instance that is kept.
    pub(super) fn advance_suspended(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        let InstancePhase::Suspended(mut sleep) = instance.state.clone() else { return };
        let (group, id, since) = (instance.group, instance.id.clone(), instance.since);
        if sleep.waiter.as_ref().is_some_and(|waker| now.at >= waker.since + RESUME_TIMEOUT) {
            // Who comes later may have more luck.
            self.fail_resume(
                now,
                index,
                &format!("it did not run and get ready within {} s", RESUME_TIMEOUT.as_secs()),
            );
            sleep.waiter = None;
            sleep.suspend_again(now.at);
        }
        if sleep.waiter.is_none() && now.at >= sleep.until {
            return self.delete(now, index, RemovalReason::Expired);
        }
        let before = sleep.state;
        sleep.state = sleep.next(now.at, since);
        sleep.suspend_requested &= sleep.last_listed != Some(InstanceState::Suspended);
        let is_new = sleep.state != before;
        if is_new {
            sleep.retry_at = now.at;
        }
        let what = match (sleep.state, sleep.last_listed) {
            (SuspendState::Suspending, Some(InstanceState::Running)) if now.at >= sleep.retry_at => {
                sleep.retry_at = now.at + SUSPEND_RETRY_DELAY;
                sleep.suspend_requested = true;
                SuspendAction::Suspend
            }
            (SuspendState::Resuming, Some(InstanceState::Suspended)) if now.at >= sleep.retry_at => {
                sleep.retry_at = now.at + RESUME_RETRY_DELAY;
                SuspendAction::Resume
            }
            (SuspendState::Preparing, _) if is_new => SuspendAction::Prepare,
            _ => SuspendAction::Nothing,
        };
        let (phase, due) = (sleep.state, sleep.due());
        self.pool.change(index, |instance| {
            instance.state = InstancePhase::Suspended(sleep);
            instance.due = Some(due);
            if is_new {
                instance.since = now.at;
            }
        });
        match phase {
            SuspendState::Suspended if is_new => {
                self.record_suspend_event(now, index, SuspendEvent::Suspended(now.at.since(since)))
            }
            SuspendState::Suspending if is_new => {
                self.record_suspend_event(now, index, SuspendEvent::UnexpectedlyRunning)
            }
            _ => {}
        }
        match what {
            SuspendAction::Nothing => {}
            SuspendAction::Suspend => self.actions.push(Action::Suspend { group, ids: vec![id] }),
            SuspendAction::Resume => self.actions.push(Action::Resume { group, ids: vec![id] }),
            SuspendAction::Prepare => self.actions.push(Action::Prepare { group, id, again: true }),
        }
    }

    /// The answer to either call. What was accepted shows in the list; what was not is asked again.
    pub(super) fn suspend_answered(
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
                self.record_suspend_event(now, index, SuspendEvent::Failed(error.clone()));
                self.prepare_running(now, index);
            }
        }
        // It changes now.
        if let Some(group) = self.group_mut(group) {
            group.list_schedule.urgent = Some(now.at);
        }
    }

    /// It could not be suspended, and somebody waits for it already: it runs.
    fn prepare_running(&mut self, now: Now, index: usize) {
        let prepares = self.pool.change(index, |instance| {
            let InstancePhase::Suspended(sleep) = &mut instance.state else { return None };
            sleep.suspend_requested = false;
            let is_up = (sleep.state, sleep.last_listed) == (SuspendState::Suspending, Some(InstanceState::Running));
            (is_up && sleep.waiter.is_some()).then(|| {
                sleep.state = SuspendState::Preparing;
                (instance.group, instance.id.clone())
            })
        });
        if let Some((group, id)) = prepares.flatten() {
            self.actions.push(Action::Prepare { group, id, again: true });
            self.advance_suspended(now, index);
        }
    }

    /// It runs again, and is ready or not: the job that waits has it, or is told.
    pub(super) fn resumed(&mut self, now: Now, index: usize, result: Result<(), String>) {
        let Some(InstancePhase::Suspended(Suspension { state: SuspendState::Preparing, waiter: waker, .. })) =
            self.pool.get(index).map(|instance| instance.state.clone())
        else {
            return;
        };
        let Some(ResumeWaiter { key, since }) = waker else {
            // Nobody waits for it any more.
            self.pool.change(index, |instance| {
                if let InstancePhase::Suspended(sleep) = &mut instance.state {
                    (sleep.state, sleep.retry_at) = (SuspendState::Suspending, now.at);
                }
            });
            return self.advance_suspended(now, index);
        };
        if let Err(error) = result {
            return self.delete(now, index, RemovalReason::ResumeFailed { error });
        }
        let beat = self.next_heartbeat(now);
        let held = self.pool.change(index, |instance| {
            instance.enter(InstancePhase::Ready, now.at, beat);
            instance.failures = 0;
            instance.ignore_lists_before = now.at + MAX_LIST_AGE;
            let crowd = instance.occupancy_ms_at(now.at);
            (instance.hold(1, &key, now.at), crowd)
        });
        let Some((slot, crowd)) = held else { return };
        let place = LeaseLocation { index, slot, slots: 1, since: now.at, occupancy_ms: crowd, job_kind: None };
        self.resume_waiters.remove(&key);
        self.leases.insert(key.clone(), place);
        self.record_suspend_event(now, index, SuspendEvent::Resumed(key.clone(), now.at.since(since)));
        self.pool.change(index, |instance| instance.resumed_environment = instance.saved_environment.take());
        self.mark_dirty(index);
        if let Some(lease) = self.lease_at(&key, place) {
            self.actions.push(Action::Grant(lease));
        }
    }

    /// A lease was granted, and nobody took it. What it was resumed with is there for another job again: none has been told.
    pub(super) fn grant_abandoned(&mut self, now: Now, key: &TaskKey) {
        let index = self.leases.get(key).map(|place| place.index);
        let is_kept = |instance: &mut Instance| match instance.state {
            InstancePhase::Ready => instance.resumed_environment.take(),
            _ => None,
        };
        let Some((index, environment)) = index.and_then(|index| Some((index, self.pool.change(index, is_kept)??)))
        else {
            return self.release(now, key);
        };
        self.remove_lease(now, key);
        self.pool.change(index, |instance| instance.saved_environment = Some(environment));
        self.begin_suspend(now, index, Some(InstanceState::Running));
        self.record_suspend_event(now, index, SuspendEvent::ResumeCanceled);
    }

    /// Nobody waits for it any more: it is suspended again.
    pub(super) fn cancel_resume(&mut self, now: Now, key: &TaskKey) {
        let Some(index) = self.resume_waiters.remove(key) else { return };
        self.pool.change(index, |instance| {
            if let InstancePhase::Suspended(sleep) = &mut instance.state {
                sleep.waiter = None;
                sleep.suspend_again(now.at);
            }
        });
        self.record_suspend_event(now, index, SuspendEvent::ResumeCanceled);
        self.advance_suspended(now, index);
    }

    /// The same for all: the engine stops.
    pub(super) fn cancel_all_resumes(&mut self, now: Now) {
        let keys: Vec<TaskKey> = self.resume_waiters.keys().cloned().collect();
        for key in keys {
            self.cancel_resume(now, &key);
        }
    }

    /// The instance goes: who waits for it is told.
    pub(super) fn fail_resume(&mut self, now: Now, index: usize, why: &str) {
        let waker = self.pool.change(index, |instance| match &mut instance.state {
            InstancePhase::Suspended(sleep) => sleep.waiter.take(),
            _ => None,
        });
        if let Some(ResumeWaiter { key, .. }) = waker.flatten() {
            self.resume_waiters.remove(&key);
            self.record_suspend_event(now, index, SuspendEvent::ResumeFailed(key.clone(), why.to_owned()));
            self.actions.push(Action::ResumeFailed { key, error: ResumeError::InstanceLost(why.to_owned()) });
        }
    }

    /// Where fewer instances may be, or they cost more: what sleeps never takes the last place. The one goes first that would
    /// have gone first.
    pub(super) fn evict_suspended(&mut self, now: Now) {
        let is_too_many = |engine: &Self| {
            let asleep = engine.pool.suspended();
            let too_dear =
                || engine.config.max_cost_per_hour.is_some_and(|max| engine.suspended_cost_per_hour(None) > max + 1e-9);
            asleep > 0 && (engine.max_instances().is_some_and(|most| asleep >= most) || too_dear())
        };
        while is_too_many(self) {
            let sleepers = self.pool.iter().filter_map(|(index, instance)| match &instance.state {
                InstancePhase::Suspended(sleep) if sleep.waiter.is_none() => {
                    Some((sleep.until, instance.sequence, index))
                }
                _ => None,
            });
            let Some((.., index)) = sleepers.min() else { return };
            self.delete(now, index, RemovalReason::NoSpareInstance);
        }
    }

    /// The most instances of all groups together; none: no limit.
    fn max_instances(&self) -> Option<u64> {
        self.groups.iter().map(|group| group.max_instances().map(u64::from)).sum()
    }

    /// What the suspended instances, and one more in this group, cost per hour, beside the cheapest one that another job may get.
    /// They count in full: each may run again at any time, and nobody says what it costs while it does not.
    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    fn suspended_cost_per_hour(&self, more: Option<GroupId>) -> f64 {
        let price = |id: GroupId| self.group(id).map_or(0.0, |group| group.config.price_per_hour);
        let asleep =
            (0..self.groups.len()).map(|index| self.pool.suspended_in(GroupId(index)) as f64 * price(GroupId(index)));
        let cheapest = (0..self.groups.len()).map(|index| price(GroupId(index))).reduce(f64::min);
        asleep.sum::<f64>() + more.map_or(0.0, price) + cheapest.unwrap_or_default()
    }

    fn record_suspend_event(&mut self, now: Now, index: usize, step: SuspendEvent) {
        let Some(instance) = self.pool.get(index) else { return };
        let Some(environment) = &instance.saved_environment else { return };
        let (group, id, name) = (instance.group, instance.id.clone(), TaskKey::new(&environment.name));
        self.decide(now, DecisionKind::Environment { group, id, name, step });
    }
}
