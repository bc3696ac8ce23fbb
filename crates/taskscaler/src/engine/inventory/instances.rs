//! Steps in the life of one instance.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::Inventory;
use crate::config::Config;
use crate::decision::DecisionKind;
use crate::engine::deletion::RECHECK_INTERVAL;
use crate::engine::instance::{Instance, InstancePhase};
use crate::engine::pool::Index;
use crate::event::Action;
use crate::throttle::jittered;
use crate::time::{Now, Time};
use crate::types::{GroupId, RemovalReason};

/// Once the plugin is up again, a boot times out only after this time, so that a list can first report the instance as
/// running.
const MIN_BOOT_TIMEOUT_AFTER_PLUGIN_UP: Duration = Duration::from_secs(60);
/// Minimum time that an idle instance is kept after a restart, unless the idle time of the policy is shorter.
const MIN_IDLE_AFTER_RESTART: Duration = Duration::from_secs(15);

impl Inventory {
    pub(in crate::engine) fn add_instance(
        &mut self,
        now: Now,
        config: &Config,
        (group, id): (GroupId, InstanceId),
        created_elsewhere: bool,
    ) -> Index {
        let sequence = self.allocate_number();
        let instance = Instance::new(group, id, sequence, now, created_elsewhere, config.boot_timeout);
        let index = self.pool.insert(instance);
        self.mark_dirty(index);
        index
    }

    /// `max_size` is the plugin's maximum number of instances.
    pub(in crate::engine) fn handle_plugin_up(&mut self, now: Now, config: &Config, id: GroupId, max_size: u32) {
        let Some(group) = self.groups.get_mut(id) else { return };
        group.record_plugin_up(max_size, now.at);
        // Timeouts may have expired only because the plugin was down.
        for index in self.pool.of_group(id) {
            let Some(instance) = self.pool.get(index) else { continue };
            let earliest = match instance.phase {
                InstancePhase::Booting => now.at + MIN_BOOT_TIMEOUT_AFTER_PLUGIN_UP,
                InstancePhase::Preparing => now.at + config.ready_timeout,
                _ => continue,
            };
            self.pool.change(index, |instance| instance.due = instance.due.max(Some(earliest)));
        }
    }

    pub(in crate::engine) fn prepare(&mut self, now: Now, config: &Config, index: Index) {
        let Some((identity, instance)) = self.identity(index).zip(self.pool.get(index)) else { return };
        let after = now.at.since(instance.requested_at);
        let (created_elsewhere, timing_is_valid, was_ready) =
            (instance.created_elsewhere, instance.timing_is_valid, instance.was_ready);
        let due = now.at + config.ready_timeout;
        self.pool.change(index, |instance| instance.enter(InstancePhase::Preparing, now.at, Some(due)));
        let (group, id) = identity;
        if let Some(group) = self.groups.get_mut(group).filter(|_| timing_is_valid) {
            group.boot.learn(after);
        }
        if !created_elsewhere {
            self.record_decision(now, DecisionKind::Running { group, id: id.clone(), after });
        }
        self.push_action(Action::Prepare { group, id, was_ready });
    }

    /// Returns the reason if the instance must be deleted immediately.
    pub(in crate::engine) fn become_ready(
        &mut self,
        now: Now,
        config: &Config,
        idle_time: Duration,
        index: Index,
    ) -> Option<RemovalReason> {
        let (group, id) = self.identity(index)?;
        let instance = self.pool.get(index)?;
        let (after, timing_is_valid) = (now.at.since(instance.since), instance.timing_is_valid);
        let is_used_up = instance.assigned_slots == 0 && self.pool.limits().is_used_up(instance.job_count);
        let (uses, was_ready) = (instance.job_count, instance.was_ready);
        let creation_time = (!was_ready && !instance.created_elsewhere).then(|| now.at.since(instance.requested_at));
        let first_check = self.next_health_check(now, config);
        if !was_ready {
            self.mark_dirty(index);
        }
        self.pool.change(index, |instance| {
            instance.was_ready = true;
            instance.become_ready(now.at, first_check);
            // An instance that was idle before a restart is kept for a moment after it, so that jobs can arrive.
            instance.start_idle_time(now, idle_time.saturating_sub(MIN_IDLE_AFTER_RESTART));
        });
        if let Some(group) = self.groups.get_mut(group) {
            group.creation.record_ready();
            if timing_is_valid {
                group.preparation.learn(after);
            }
        }
        self.record_decision(now, DecisionKind::Ready { group, id, after, created: creation_time });
        is_used_up.then_some(RemovalReason::MaxUsesReached { uses })
    }

    /// `None` means that health checks are off.
    pub(in crate::engine) fn next_health_check(&mut self, now: Now, config: &Config) -> Option<Time> {
        let interval = config.heartbeat_interval?;
        let jitter = self.jitter();
        Some(now.at + jittered(interval, jitter))
    }

    pub(in crate::engine) fn check_health(&mut self, now: Now, config: &Config, index: Index) {
        let due = self.next_health_check(now, config);
        self.pool.change(index, |instance| instance.due = due);
        if let Some((group, id)) = self.identity(index) {
            self.push_action(Action::Heartbeat { group, id });
        }
    }

    /// Repeats the health check soon. This is no failure of the instance.
    pub(in crate::engine) fn health_unknown(&mut self, now: Now, group: GroupId, id: &InstanceId) {
        let Some(index) = self.pool.find(group, id) else { return };
        self.pool.change(index, |instance| {
            if instance.phase == InstancePhase::Ready {
                instance.due = Some(now.at + RECHECK_INTERVAL);
            }
        });
    }

    /// After `failure_threshold` consecutive failures, returns the reason to remove the instance.
    pub(in crate::engine) fn record_health(
        &mut self,
        now: Now,
        config: &Config,
        index: Index,
        result: Result<(), String>,
    ) -> Option<RemovalReason> {
        let failures = self.pool.change(index, |instance| {
            if instance.phase != InstancePhase::Ready {
                return 0;
            }
            if result.is_ok() {
                instance.failures = 0;
            } else {
                instance.failures = instance.failures.saturating_add(1);
                let soon = now.at + RECHECK_INTERVAL;
                instance.due = Some(instance.due.map_or(soon, |due| due.min(soon)));
            }
            instance.failures
        });
        let error = result.err()?;
        (failures? >= config.failure_threshold.max(1)).then_some(RemovalReason::Unhealthy { error })
    }

    pub(in crate::engine) fn connection_lost(&mut self, now: Now, index: Index) {
        let Some(instance) = self.pool.get(index) else { return };
        let (group, is_ready) = (instance.group, instance.phase == InstancePhase::Ready);
        self.list_now(now, group);
        if is_ready {
            self.pool.change(index, |instance| instance.due = Some(now.at));
        }
    }
}
