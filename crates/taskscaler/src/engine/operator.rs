//! Manual operations: cordoned instances, drained groups and instances, deletions.

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::instance::InstancePhase;
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::ledger::RowKey;
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::time::Now;
use crate::types::{GroupId, LossReason, RemovalReason};

impl Engine {
    /// Carries out an operation and reports its outcome with [`Action::OperatorReply`].
    pub(super) fn apply_operator_action(
        &mut self,
        now: Now,
        request: u64,
        (group, id): (GroupId, Option<InstanceId>),
        action: OperatorAction,
        by: String,
    ) {
        let result = match (&id, action) {
            (Some(id), OperatorAction::Cordon) => self.cordon_instance(now, group, id, &by),
            (Some(id), OperatorAction::Uncordon) => self.uncordon_instance(now, group, id),
            (Some(id), OperatorAction::Drain) => self.drain_instance(now, group, id, &by),
            (Some(id), OperatorAction::Delete { force }) => self.delete_instance(now, group, id, force, &by),
            (None, OperatorAction::Drain) => self.drain_group(now, group, &by),
            (None, OperatorAction::Uncordon) => self.undrain_group(now, group),
            (None, OperatorAction::Cordon | OperatorAction::Delete { .. }) => Err(OperatorError::NotAnInstance),
        };
        if let Ok(outcome) = &result {
            self.decide(now, DecisionKind::Operator { group, id, action, by, outcome: outcome.clone() });
        }
        self.actions.push(Action::OperatorReply { request, result });
    }

    fn cordon_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        by: &str,
    ) -> Result<OperatorOutcome, OperatorError> {
        let index = self.pool.find(group, id).ok_or_else(|| self.unknown(group, id))?;
        let instance = self.pool.get(index).ok_or(OperatorError::NoInstance)?;
        let jobs = instance.jobs;
        let then = match &instance.state {
            InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => None,
            // The later operation replaces the earlier one.
            InstancePhase::Draining(RemovalReason::Operator { .. } | RemovalReason::GroupDrained { .. }) => None,
            InstancePhase::Draining(why) => Some(why.clone()),
            InstancePhase::Cordoned { pending_removal: then, .. } => then.clone(),
            InstancePhase::Deleting(deleting) => {
                return Err(OperatorError::AlreadyDeleting { reason: deleting.reason.to_string() });
            }
            InstancePhase::Suspended(_) => return Err(OperatorError::Suspended),
        };
        let state = InstancePhase::Cordoned { by: by.to_owned(), pending_removal: then };
        self.pool.change(index, |instance| instance.enter(state, now.at, None));
        self.mark_dirty(index);
        Ok(OperatorOutcome::Cordoned { jobs })
    }

    fn uncordon_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
    ) -> Result<OperatorOutcome, OperatorError> {
        let index = self.pool.find(group, id).ok_or_else(|| self.unknown(group, id))?;
        let instance = self.pool.get(index).ok_or(OperatorError::NoInstance)?;
        let drained = self.group(group).and_then(|group| group.drained.clone());
        let then = match (&instance.state, drained) {
            (InstancePhase::Cordoned { pending_removal: then, .. }, drained) => {
                then.clone().or_else(|| drained.map(|by| RemovalReason::GroupDrained { by }))
            }
            (
                InstancePhase::Draining(RemovalReason::GroupDrained { .. } | RemovalReason::Operator { .. }),
                Some(by),
            ) => {
                return Err(OperatorError::GroupDrained { by });
            }
            (InstancePhase::Draining(RemovalReason::GroupDrained { .. } | RemovalReason::Operator { .. }), None) => {
                None
            }
            (InstancePhase::Draining(why), _) => {
                return Err(OperatorError::AlreadyDeleting { reason: why.to_string() });
            }
            (InstancePhase::Deleting(deleting), _) => {
                return Err(OperatorError::AlreadyDeleting { reason: deleting.reason.to_string() });
            }
            (
                InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready | InstancePhase::Suspended(_),
                _,
            ) => {
                return Err(OperatorError::NotCordoned);
            }
        };
        self.reset_to_booting(now, index);
        Ok(match then {
            Some(why) => {
                self.drain_or_delete(now, index, why.clone());
                OperatorOutcome::UncordonedForRemoval { reason: why.to_string() }
            }
            None => OperatorOutcome::Uncordoned,
        })
    }

    /// Treats an instance as new, because the operator may have changed anything on it.
    fn reset_to_booting(&mut self, now: Now, index: usize) {
        let due = Some(now.at + self.config.boot_timeout);
        let group = self.pool.change(index, |instance| {
            instance.requested_at = now.at;
            instance.timing_is_valid = false;
            instance.enter(InstancePhase::Booting, now.at, due);
            instance.group
        });
        self.mark_dirty(index);
        if let Some(group) = group.and_then(|group| self.group_mut(group)) {
            group.list_schedule.urgent = Some(now.at);
        }
    }

    fn drain_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        by: &str,
    ) -> Result<OperatorOutcome, OperatorError> {
        let Some(index) = self.pool.find(group, id) else { return self.delete_unmanaged(now, group, id, by) };
        let jobs = self.pool.get(index).map_or(0, |instance| instance.jobs);
        self.drain_or_delete(now, index, RemovalReason::Operator { by: by.to_owned() });
        Ok(OperatorOutcome::Draining { jobs })
    }

    fn delete_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        force: bool,
        by: &str,
    ) -> Result<OperatorOutcome, OperatorError> {
        let Some(index) = self.pool.find(group, id) else { return self.delete_unmanaged(now, group, id, by) };
        let jobs = self.pool.get(index).map_or(0, |instance| instance.jobs);
        if jobs > 0 && !force {
            return Err(OperatorError::HasJobs { jobs });
        }
        self.lose_leases(now, index, &LossReason::Operator { by: by.to_owned() });
        self.delete(now, index, RemovalReason::Operator { by: by.to_owned() });
        Ok(OperatorOutcome::Deleting { jobs })
    }

    /// Deletes an instance that this manager did not create. It has no jobs.
    fn delete_unmanaged(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        by: &str,
    ) -> Result<OperatorOutcome, OperatorError> {
        let group_state = self.group_mut(group).ok_or(OperatorError::NoGroup)?;
        group_state.unmanaged.remove(id).ok_or(OperatorError::NoInstance)?;
        self.mark_unmanaged_dirty(group, id);
        let index = self.adopt(now, group, id.clone(), true);
        self.delete(now, index, RemovalReason::Operator { by: by.to_owned() });
        Ok(OperatorOutcome::Deleting { jobs: 0 })
    }

    fn drain_group(&mut self, now: Now, id: GroupId, by: &str) -> Result<OperatorOutcome, OperatorError> {
        let group = self.group_mut(id).ok_or(OperatorError::NoGroup)?;
        group.drained = Some(by.to_owned());
        self.mark_drained_dirty(id);
        Ok(OperatorOutcome::GroupDrained { instances: self.drain_group_instances(now, id) })
    }

    fn undrain_group(&mut self, now: Now, id: GroupId) -> Result<OperatorOutcome, OperatorError> {
        let group = self.group_mut(id).ok_or(OperatorError::NoGroup)?;
        group.drained.take().ok_or(OperatorError::NotCordoned)?;
        self.mark_drained_dirty(id);
        for index in self.pool.of_group(id) {
            let goes =
                |state: &InstancePhase| matches!(state, InstancePhase::Draining(RemovalReason::GroupDrained { .. }));
            if self.pool.get(index).is_some_and(|instance| goes(&instance.state)) {
                self.reset_to_booting(now, index);
            }
        }
        Ok(OperatorOutcome::GroupUndrained)
    }

    /// Drains the instances of a drained group, including those that appear later. Returns how many were not drained before.
    pub(super) fn drain_group_instances(&mut self, now: Now, id: GroupId) -> u32 {
        let Some(by) = self.group(id).and_then(|group| group.drained.clone()) else { return 0 };
        let mut going = 0;
        for index in self.pool.of_group(id) {
            // A suspended instance that a job is resuming is deleted after that job.
            let stays = |state: &InstancePhase| match state {
                InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => true,
                InstancePhase::Suspended(sleep) => sleep.waiter.is_none(),
                InstancePhase::Draining(_) | InstancePhase::Deleting(_) | InstancePhase::Cordoned { .. } => false,
            };
            if self.pool.get(index).is_some_and(|instance| stays(&instance.state)) {
                self.drain_or_delete(now, index, RemovalReason::GroupDrained { by: by.clone() });
                going += 1;
            }
        }
        going
    }

    fn mark_drained_dirty(&mut self, id: GroupId) {
        if let Some(group) = self.group(id).map(|group| group.config.name.clone()) {
            self.dirty.insert(RowKey::DrainedGroup { group });
        }
    }

    fn unknown(&self, group: GroupId, id: &InstanceId) -> OperatorError {
        match self.group(group) {
            None => OperatorError::NoGroup,
            Some(group) if group.unmanaged.contains_key(id) => OperatorError::Unmanaged,
            Some(_) => OperatorError::NoInstance,
        }
    }
}
