//! Reservations, waiting requests, leases.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::instance::InstancePhase;
use super::queue::QueuedRequest;
use super::scale::MAX_CANDIDATES;
use super::{Engine, LeaseLocation};
use crate::decision::{DecisionKind, ScaleUpBlock};
use crate::event::Action;
use crate::formula::{self, Inputs};
use crate::suspend::ResumeError;
use crate::time::Now;
use crate::types::{GroupId, LossReason, RemovalReason, SlotAssignment, SlotRequest, TaskKey};

/// Why no job should be requested now.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoCapacity {
    /// Nothing is free, and nothing more can be made.
    #[error("no capacity: no immediately available or potential capacity ({facts}){}", reasons(.why))]
    NoneAvailableOrPending {
        /// Slots by what they are.
        facts: String,
        /// Why no more can be made, for each group.
        why: Vec<(String, ScaleUpBlock)>,
    },
    /// Nothing is free, and the policy is preemptive.
    #[error("no capacity: no immediately available capacity ({facts}){}", reasons(.why))]
    NoneAvailable {
        /// Slots by what they are.
        facts: String,
        /// Why no more are made, for each group that makes none.
        why: Vec<(String, ScaleUpBlock)>,
    },
    /// What is given away cannot be stored.
    #[error("no capacity: {why}")]
    LedgerUnavailable {
        /// Why not.
        why: String,
    },
}

impl NoCapacity {
    /// After how long time alone may change it; none: only an event will.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let (Self::NoneAvailableOrPending { why, .. } | Self::NoneAvailable { why, .. }) = self else { return None };
        let pause =
            |hold: &ScaleUpBlock| if let ScaleUpBlock::BackOff { pause, .. } = hold { Some(*pause) } else { None };
        why.iter().filter_map(|(_, hold)| pause(hold)).min()
    }
}

fn reasons(why: &[(String, ScaleUpBlock)]) -> String {
    why.iter().map(|(group, hold)| format!("; group {group}: {hold}")).collect()
}

/// Why a slot cannot be waited for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    /// There was no [`Engine::reserve`] before.
    #[error("reservation not found: {key}")]
    NotReserved {
        /// Whose.
        key: TaskKey,
    },
    /// The key waits, or has a slot.
    #[error("{key} waits for a slot, or has one, already")]
    AlreadyQueued {
        /// Whose.
        key: TaskKey,
    },
    /// The environment that it asks for is not to be had.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The scaler ends.
    #[error("no slot for {key}: the scaler ends")]
    Stopping {
        /// Whose.
        key: TaskKey,
    },
}

impl Engine {
    /// Promises a slot, before a job is requested (fleeting.md 7.6). A key that is reserved already is a success.
    ///
    /// # Errors
    /// [`NoCapacity`]: no job should be requested, and why.
    pub fn reserve(&mut self, now: Now, key: TaskKey) -> Result<(), NoCapacity> {
        if self.reservations.contains(&key) {
            return Ok(());
        }
        if let Some(refusal) = self.refusal(now) {
            return Err(refusal);
        }
        self.request_begins(now);
        self.reservations.insert(key);
        Ok(())
    }

    /// Why one more slot cannot be promised now; none: it can.
    pub fn refusal(&mut self, now: Now) -> Option<NoCapacity> {
        self.look_up_policy(now);
        let reserved = self.reservations.len() as u64;
        let available = self.pool.sums().free.saturating_sub(reserved);
        if available > 0 {
            return None;
        }
        let held = self.scale_up_blocks(now);
        let is_in_sight = !self.stopping && self.future_slots(&held) > reserved;
        let is_preemptive = self.idle_target.idle_count > 0 && self.idle_target.preemptive;
        if is_in_sight && (!is_preemptive || self.may_reserve_ahead(now)) {
            self.last_refusal = None;
            return None;
        }
        self.last_refusal = Some(now.at);
        let why = self.with_group_names(held.into_iter().filter_map(|(group, hold)| Some((group, hold?))).collect());
        let facts = self.slot_summary();
        Some(if is_in_sight {
            NoCapacity::NoneAvailable { facts, why }
        } else {
            NoCapacity::NoneAvailableOrPending { facts, why }
        })
    }

    /// Promises a slot for a job that is here already, as after a restart: it will wait, however long.
    pub fn admit(&mut self, key: TaskKey) {
        self.reservations.insert(key);
    }

    /// A promise that was made before its job was known goes on under the job's own name, also one that was withdrawn
    /// meanwhile: the job is here.
    pub fn rename(&mut self, from: &TaskKey, to: TaskKey) {
        self.reservations.remove(from);
        self.reservations.insert(to);
    }

    /// Takes back promises that nothing stands behind any more: those beyond what is in sight, and by a preemptive policy
    /// those for which instances would be kept idle for longer than it says, and those too far ahead of free slots.
    pub(super) fn revoke_reservations(&mut self, now: Now) {
        let reserved = self.reservations.len() as u64;
        let promises = reserved.saturating_sub(self.queue.len() as u64);
        if promises == 0 {
            return;
        }
        let held = self.scale_up_blocks(now);
        let in_sight = self.pool.sums().free.max(self.future_slots(&held));
        let over =
            reserved.saturating_sub(in_sight).max(self.overretained(now)).max(self.reservations_too_far_ahead(now));
        if over == 0 {
            return;
        }
        let mut keys: Vec<TaskKey> =
            self.reservations.iter().filter(|key| self.queue.get(key).is_none()).cloned().collect();
        keys.sort_unstable();
        for key in keys.into_iter().take(usize::try_from(over).unwrap_or(usize::MAX)) {
            self.reservations.remove(&key);
            self.actions.push(Action::RevokeReservation { key });
        }
    }

    /// Promises that are all that keeps instances which have been idle for the policy's time.
    fn overretained(&self, now: Now) -> u64 {
        let inputs = self.inputs(now);
        let wanted = formula::idle_target(&inputs).max(inputs.unusable).max(inputs.retained_idle);
        if inputs.reserved <= wanted {
            return 0;
        }
        let surplus = formula::surplus(&inputs);
        let kept = formula::surplus(&Inputs { reserved: 0, ..inputs }) - surplus;
        let idle_time = self.idle_target.idle_time;
        let groups = (0..self.groups.len()).map(GroupId);
        let idle = groups.flat_map(|group| self.pool.idle(group, now.at, idle_time, MAX_CANDIDATES));
        // Those that are too many in spite of the promises go first.
        idle.map(|(_, index)| self.pool.offered_slots(index)).sum::<u64>().saturating_sub(surplus).min(kept)
    }

    /// Waits for a slot; [`Action::Grant`] gives it, perhaps at once.
    ///
    /// # Errors
    /// [`AcquireError`].
    pub fn acquire(&mut self, now: Now, key: TaskKey, request: &SlotRequest) -> Result<(), EnqueueError> {
        if self.stopping {
            return Err(EnqueueError::Stopping { key });
        }
        if !self.reservations.contains(&key) {
            return Err(EnqueueError::NotReserved { key });
        }
        let SlotRequest { job_kind: work, sticky_context: context, avoid, .. } = *request;
        let waiter = QueuedRequest {
            key: key.clone(),
            since: now.at,
            slots: self.slots_for(request),
            job_kind: work,
            context,
            avoid,
        };
        if self.leases.contains_key(&key) || !self.queue.push(waiter) {
            return Err(EnqueueError::AlreadyQueued { key });
        }
        self.advance(now);
        Ok(())
    }

    /// After a restart: the lease that the key has from before.
    pub fn claim(&mut self, key: &TaskKey) -> Option<SlotAssignment> {
        let place = *self.leases.get(key)?;
        self.unclaimed.remove(key);
        self.lease_at(key, place)
    }

    /// Slots that are there or can be: those of instances, of those on their way, and of those that can be asked for.
    fn future_slots(&self, holds: &[(GroupId, Option<ScaleUpBlock>)]) -> u64 {
        let sums = self.pool.sums();
        let usable = u64::from(self.config.slots_per_new_instance());
        let slots =
            (sums.supply * u64::from(self.config.capacity.get())).saturating_sub(sums.unavailable + sums.acquired);
        holds.iter().fold(slots, |slots, (group, hold)| {
            let expected = self.group(*group).map_or(0, |group| u64::from(group.expected_usable()));
            let more = match hold {
                // A place will be free when one that goes is gone.
                Some(ScaleUpBlock::AtMax { deleting: leaving, stuck, .. }) => {
                    u64::from(leaving.saturating_sub(stuck.count))
                }
                Some(ScaleUpBlock::Throttled | ScaleUpBlock::PartialGrant) | None => self.instance_headroom(*group),
                // One attempt shows whether it works again.
                Some(ScaleUpBlock::Probing { .. }) => 1,
                Some(_) => 0,
            };
            slots.saturating_add((expected + more).saturating_mul(usable))
        })
    }

    fn slot_summary(&self) -> String {
        let sums = self.pool.sums();
        let coming = self.expected();
        let unready = (sums.supply * u64::from(self.config.capacity.get()))
            .saturating_sub(sums.acquired + sums.unavailable + sums.free);
        format!(
            "idle:{},acquired:{},unavailable:{},unready:{unready},reserved:{},coming:{coming}",
            sums.free,
            sums.held,
            sums.unavailable,
            self.reservations.len()
        )
    }

    pub(super) fn with_group_names(&self, holds: Vec<(GroupId, ScaleUpBlock)>) -> Vec<(String, ScaleUpBlock)> {
        let name = |id| self.group(id).map_or_else(String::new, |group: &super::GroupState| group.config.name.clone());
        holds.into_iter().map(|(group, hold)| (name(group), hold)).collect()
    }

    pub(super) fn lease_at(&self, key: &TaskKey, place: LeaseLocation) -> Option<SlotAssignment> {
        let instance = self.pool.get(place.index)?;
        let slot = u32::try_from(place.slot).ok()?;
        let (group, id) = (instance.group, instance.id.clone());
        Some(SlotAssignment {
            key: key.clone(),
            group,
            instance: id,
            slot,
            slots: place.slots,
            use_number: instance.job_count,
        })
    }

    /// Frees a slot. An instance that is used up goes at once (S12).
    pub(super) fn release(&mut self, now: Now, key: &TaskKey) {
        let Some(index) = self.remove_lease(now, key) else { return };
        self.decide(now, DecisionKind::Released { key: key.clone() });
        self.on_release(now, index);
    }

    /// Takes the slot from the books.
    pub(super) fn remove_lease(&mut self, now: Now, key: &TaskKey) -> Option<usize> {
        let place = self.leases.remove(key)?;
        self.unclaimed.remove(key);
        self.pool.change(place.index, |instance| {
            instance.free(key, now.at);
            instance.resumed_environment = None;
            if instance.held == 0 {
                (instance.idle_since, instance.idle_unix) = (now.at, now.unix);
            }
        });
        self.mark_dirty(place.index);
        Some(place.index)
    }

    /// What comes of an instance when a lease of it has ended.
    pub(super) fn on_release(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.held > 0 {
            return;
        }
        let used = instance.job_count;
        match instance.state.clone() {
            InstancePhase::Draining(why) => self.delete(now, index, why),
            // Who keeps it wants to look at it, also where it is used up.
            InstancePhase::Deleting(_) | InstancePhase::Cordoned { .. } | InstancePhase::Suspended(_) => {}
            _ if self.config.max_uses.is_some_and(|max| used >= max.get()) => {
                self.delete(now, index, RemovalReason::MaxUsesReached { uses: used });
            }
            _ => {}
        }
    }

    /// The instance is no more: its leases end, and it leaves the books.
    pub(super) fn gone(&mut self, now: Now, index: usize, cause: LossReason) {
        self.lose_leases(now, index, &cause);
        self.fail_resume(now, index, &cause.to_string());
        let Some(instance) = self.pool.remove(index) else { return };
        let deletion = match &instance.state {
            InstancePhase::Deleting(deleting) if deleting.attempts > 0 => Some(now.at.since(deleting.since)),
            _ => None,
        };
        let (group, id) = (instance.group, instance.id);
        if let Some(of) = self.groups.get_mut(group.0) {
            of.remember_deleted(id.clone(), now);
            if let Some(took) = deletion {
                of.deletion.learn(took);
            }
        }
        self.mark_id_dirty(group, &id);
        let life = now.at.since(instance.first_seen);
        self.decide(now, DecisionKind::Deleted { group, id: id.clone(), lifetime: life, deletion });
        self.actions.push(Action::ForgetInstance { group, id });
    }

    /// Ends all leases of an instance that is going or gone by itself.
    pub(super) fn lose_leases(&mut self, now: Now, index: usize, cause: &LossReason) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.held == 0 {
            return;
        }
        let (group, id): (GroupId, InstanceId) = (instance.group, instance.id.clone());
        let jobs: Vec<TaskKey> = instance.keys().map(|(_, key)| key.clone()).collect();
        for key in &jobs {
            self.remove_lease(now, key);
            self.actions.push(Action::Lost { key: key.clone(), reason: cause.clone() });
        }
        self.decide(now, DecisionKind::Lost { group, id, reason: cause.clone(), jobs });
    }
}
