//! Instances that go: draining, removal with retries, and everything that is due at a time.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::instance::{Deleting, Instance, InstancePhase};
use super::plugin_events::RECHECK_INTERVAL;
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::throttle::jittered;
use crate::time::{Now, Time};
use crate::types::{GroupId, LossReason, RemovalReason};

/// Before a removal that was refused is tried again; doubles up to the retry interval.
const DELETE_RETRY_DELAY: Duration = Duration::from_secs(1);
/// After so many removals without effect somebody is told, and after as many again.
pub(super) const STUCK_AFTER_ATTEMPTS: u32 = 10;
/// A call that was not answered for so long is made again; the driver answers each, so this is a net.
const CALL_TIMEOUT: Duration = Duration::from_secs(1200);

impl Engine {
    /// An instance without jobs goes; one with jobs goes after them (I4).
    pub(super) fn drain_or_delete(&mut self, now: Now, index: usize, why: RemovalReason) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.is_deleting() {
            return;
        }
        if matches!(instance.state, InstancePhase::Cordoned { .. }) && !why.overrides_cordon() {
            self.pool.change(index, |instance| {
                if let InstancePhase::Cordoned { pending_removal: then, .. } = &mut instance.state {
                    *then = Some(why);
                }
            });
            self.mark_dirty(index);
            return;
        }
        if instance.held == 0 {
            self.delete(now, index, why);
            return;
        }
        let (group, id, jobs) = (instance.group, instance.id.clone(), instance.jobs);
        self.pool.change(index, |instance| instance.enter(InstancePhase::Draining(why.clone()), now.at, None));
        self.mark_dirty(index);
        self.decide(now, DecisionKind::Drain { group, id, reason: why, jobs });
    }

    /// The instance, which has no jobs, goes.
    pub(super) fn delete(&mut self, now: Now, index: usize, why: RemovalReason) {
        let Some(instance) = self.pool.get(index) else { return };
        debug_assert_eq!(instance.held, 0, "I4: no removal of an instance with a lease");
        if instance.is_deleting() || instance.held > 0 {
            return;
        }
        let (group, id) = (instance.group, instance.id.clone());
        self.fail_resume(now, index, &why.to_string());
        let deleting = Deleting { reason: why.clone(), attempts: 0, called: false, since: now.at };
        self.pool.change(index, |instance| instance.enter(InstancePhase::Deleting(deleting), now.at, Some(now.at)));
        self.mark_dirty(index);
        let inputs = self.inputs(now);
        self.decide(now, DecisionKind::Delete { group, id, reason: why, inputs });
    }

    pub(super) fn stop(&mut self, now: Now) {
        self.stopping = true;
        self.cancel_all_resumes(now);
        let retry = self.config.deletion_retry_interval.min(self.config.shutdown_deletion_interval);
        self.config.deletion_retry_interval = retry;
        let going: Vec<usize> =
            self.pool.iter().filter(|(_, instance)| instance.is_deleting()).map(|(index, _)| index).collect();
        for index in going {
            self.pool.change(index, |instance| {
                let called = matches!(&instance.state, InstancePhase::Deleting(deleting) if deleting.called);
                instance.due = instance.due.map(|due| if called { due } else { due.min(now.at + retry) });
            });
        }
    }

    /// While the engine stops: what has no jobs goes, also what was asked for before and appears only now.
    pub(super) fn delete_on_shutdown(&mut self, now: Now) {
        if !self.config.delete_on_shutdown {
            return;
        }
        let kept = |state: &InstancePhase| matches!(state, InstancePhase::Cordoned { .. }) && !self.delete_cordoned;
        let goes = |instance: &Instance| instance.held == 0 && !instance.is_deleting() && !kept(&instance.state);
        let idle = self.pool.iter().filter(|(_, instance)| goes(instance));
        for index in idle.map(|(index, _)| index).collect::<Vec<_>>() {
            self.delete(now, index, RemovalReason::Shutdown);
        }
    }

    /// Deadlines, heartbeats, retries, one after the other.
    pub(super) fn run_due_timers(&mut self, now: Now) {
        while let Some((due, index)) = self.pool.first_due()
            && due <= now.at
        {
            let Some(instance) = self.pool.get(index) else { return };
            match instance.state {
                InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready
                    if self.is_plugin_down(index) =>
                {
                    self.pool.change(index, |instance| instance.due = Some(now.at + RECHECK_INTERVAL));
                }
                InstancePhase::Booting => {
                    let limit = self.config.boot_timeout.as_secs();
                    self.never_ready(
                        now,
                        index,
                        RemovalReason::BootTimeout,
                        format!("an instance did not run within {limit} s"),
                    );
                }
                InstancePhase::Preparing => {
                    let error = format!("not ready within {} s", self.config.ready_timeout.as_secs());
                    self.never_ready(now, index, RemovalReason::ReadyTimeout { error: error.clone() }, error);
                }
                InstancePhase::Ready => self.check_health(now, index),
                InstancePhase::Suspended(_) => self.advance_suspended(now, index),
                InstancePhase::Deleting(_) => {
                    // Collected by `remove_what_goes`, in one call for all.
                    self.pool.change(index, |instance| {
                        instance.due = None;
                        if let InstancePhase::Deleting(deleting) = &mut instance.state {
                            deleting.called = false;
                        }
                    });
                    self.to_delete.push(index);
                }
                InstancePhase::Draining(_) | InstancePhase::Cordoned { .. } => {
                    self.pool.change(index, |instance| instance.due = None);
                }
            }
        }
    }

    /// One call for all instances of a group that are to go now.
    pub(super) fn flush_deletions(&mut self, now: Now) {
        // What was marked in this very step is due now, too.
        self.run_due_timers(now);
        let marked = std::mem::take(&mut self.to_delete);
        if marked.is_empty() {
            return;
        }
        let mut calls: Vec<Vec<InstanceId>> = vec![Vec::new(); self.groups.len()];
        for index in marked {
            let Some((group, id, attempts)) = self
                .pool
                .change(index, |instance| {
                    let InstancePhase::Deleting(deleting) = &mut instance.state else { return None };
                    deleting.called = true;
                    deleting.attempts = deleting.attempts.saturating_add(1);
                    instance.due = Some(now.at + CALL_TIMEOUT);
                    let InstancePhase::Deleting(deleting) = &instance.state else { return None };
                    Some((instance.group, instance.id.clone(), deleting.attempts))
                })
                .flatten()
            else {
                continue;
            };
            if attempts % STUCK_AFTER_ATTEMPTS == 0 {
                self.decide(now, DecisionKind::DeletionStuck { group, id: id.clone(), attempts });
            }
            if let Some(ids) = calls.get_mut(group.0) {
                ids.push(id);
            }
        }
        for (group, ids) in calls.into_iter().enumerate() {
            if !ids.is_empty() {
                self.actions.push(Action::Decrease { group: GroupId(group), ids });
            }
        }
    }

    /// The answer to a removal: what was accepted is looked at again later, what was not is asked for sooner.
    pub(super) fn decreased(
        &mut self,
        now: Now,
        group: GroupId,
        ids: &[InstanceId],
        result: Result<Vec<InstanceId>, String>,
    ) {
        let retry = self.config.deletion_retry_interval;
        let accepted = match result {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(error, "instances could not be removed");
                Vec::new()
            }
        };
        let accepted: std::collections::HashSet<InstanceId> = accepted.into_iter().collect();
        for id in ids {
            let Some(index) = self.pool.find(group, id) else { continue };
            let jitter = self.jitter();
            self.pool.change(index, |instance| {
                let InstancePhase::Deleting(deleting) = &mut instance.state else { return };
                deleting.called = false;
                let refused =
                    DELETE_RETRY_DELAY.saturating_mul(1 << deleting.attempts.saturating_sub(1).min(10)).min(retry);
                let pause = if accepted.contains(id) { retry } else { jittered(refused, jitter) };
                instance.due = Some(now.at + pause);
            });
        }
    }

    /// It will not become useful. Its group counts a failure; the error reaches the operator.
    pub(super) fn never_ready(&mut self, now: Now, index: usize, why: RemovalReason, error: String) {
        let Some(group) = self.pool.get(index).map(|instance| instance.group) else { return };
        let jitter = self.jitter();
        if let Some(of) = self.groups.get_mut(group.0) {
            let pause = of.readiness.fail(now.at, error.clone(), jitter);
            let failures = of.readiness.failures;
            self.decide(now, DecisionKind::CreationFailed { group, error, failures, pause });
        }
        self.drain_or_delete(now, index, why);
    }

    /// The provider takes it: its jobs are lost now, not when it answers no more.
    pub(super) fn provider_deleted(&mut self, now: Now, index: usize) {
        self.lose_leases(now, index, &LossReason::ProviderDeleted);
        self.delete(now, index, RemovalReason::ProviderDeleted);
        // It goes by itself: a call of ours comes only if it is still there later.
        let later: Time = now.at + self.config.deletion_retry_interval;
        self.pool.change(index, |instance| instance.due = Some(later));
    }
}
