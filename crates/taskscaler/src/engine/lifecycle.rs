//! Transitions of instances: effects of lists, plugins, health checks, timers and operators.

use muster_fleeting::model::{InstanceId, InstanceState};

use super::Engine;
use super::deletion::RECHECK_INTERVAL;
use super::group::Discovery;
use super::instance::{Deleting, InstancePhase, MIN_MISS_SPAN, MissCounter};
use super::list_schedule::{ExpectedChanges, ListDemand};
use super::pool::Index;
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::event::Action;
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::time::{Now, Time};
use crate::types::{GroupId, LossReason, RemovalReason};

impl Engine {
    pub(super) fn start_lists(&mut self, now: Now) {
        for id in self.inventory.groups.ids() {
            if self.next_list(id).is_none_or(|next| next > now.at) {
                continue;
            }
            let call = self.inventory.allocate_number();
            if let Some(group) = self.inventory.groups.get_mut(id) {
                group.list_calls.start(call, now.at);
                self.inventory.push_action(Action::List { group: id, call });
            }
        }
    }

    /// `None` while the plugin is down.
    pub(super) fn next_list(&self, id: GroupId) -> Option<Time> {
        let (group, pool) = (self.inventory.groups.get(id)?, &self.inventory.pool);
        if group.is_plugin_down() {
            return None;
        }
        let arrivals = merge_spans(group.requests.pending_since(), pool.arrival_span(id));
        let changes = |span: Option<(Time, Time)>, typical| {
            span.map(|(oldest, youngest)| ExpectedChanges { oldest, youngest, typical })
        };
        let demand = ListDemand {
            arrivals: changes(arrivals, group.boot.fastest),
            deletions: changes(pool.deletion_span(id), group.deletion.fastest),
            has_waiting_jobs: !self.queue.is_empty() || self.suspensions.has_waiters(),
            last_refusal: self.reservations.last_refusal(),
        };
        Some(group.list_calls.next(&self.config, &demand))
    }

    /// An outdated list is ignored.
    pub(super) fn handle_list(
        &mut self,
        now: Now,
        id: GroupId,
        call: u64,
        result: Result<Vec<(InstanceId, InstanceState)>, String>,
    ) {
        let jitter = self.inventory.jitter();
        let Some(group) = self.inventory.groups.get_mut(id) else { return };
        let Some(started) = group.list_calls.finish(call) else { return };
        match result {
            Err(error) => {
                let failures = group.list_calls.record_failure(now.at, error.clone(), jitter);
                self.inventory.record_decision(now, DecisionKind::ListFailed { group: id, error, failures });
            }
            Ok(list) => {
                group.list_calls.record_success(started, now.at);
                group.is_listed = true;
                self.reconcile(now, id, call, list);
            }
        }
    }

    fn reconcile(&mut self, now: Now, group: GroupId, call: u64, list: Vec<(InstanceId, InstanceState)>) {
        for (id, state) in list {
            match self.inventory.pool.find(group, &id) {
                Some(index) => self.observe(now, index, call, state),
                None => self.observe_unknown(now, group, call, id, state),
            }
        }
        if let Some(state) = self.inventory.groups.get_mut(group) {
            let lost = state.unmanaged.remove_missing(call, now.at);
            let forgotten = state.deleted.forget_old(now.at);
            for id in lost {
                self.inventory.mark_unmanaged_dirty(group, &id);
            }
            for id in forgotten {
                self.inventory.mark_id_dirty(group, &id);
            }
        }
        for index in self.inventory.pool.unlisted(group, call) {
            self.handle_missing(now, index);
        }
        self.apply_early_retirements(now, group);
    }

    fn observe(&mut self, now: Now, index: Index, call: u64, listed: InstanceState) {
        let pool = &mut self.inventory.pool;
        if pool.get(index).is_some_and(|instance| instance.misses.is_missing()) {
            pool.change(index, |instance| instance.misses = MissCounter::default());
        }
        pool.mark_listed(index, call);
        let Some(instance) = pool.get(index) else { return };
        match (&instance.phase, listed) {
            (_, InstanceState::Deleted | InstanceState::Timeout) => {
                self.remove_instance(now, index, LossReason::ProviderDeleted);
            }
            (InstancePhase::Deleting(_), _) => {}
            (_, InstanceState::Deleting) => self.handle_provider_deletion(now, index),
            (InstancePhase::Suspended(_), _) => {
                let removal = self.suspensions.observe(&mut self.inventory, now, index, listed);
                self.delete_if(now, index, removal);
            }
            (InstancePhase::Booting, InstanceState::Running) => self.inventory.prepare(now, &self.config, index),
            (
                InstancePhase::Ready | InstancePhase::Draining(_) | InstancePhase::Preparing,
                InstanceState::Suspending | InstanceState::Suspended,
            ) if now.at >= instance.ignore_lists_before => {
                // This manager did not suspend the instance, so it gives up the jobs there. The delete call is due now,
                // because the provider does not delete the instance itself.
                self.handle_provider_deletion(now, index);
                self.inventory.pool.change(index, |instance| instance.due = Some(now.at));
            }
            _ => {}
        }
    }

    fn observe_unknown(&mut self, now: Now, group: GroupId, call: u64, id: InstanceId, listed: InstanceState) {
        let Some(state) = self.inventory.groups.get_mut(group) else { return };
        if listed.is_deleted() {
            if state.unmanaged.remove(&id) {
                self.inventory.mark_unmanaged_dirty(group, &id);
            }
        } else if !state.unmanaged.record_listed(&id, call) {
            self.discover(now, group, call, id, listed);
        }
    }

    fn discover(&mut self, now: Now, group: GroupId, call: u64, id: InstanceId, listed: InstanceState) {
        let Some(state) = self.inventory.groups.get_mut(group) else { return };
        let discovery = state.discover(now.at, &id, listed, self.config.unmanaged);
        let (origin, created_elsewhere, after) = match &discovery {
            Discovery::Unmanaged => {
                state.unmanaged.insert(id.clone(), call, now.unix);
                self.inventory.mark_unmanaged_dirty(group, &id);
                self.inventory.record_decision(now, DecisionKind::Unmanaged { group, id, state: listed });
                return;
            }
            Discovery::Reappeared => {
                let index = self.inventory.add_instance(now, &self.config, (group, id), false);
                self.inventory.pool.mark_listed(index, call);
                self.delete(now, index, RemovalReason::Reappeared);
                if listed == InstanceState::Deleting {
                    self.postpone_deletion_call(now, index);
                }
                return;
            }
            Discovery::Requested(matched) => {
                let is_late = matched.is_late;
                let origin = if is_late { InstanceOrigin::RequestedLate } else { InstanceOrigin::Requested };
                (origin, false, now.at.since(matched.request.requested_at))
            }
            Discovery::Adopted => (InstanceOrigin::Adopted, true, std::time::Duration::ZERO),
            Discovery::Unwanted => (InstanceOrigin::Unmanaged, true, std::time::Duration::ZERO),
        };
        let index = self.inventory.add_instance(now, &self.config, (group, id.clone()), created_elsewhere);
        let is_unwanted = matches!(discovery, Discovery::Unwanted);
        if let Discovery::Requested(matched) = discovery {
            self.inventory.pool.change(index, |instance| {
                instance.requested_at = matched.request.requested_at;
                instance.timing_is_valid = matched.request.timing_is_valid();
            });
            self.inventory.mark_requests_dirty(group, matched.changed);
        }
        self.inventory.record_decision(now, DecisionKind::Discovered { group, id, origin, after });
        if is_unwanted {
            self.inventory.pool.mark_listed(index, call);
            self.delete(now, index, RemovalReason::Unmanaged);
        } else {
            self.observe(now, index, call, listed);
        }
    }

    fn handle_missing(&mut self, now: Now, index: Index) {
        let Some(instance) = self.inventory.pool.get(index) else { return };
        if instance.is_deleting() {
            return self.remove_instance(now, index, LossReason::Missing);
        }
        let (group, id) = (instance.group, instance.id.clone());
        let not_found_since_restart = instance.created_elsewhere && instance.last_list == 0;
        let is_lost = self.inventory.pool.change(index, |instance| instance.misses.record_miss(now.at));
        if is_lost == Some(true) {
            let reason = if not_found_since_restart { LossReason::MissingAfterRestart } else { LossReason::Missing };
            return self.remove_instance(now, index, reason);
        }
        self.inventory.record_decision(now, DecisionKind::MissingFromList { group, id });
        if let Some(group) = self.inventory.groups.get_mut(group) {
            group.list_calls.request_by(now.at + MIN_MISS_SPAN);
        }
    }

    pub(super) fn handle_prepared(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        let Some(index) = self.inventory.pool.find(group, id) else { return };
        match self.inventory.pool.get(index).map(|instance| &instance.phase) {
            Some(InstancePhase::Suspended(_)) => return self.handle_resume_prepared(now, index, result),
            Some(InstancePhase::Preparing) => {}
            _ => return,
        }
        match result {
            Ok(()) => {
                let idle_time = self.plan.target().idle_time;
                let removal = self.inventory.become_ready(now, &self.config, idle_time, index);
                self.delete_if(now, index, removal);
            }
            Err(error) => {
                let message = format!("instance {id} did not become ready: {error}");
                self.handle_not_ready(now, index, RemovalReason::ReadyTimeout { error }, message);
            }
        }
    }

    pub(super) fn handle_health(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        let Some(index) = self.inventory.pool.find(group, id) else { return };
        if let Some(reason) = self.inventory.record_health(now, &self.config, index, result) {
            self.drain_or_delete(now, index, reason);
        }
    }

    /// Drains an instance. If no list has reported it yet, it is drained as soon as a list reports it.
    pub(super) fn retire_instance(&mut self, now: Now, group: GroupId, id: &InstanceId, reason: String) {
        if let Some(index) = self.inventory.pool.find(group, id) {
            self.drain_or_delete(now, index, RemovalReason::Retired { reason });
        } else if let Some(group) = self.inventory.groups.get_mut(group) {
            group.early_retirements.insert(id.clone(), reason, now.at);
        }
    }

    fn apply_early_retirements(&mut self, now: Now, group: GroupId) {
        let (pool, groups) = (&self.inventory.pool, &mut self.inventory.groups);
        let Some(state) = groups.get_mut(group) else { return };
        for (id, reason) in state.early_retirements.take_known(|id| pool.find(group, id).is_some()) {
            if let Some(index) = self.inventory.pool.find(group, &id) {
                self.drain_or_delete(now, index, RemovalReason::Retired { reason });
            }
        }
    }

    pub(super) fn run_due_timers(&mut self, now: Now) {
        while let Some((due, index)) = self.inventory.pool.first_due()
            && due <= now.at
        {
            let Some(instance) = self.inventory.pool.get(index) else { return };
            match instance.phase {
                InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready
                    if self.inventory.is_plugin_down(index) =>
                {
                    self.inventory.pool.change(index, |instance| instance.due = Some(now.at + RECHECK_INTERVAL));
                }
                InstancePhase::Booting => {
                    let limit = self.config.boot_timeout.as_secs();
                    let message = format!("instance {} was not running within {limit} s", instance.id);
                    self.handle_not_ready(now, index, RemovalReason::BootTimeout, message);
                }
                InstancePhase::Preparing => {
                    let error = format!("not ready within {} s", self.config.ready_timeout.as_secs());
                    let message = format!("instance {} did not become ready: {error}", instance.id);
                    self.handle_not_ready(now, index, RemovalReason::ReadyTimeout { error }, message);
                }
                InstancePhase::Ready => self.inventory.check_health(now, &self.config, index),
                InstancePhase::Suspended(_) => {
                    let removal = self.suspensions.advance(&mut self.inventory, now, index);
                    self.delete_if(now, index, removal);
                }
                InstancePhase::Deleting(_) => self.deletions.add_due(&mut self.inventory, index),
                InstancePhase::Draining(_) | InstancePhase::Cordoned { .. } => {
                    self.inventory.pool.change(index, |instance| instance.due = None);
                }
            }
        }
    }

    fn handle_not_ready(&mut self, now: Now, index: Index, reason: RemovalReason, error: String) {
        let Some(group) = self.inventory.pool.get(index).map(|instance| instance.group) else { return };
        self.inventory.readiness_failed(now, group, error);
        self.drain_or_delete(now, index, reason);
    }

    /// Deletes an instance after its last job, or immediately if it has none (I4).
    pub(super) fn drain_or_delete(&mut self, now: Now, index: Index, reason: RemovalReason) {
        let Some(instance) = self.inventory.pool.get(index).filter(|instance| !instance.is_deleting()) else { return };
        if matches!(instance.phase, InstancePhase::Cordoned { .. }) && !reason.overrides_cordon() {
            self.inventory.pool.change(index, |instance| {
                if let InstancePhase::Cordoned { pending_removal, .. } = &mut instance.phase {
                    *pending_removal = Some(reason);
                }
            });
            return self.inventory.mark_dirty(index);
        }
        if instance.assigned_slots == 0 {
            return self.delete(now, index, reason);
        }
        let earlier = match &instance.phase {
            InstancePhase::Draining(earlier) => Some(earlier),
            InstancePhase::Cordoned { pending_removal, .. } => pending_removal.as_ref(),
            _ => None,
        };
        // Otherwise, `uncordon` after an operator's drain would also revert a retirement.
        let kept = earlier.filter(|earlier| reason.is_revertible() && !earlier.is_revertible());
        let reason = kept.cloned().unwrap_or(reason);
        let phase = InstancePhase::Draining(reason.clone());
        if instance.phase == phase {
            return;
        }
        let (group, id, jobs) = (instance.group, instance.id.clone(), instance.jobs);
        self.inventory.pool.change(index, |instance| instance.enter(phase, now.at, None));
        self.inventory.mark_dirty(index);
        self.inventory.record_decision(now, DecisionKind::Drain { group, id, reason, jobs });
    }

    pub(super) fn delete(&mut self, now: Now, index: Index, reason: RemovalReason) {
        let Some(instance) = self.inventory.pool.get(index) else { return };
        debug_assert_eq!(instance.assigned_slots, 0, "I4: an instance with a lease must not be deleted");
        if instance.is_deleting() || instance.assigned_slots > 0 {
            return;
        }
        let (group, id) = (instance.group, instance.id.clone());
        self.suspensions.fail(&mut self.inventory, now, index, &reason.to_string());
        let phase = InstancePhase::Deleting(Deleting::new(reason.clone(), now.at));
        self.inventory.pool.change(index, |instance| instance.enter(phase, now.at, Some(now.at)));
        self.inventory.mark_dirty(index);
        let inputs = self.inputs(now);
        self.inventory.record_decision(now, DecisionKind::Delete { group, id, reason, inputs });
    }

    pub(super) fn delete_if(&mut self, now: Now, index: Index, reason: Option<RemovalReason>) {
        if let Some(reason) = reason {
            self.delete(now, index, reason);
        }
    }

    /// Deletes an instance that the provider has begun to delete. Its jobs are lost immediately.
    fn handle_provider_deletion(&mut self, now: Now, index: Index) {
        self.leases.lose(&mut self.inventory, now, index, &LossReason::ProviderDeleted);
        self.delete(now, index, RemovalReason::ProviderDeleted);
        self.postpone_deletion_call(now, index);
    }

    /// Postpones the delete call, which is needed only if the provider's own deletion does not complete.
    fn postpone_deletion_call(&mut self, now: Now, index: Index) {
        let later = now.at + self.config.deletion_retry_interval;
        self.inventory.pool.change(index, |instance| instance.due = Some(later));
    }

    fn remove_instance(&mut self, now: Now, index: Index, reason: LossReason) {
        self.leases.lose(&mut self.inventory, now, index, &reason);
        self.suspensions.fail(&mut self.inventory, now, index, &reason.to_string());
        self.inventory.remove(now, index);
    }

    /// [`Action::OperatorReply`] reports the outcome.
    pub(super) fn apply_operator_action(
        &mut self,
        now: Now,
        request: u64,
        (group, id): (GroupId, Option<InstanceId>),
        action: OperatorAction,
        by: String,
    ) {
        let result = match (&id, action) {
            (Some(id), OperatorAction::Cordon) => self.inventory.cordon_instance(now, group, id, &by),
            (Some(id), OperatorAction::Uncordon) => self.uncordon_instance(now, group, id),
            (Some(id), OperatorAction::Drain) => self.drain_instance(now, group, id, by.clone()),
            (Some(id), OperatorAction::Delete { force }) => self.delete_instance(now, group, id, force, by.clone()),
            (None, OperatorAction::Drain) => self
                .inventory
                .drain_group(group, &by)
                .map(|()| OperatorOutcome::GroupDrained { instances: self.drain_group_instances(now, group) }),
            (None, OperatorAction::Uncordon) => self.inventory.undrain_group(now, &self.config, group),
            (None, OperatorAction::Cordon | OperatorAction::Delete { .. }) => Err(OperatorError::NotAnInstance),
        };
        if let Ok(outcome) = &result {
            let outcome = outcome.clone();
            self.inventory.record_decision(now, DecisionKind::Operator { group, id, action, by, outcome });
        }
        self.inventory.push_action(Action::OperatorReply { request, result });
    }

    fn uncordon_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
    ) -> Result<OperatorOutcome, OperatorError> {
        let (index, pending_removal) = self.inventory.uncordon_instance(now, &self.config, group, id)?;
        let Some(removal) = pending_removal else { return Ok(OperatorOutcome::Uncordoned) };
        let reason = removal.to_string();
        self.drain_or_delete(now, index, removal);
        Ok(OperatorOutcome::UncordonedForRemoval { reason })
    }

    fn drain_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        by: String,
    ) -> Result<OperatorOutcome, OperatorError> {
        let Some(index) = self.inventory.pool.find(group, id) else { return self.delete_unmanaged(now, group, id, by) };
        let jobs = self.inventory.pool.get(index).map_or(0, |instance| instance.jobs);
        self.drain_or_delete(now, index, RemovalReason::Operator { by });
        Ok(OperatorOutcome::Draining { jobs })
    }

    fn delete_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        force: bool,
        by: String,
    ) -> Result<OperatorOutcome, OperatorError> {
        let Some(index) = self.inventory.pool.find(group, id) else { return self.delete_unmanaged(now, group, id, by) };
        let jobs = self.inventory.pool.get(index).map_or(0, |instance| instance.jobs);
        if jobs > 0 && !force {
            return Err(OperatorError::HasJobs { jobs });
        }
        self.leases.lose(&mut self.inventory, now, index, &LossReason::Operator { by: by.clone() });
        self.delete(now, index, RemovalReason::Operator { by });
        Ok(OperatorOutcome::Deleting { jobs })
    }

    fn delete_unmanaged(
        &mut self,
        now: Now,
        group: GroupId,
        id: &InstanceId,
        by: String,
    ) -> Result<OperatorOutcome, OperatorError> {
        self.inventory.forget_unmanaged(group, id)?;
        let index = self.inventory.add_instance(now, &self.config, (group, id.clone()), true);
        self.delete(now, index, RemovalReason::Operator { by });
        Ok(OperatorOutcome::Deleting { jobs: 0 })
    }

    /// Drains the instances of a drained group that are not draining yet. Returns their number.
    pub(super) fn drain_group_instances(&mut self, now: Now, id: GroupId) -> u32 {
        let Some((by, instances)) = self.inventory.instances_to_drain(id) else { return 0 };
        let count = u32::try_from(instances.len()).unwrap_or(u32::MAX);
        for index in instances {
            self.drain_or_delete(now, index, RemovalReason::GroupDrained { by: by.clone() });
        }
        count
    }
}

fn merge_spans(one: Option<(Time, Time)>, other: Option<(Time, Time)>) -> Option<(Time, Time)> {
    let (one, other) = (one.or(other)?, other.or(one)?);
    Some((one.0.min(other.0), one.1.max(other.1)))
}
