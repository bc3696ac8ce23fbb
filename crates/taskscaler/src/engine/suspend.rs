//! Suspended environments: instances that are suspended after a job and resumed for a single later job.
//!
//! ```text
//!  saved by a job --> Suspending --listed: suspended--> Suspended --requested--> Resuming --listed: running--> Preparing
//!                        ^  ^                               |                       |                            |  |
//!                        |  \------ listed: running --------/                       |                            |  |
//!                        \------- the request was canceled -------------------------/----------------------------/  |
//!                                                                                       ready: assigned to the job </
//! ```
//!
//! A suspend or resume call is repeated until a list reports its effect. If a job requests the environment before the
//! suspend call was made, the instance is prepared directly.
//!
//! An environment without a waiting job expires. A waiting job gets the environment or an error within
//! [`RESUME_TIMEOUT`]. An environment that was assigned to a job is removed from the ledger, because the job may have
//! used it.

mod state;

use std::collections::HashMap;
use std::time::Duration;

use muster_fleeting::model::{InstanceId, InstanceState};

use self::state::ResumeWaiter;
pub(super) use self::state::{MAX_LIST_AGE, RESUME_TIMEOUT, SuspendState, Suspension};
use super::instance::{Instance, InstancePhase};
use super::inventory::Inventory;
use super::pool::{Index, Pool};
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::suspend::{ResumeError, SuspendError, SuspendEvent, SuspendedEnvironment};
use crate::time::Now;
use crate::types::{GroupId, RemovalReason, TaskKey};

const SUSPEND_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Short, because a job is waiting.
const RESUME_RETRY_DELAY: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy)]
pub(super) struct SuspendConditions {
    /// Whether the manager is stopping and then deletes all instances.
    pub(super) deletes_all: bool,
    pub(super) max_cost_per_hour: Option<f64>,
}

/// Result of a preparation.
#[derive(Debug)]
pub(super) enum Resumed {
    /// The instance is not being resumed, or no job waits for it.
    NoWaiter,
    /// The instance must be deleted.
    Failed(RemovalReason),
    Ready {
        key: TaskKey,
        waited: Duration,
    },
}

/// Controls the suspended instances, and knows which jobs wait for them.
///
/// If a method returns a [`RemovalReason`], the caller must delete the instance.
#[derive(Debug)]
pub(super) struct Suspensions {
    /// Instances for which jobs wait, by the job.
    waiters: HashMap<TaskKey, Index>,
    /// Maximum time that an environment is kept.
    ttl: Duration,
}

impl Suspensions {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { waiters: HashMap::new(), ttl }
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    pub(super) fn waiting_jobs(&self) -> Vec<TaskKey> {
        self.waiters.keys().cloned().collect()
    }

    /// `listed` is the state of the instance at the provider, if known.
    #[must_use]
    pub(super) fn begin(
        &mut self,
        inventory: &mut Inventory,
        now: Now,
        index: Index,
        listed: Option<InstanceState>,
    ) -> Option<RemovalReason> {
        let ttl = self.ttl;
        inventory.pool.change(index, |instance| {
            let Some(environment) = &instance.saved_environment else { return };
            // A clock that was set back does not extend the time to live.
            let remaining_s = u64::try_from(environment.until_unix.saturating_sub(now.unix)).unwrap_or(0);
            let until = now.at + Duration::from_secs(remaining_s).min(ttl);
            let suspension = Suspension { last_listed: listed, ..Suspension::new(now.at, until) };
            let due = suspension.due();
            instance.enter(InstancePhase::Suspended(suspension), now.at, Some(due));
        });
        inventory.mark_dirty(index);
        self.advance(inventory, now, index)
    }

    #[must_use]
    pub(super) fn restore(&mut self, inventory: &mut Inventory, now: Now, index: Index) -> Option<RemovalReason> {
        let removal = self.begin(inventory, now, index, None);
        // An earlier manager may have requested the suspension a moment ago.
        change(inventory, index, |suspension| suspension.suspend_requested = true);
        removal
    }

    #[must_use]
    pub(super) fn add_waiter(
        &mut self,
        inventory: &mut Inventory,
        now: Now,
        index: Index,
        key: TaskKey,
    ) -> Option<RemovalReason> {
        let waiter = ResumeWaiter { key: key.clone(), since: now.at };
        change(inventory, index, |suspension| suspension.waiter = Some(waiter));
        self.waiters.insert(key.clone(), index);
        record(inventory, now, index, SuspendEvent::ResumeRequested(key));
        if let Some(group) = inventory.pool.get(index).map(|instance| instance.group) {
            inventory.list_now(now, group);
        }
        self.advance(inventory, now, index)
    }

    #[must_use]
    pub(super) fn observe(
        &mut self,
        inventory: &mut Inventory,
        now: Now,
        index: Index,
        listed: InstanceState,
    ) -> Option<RemovalReason> {
        change(inventory, index, |suspension| suspension.last_listed = Some(listed));
        self.advance(inventory, now, index)
    }

    #[must_use]
    pub(super) fn advance(&mut self, inventory: &mut Inventory, now: Now, index: Index) -> Option<RemovalReason> {
        let instance = inventory.pool.get(index)?;
        let InstancePhase::Suspended(mut suspension) = instance.phase.clone() else { return None };
        let (group, id, since) = (instance.group, instance.id.clone(), instance.since);
        if suspension.waiter.as_ref().is_some_and(|waiter| now.at >= waiter.since + RESUME_TIMEOUT) {
            let limit = RESUME_TIMEOUT.as_secs();
            self.fail(inventory, now, index, &format!("the instance was not ready within {limit} s"));
            suspension.waiter = None;
            suspension.suspend_again(now.at);
        }
        if suspension.waiter.is_none() && now.at >= suspension.until {
            return Some(RemovalReason::Expired);
        }
        let previous = suspension.state;
        suspension.state = suspension.next(now.at, since);
        suspension.suspend_requested &= suspension.last_listed != Some(InstanceState::Suspended);
        let state_changed = suspension.state != previous;
        if state_changed {
            suspension.retry_at = now.at;
        }
        let action = match (suspension.state, suspension.last_listed) {
            (SuspendState::Suspending, Some(InstanceState::Running)) if now.at >= suspension.retry_at => {
                suspension.retry_at = now.at + SUSPEND_RETRY_DELAY;
                suspension.suspend_requested = true;
                Some(Action::Suspend { group, ids: vec![id] })
            }
            (SuspendState::Resuming, Some(InstanceState::Suspended)) if now.at >= suspension.retry_at => {
                suspension.retry_at = now.at + RESUME_RETRY_DELAY;
                Some(Action::Resume { group, ids: vec![id] })
            }
            (SuspendState::Preparing, _) if state_changed => Some(Action::Prepare { group, id, was_ready: true }),
            _ => None,
        };
        let event = match suspension.state {
            SuspendState::Suspended if state_changed => Some(SuspendEvent::Suspended(now.at.since(since))),
            SuspendState::Suspending if state_changed => Some(SuspendEvent::UnexpectedlyRunning),
            _ => None,
        };
        inventory.pool.change(index, |instance| {
            instance.due = Some(suspension.due());
            instance.phase = InstancePhase::Suspended(suspension);
            if state_changed {
                instance.since = now.at;
            }
        });
        if let Some(event) = event {
            record(inventory, now, index, event);
        }
        if let Some(action) = action {
            inventory.push_action(action);
        }
        None
    }

    #[must_use]
    pub(super) fn call_failed(
        &mut self,
        inventory: &mut Inventory,
        now: Now,
        index: Index,
        error: String,
    ) -> Option<RemovalReason> {
        record(inventory, now, index, SuspendEvent::Failed(error));
        // If the instance still runs and a job waits for it, it is prepared directly.
        let must_prepare = change(inventory, index, |suspension| {
            suspension.suspend_requested = false;
            let is_running =
                (suspension.state, suspension.last_listed) == (SuspendState::Suspending, Some(InstanceState::Running));
            let must_prepare = is_running && suspension.waiter.is_some();
            if must_prepare {
                suspension.state = SuspendState::Preparing;
            }
            must_prepare
        });
        if must_prepare != Some(true) {
            return None;
        }
        if let Some((group, id)) = inventory.identity(index) {
            inventory.push_action(Action::Prepare { group, id, was_ready: true });
        }
        self.advance(inventory, now, index)
    }

    #[must_use]
    pub(super) fn finish_preparation(
        &mut self,
        pool: &Pool,
        now: Now,
        index: Index,
        result: Result<(), String>,
    ) -> Resumed {
        let Some(InstancePhase::Suspended(Suspension { state: SuspendState::Preparing, waiter, .. })) =
            pool.get(index).map(|instance| &instance.phase)
        else {
            return Resumed::NoWaiter;
        };
        let Some(ResumeWaiter { key, since }) = waiter else { return Resumed::NoWaiter };
        if let Err(error) = result {
            return Resumed::Failed(RemovalReason::ResumeFailed { error });
        }
        self.waiters.remove(key);
        Resumed::Ready { key: key.clone(), waited: now.at.since(*since) }
    }

    /// Suspends an instance again after its preparation, if no job waits for it anymore.
    #[must_use]
    pub(super) fn suspend_again(&mut self, inventory: &mut Inventory, now: Now, index: Index) -> Option<RemovalReason> {
        let was_preparing = change(inventory, index, |suspension| {
            let was_preparing = suspension.state == SuspendState::Preparing;
            if was_preparing {
                (suspension.state, suspension.retry_at) = (SuspendState::Suspending, now.at);
            }
            was_preparing
        });
        if was_preparing == Some(true) { self.advance(inventory, now, index) } else { None }
    }

    /// Cancels a job's wait, so that the instance is suspended again.
    ///
    /// Returns the instance and the reason if it must be deleted instead.
    #[must_use]
    pub(super) fn cancel(
        &mut self,
        inventory: &mut Inventory,
        now: Now,
        key: &TaskKey,
    ) -> Option<(Index, RemovalReason)> {
        let index = self.waiters.remove(key)?;
        change(inventory, index, |suspension| {
            suspension.waiter = None;
            suspension.suspend_again(now.at);
        });
        record(inventory, now, index, SuspendEvent::ResumeCanceled);
        self.advance(inventory, now, index).map(|reason| (index, reason))
    }

    /// Reports an error to the waiting job, if any.
    pub(super) fn fail(&mut self, inventory: &mut Inventory, now: Now, index: Index, reason: &str) {
        let waiter = change(inventory, index, |suspension| suspension.waiter.take());
        if let Some(ResumeWaiter { key, .. }) = waiter.flatten() {
            self.waiters.remove(&key);
            record(inventory, now, index, SuspendEvent::ResumeFailed(key.clone(), reason.to_owned()));
            inventory.push_action(Action::ResumeFailed { key, error: ResumeError::InstanceLost(reason.to_owned()) });
        }
    }
}

pub(super) fn has_environment(pool: &Pool, name: &str) -> bool {
    let is_suspended = |instance: &Instance| matches!(instance.phase, InstancePhase::Suspended(_));
    with_environment(pool, name).any(|(_, instance)| is_suspended(instance))
}

fn with_environment<'a>(pool: &'a Pool, name: &'a str) -> impl Iterator<Item = (Index, &'a Instance)> {
    let has_name = move |environment: &SuspendedEnvironment| environment.name == name;
    pool.iter().filter(move |(_, instance)| instance.saved_environment.as_ref().is_some_and(has_name))
}

pub(super) fn find_resumable(inventory: &Inventory, now: Now, name: &str, owner: &str) -> Result<Index, ResumeError> {
    let (index, instance) = with_environment(&inventory.pool, name).next().ok_or(ResumeError::Unknown)?;
    if instance.saved_environment.as_ref().is_none_or(|environment| environment.owner != owner) {
        return Err(ResumeError::NotOwner);
    }
    if inventory.groups.get(instance.group).is_some_and(|group| group.can_suspend == Some(false)) {
        return Err(ResumeError::NoCapability);
    }
    match &instance.phase {
        InstancePhase::Suspended(suspension) if suspension.waiter.is_some() => Err(ResumeError::InUse),
        InstancePhase::Suspended(suspension) if suspension.until <= now.at => Err(ResumeError::Unknown),
        InstancePhase::Suspended(_) => Ok(index),
        InstancePhase::Deleting(deleting) => Err(ResumeError::InstanceLost(deleting.reason.to_string())),
        InstancePhase::Booting
        | InstancePhase::Preparing
        | InstancePhase::Ready
        | InstancePhase::Draining(_)
        | InstancePhase::Cordoned { .. } => Err(ResumeError::Unknown),
    }
}

/// # Errors
/// The reason why the instance cannot be suspended.
pub(super) fn check_suspendable(
    inventory: &Inventory,
    index: Index,
    conditions: SuspendConditions,
) -> Result<(), SuspendError> {
    let instance = inventory.pool.get(index).ok_or(SuspendError::InstanceLost)?;
    // Instances may have been shared before the configuration was changed.
    if instance.assigned_slots > 1 {
        return Err(SuspendError::Shared);
    }
    let group = inventory.groups.get(instance.group).ok_or(SuspendError::InstanceLost)?;
    if group.can_suspend == Some(false) {
        return Err(SuspendError::NoCapability);
    }
    let reason = match &instance.phase {
        InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => None,
        InstancePhase::Draining(reason) => Some(reason.to_string()),
        InstancePhase::Cordoned { by, .. } => Some(format!("cordoned by {by}")),
        InstancePhase::Deleting(_) | InstancePhase::Suspended(_) => return Err(SuspendError::InstanceLost),
    };
    let reason = reason.or_else(|| group.drained.as_ref().map(|by| format!("its group was drained by {by}")));
    if let Some(reason) = reason {
        return Err(SuspendError::InstanceTakesNoJobs { reason });
    }
    if conditions.deletes_all {
        return Err(SuspendError::ShuttingDown);
    }
    let suspended = inventory.pool.total_suspended();
    if let Some(max) = inventory.groups.max_instances().filter(|max| suspended + 1 >= *max) {
        return Err(SuspendError::NoSpareInstance { suspended, max });
    }
    let cost = inventory.suspended_cost_per_hour(Some(instance.group));
    if conditions.max_cost_per_hour.is_some_and(|max| cost > max + 1e-9) {
        return Err(SuspendError::CostLimit);
    }
    Ok(())
}

/// Returns an instance to delete if suspended instances reach the maximum number or exceed the maximum cost.
///
/// This is the instance without a waiting job whose environment expires first.
pub(super) fn find_evictable(inventory: &Inventory, max_cost_per_hour: Option<f64>) -> Option<Index> {
    let suspended = inventory.pool.total_suspended();
    let is_at_max = inventory.groups.max_instances().is_some_and(|max| suspended >= max);
    let is_too_expensive = || max_cost_per_hour.is_some_and(|max| inventory.suspended_cost_per_hour(None) > max + 1e-9);
    if suspended == 0 || !(is_at_max || is_too_expensive()) {
        return None;
    }
    let evictable = inventory.pool.iter().filter_map(|(index, instance)| match &instance.phase {
        InstancePhase::Suspended(suspension) if suspension.waiter.is_none() => {
            Some((suspension.until, instance.sequence, index))
        }
        _ => None,
    });
    evictable.min().map(|(.., index)| index)
}

/// Rejected instances of a call, each with the error.
pub(super) fn rejected(
    pool: &Pool,
    group: GroupId,
    ids: &[InstanceId],
    result: Result<Vec<InstanceId>, String>,
) -> Vec<(Index, String)> {
    let (accepted, error) = match result {
        Ok(accepted) => (accepted, "the plugin did not accept it".to_owned()),
        Err(error) => (Vec::new(), error),
    };
    let rejected = ids.iter().filter(|id| !accepted.contains(id));
    rejected.filter_map(|id| Some((pool.find(group, id)?, error.clone()))).collect()
}

pub(super) fn record(inventory: &mut Inventory, now: Now, index: Index, event: SuspendEvent) {
    let Some(instance) = inventory.pool.get(index) else { return };
    let Some(environment) = &instance.saved_environment else { return };
    let (group, id, name) = (instance.group, instance.id.clone(), TaskKey::new(&environment.name));
    inventory.record_decision(now, DecisionKind::Environment { group, id, name, event });
}

fn change<T>(inventory: &mut Inventory, index: Index, change: impl FnOnce(&mut Suspension) -> T) -> Option<T> {
    let changed = inventory.pool.change(index, |instance| match &mut instance.phase {
        InstancePhase::Suspended(suspension) => Some(change(suspension)),
        _ => None,
    });
    changed.flatten()
}
