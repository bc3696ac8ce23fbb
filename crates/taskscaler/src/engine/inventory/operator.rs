//! Operator actions that affect neither jobs nor suspended environments.

use muster_fleeting::model::InstanceId;

use super::Inventory;
use crate::config::Config;
use crate::engine::instance::InstancePhase;
use crate::engine::pool::Index;
use crate::ledger::RowKey;
use crate::operator::{OperatorError, OperatorOutcome};
use crate::time::Now;
use crate::types::{GroupId, RemovalReason};

impl Inventory {
    pub(in crate::engine) fn cordon_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        by: &str,
    ) -> Result<OperatorOutcome, OperatorError> {
        let index = self.pool.find(group, id).ok_or_else(|| self.not_found(group, id))?;
        let instance = self.pool.get(index).ok_or(OperatorError::NoInstance)?;
        let jobs = instance.jobs;
        let pending_removal = match &instance.phase {
            InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => None,
            // The cordon replaces the earlier drain.
            InstancePhase::Draining(reason) if reason.is_revertible() => None,
            InstancePhase::Draining(reason) => Some(reason.clone()),
            InstancePhase::Cordoned { pending_removal, .. } => pending_removal.clone(),
            InstancePhase::Deleting(deleting) => {
                return Err(OperatorError::AlreadyDeleting { reason: deleting.reason.to_string() });
            }
            InstancePhase::Suspended(_) => return Err(OperatorError::Suspended),
        };
        let phase = InstancePhase::Cordoned { by: by.to_owned(), pending_removal };
        self.pool.change(index, |instance| instance.enter(phase, now.at, None));
        self.mark_dirty(index);
        Ok(OperatorOutcome::Cordoned { jobs })
    }

    /// Reverts a cordon or a drain. Returns the instance, and the reason if it must be drained anyway.
    pub(in crate::engine) fn uncordon_instance(
        &mut self,
        now: Now,
        config: &Config,
        group: GroupId,
        id: &InstanceId,
    ) -> Result<(Index, Option<RemovalReason>), OperatorError> {
        let index = self.pool.find(group, id).ok_or_else(|| self.not_found(group, id))?;
        let instance = self.pool.get(index).ok_or(OperatorError::NoInstance)?;
        let drained_by = self.groups.get(group).and_then(|group| group.drained.clone());
        let pending_removal = match &instance.phase {
            InstancePhase::Cordoned { pending_removal, .. } => {
                pending_removal.clone().or_else(|| drained_by.map(|by| RemovalReason::GroupDrained { by }))
            }
            InstancePhase::Draining(reason) if reason.is_revertible() => match drained_by {
                Some(by) => return Err(OperatorError::GroupDrained { by }),
                None => None,
            },
            InstancePhase::Draining(reason) => {
                return Err(OperatorError::AlreadyDeleting { reason: reason.to_string() });
            }
            InstancePhase::Deleting(deleting) => {
                return Err(OperatorError::AlreadyDeleting { reason: deleting.reason.to_string() });
            }
            InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready | InstancePhase::Suspended(_) => {
                return Err(OperatorError::NotCordoned);
            }
        };
        self.reset_to_booting(now, config, index);
        Ok((index, pending_removal))
    }

    /// Prepares an instance again, because the operator may have changed anything on it.
    fn reset_to_booting(&mut self, now: Now, config: &Config, index: Index) {
        let due = Some(now.at + config.boot_timeout);
        let group = self.pool.change(index, |instance| {
            instance.requested_at = now.at;
            instance.timing_is_valid = false;
            instance.enter(InstancePhase::Booting, now.at, due);
            instance.group
        });
        self.mark_dirty(index);
        if let Some(group) = group {
            self.list_now(now, group);
        }
    }

    pub(in crate::engine) fn drain_group(&mut self, id: GroupId, by: &str) -> Result<(), OperatorError> {
        let group = self.groups.get_mut(id).ok_or(OperatorError::NoGroup)?;
        group.drained = Some(by.to_owned());
        self.mark_drained_dirty(id);
        Ok(())
    }

    /// Ends the drain of a group. Its instances that still have jobs are then not deleted.
    pub(in crate::engine) fn undrain_group(
        &mut self,
        now: Now,
        config: &Config,
        id: GroupId,
    ) -> Result<OperatorOutcome, OperatorError> {
        let group = self.groups.get_mut(id).ok_or(OperatorError::NoGroup)?;
        group.drained.take().ok_or(OperatorError::NotCordoned)?;
        self.mark_drained_dirty(id);
        let is_drained =
            |phase: &InstancePhase| matches!(phase, InstancePhase::Draining(RemovalReason::GroupDrained { .. }));
        for index in self.pool.of_group(id) {
            if self.pool.get(index).is_some_and(|instance| is_drained(&instance.phase)) {
                self.reset_to_booting(now, config, index);
            }
        }
        Ok(OperatorOutcome::GroupUndrained)
    }

    /// Returns who drained the group, and its instances that must be drained and are not yet.
    ///
    /// `None` if the group is not drained.
    pub(in crate::engine) fn instances_to_drain(&self, id: GroupId) -> Option<(String, Vec<Index>)> {
        let by = self.groups.get(id)?.drained.clone()?;
        let must_be_drained = |phase: &InstancePhase| match phase {
            InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => true,
            // If a job is resuming the instance, the instance is deleted after that job.
            InstancePhase::Suspended(suspension) => suspension.waiter.is_none(),
            InstancePhase::Draining(_) | InstancePhase::Deleting(_) | InstancePhase::Cordoned { .. } => false,
        };
        let mut instances = self.pool.of_group(id);
        instances.retain(|index| self.pool.get(*index).is_some_and(|instance| must_be_drained(&instance.phase)));
        Some((by, instances))
    }

    /// Removes an instance from the list of unmanaged instances. Does not delete it.
    pub(in crate::engine) fn forget_unmanaged(&mut self, group: GroupId, id: &InstanceId) -> Result<(), OperatorError> {
        let state = self.groups.get_mut(group).ok_or(OperatorError::NoGroup)?;
        if !state.unmanaged.remove(id) {
            return Err(OperatorError::NoInstance);
        }
        self.mark_unmanaged_dirty(group, id);
        Ok(())
    }

    fn mark_drained_dirty(&mut self, id: GroupId) {
        self.mark_group_row(id, |group| RowKey::DrainedGroup { group });
    }

    fn not_found(&self, group: GroupId, id: &InstanceId) -> OperatorError {
        match self.groups.get(group) {
            None => OperatorError::NoGroup,
            Some(group) if group.unmanaged.contains(id) => OperatorError::Unmanaged,
            Some(_) => OperatorError::NoInstance,
        }
    }
}
