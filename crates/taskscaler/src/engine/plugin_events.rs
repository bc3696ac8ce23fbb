//! Plugins that come and go; instances that get ready, and stay healthy or not.

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::group::Plugin;
use super::instance::InstancePhase;
use super::status::millis;
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::throttle::{TokenBucket, jittered, splitmix64};
use crate::time::{Now, Time};
use crate::types::{GroupId, RemovalReason, TaskKey};

/// After a plugin was down, its instances are listed within this.
const LIST_AFTER_PLUGIN_UP: std::time::Duration = std::time::Duration::from_secs(60);
/// An instance that failed once, or whose plugin is down, is asked again after this.
pub(super) const RECHECK_INTERVAL: std::time::Duration = std::time::Duration::from_secs(5);

/// An instance that was idle before a restart is kept so long at least, unless its idle time is shorter.
const MIN_IDLE_AFTER_RESTART: std::time::Duration = std::time::Duration::from_secs(15);

impl Engine {
    pub(super) fn plugin_up(&mut self, now: Now, id: GroupId, max_size: u32) {
        let Some(group) = self.group_mut(id) else { return };
        group.plugin = Plugin::Up { max_size };
        group.list_schedule.urgent = Some(now.at);
        group.list_schedule.under_way.clear();
        // A plugin that starts again has not had its burst again.
        let max = group.max_instances().unwrap_or(0);
        if group.bucket_max != Some(max) {
            group.creation_bucket = TokenBucket::of(group.config.throttle, max, now.at);
            group.bucket_max = Some(max);
        }
        self.renew_deadlines(now, id);
    }

    pub(super) fn plugin_down(&mut self, id: GroupId, cause: String) {
        if let Some(group) = self.group_mut(id) {
            group.plugin = Plugin::Down { cause };
        }
    }

    /// Whether an instance cannot be judged, since nobody answers for it: its plugin is down.
    pub(super) fn is_plugin_down(&self, index: usize) -> bool {
        let group = self.pool.get(index).and_then(|instance| self.group(instance.group));
        group.is_some_and(|group| matches!(group.plugin, Plugin::Down { .. }))
    }

    /// What may have fallen due while the plugin was down has its time: it could not be heard.
    fn renew_deadlines(&mut self, now: Now, group: GroupId) {
        for index in self.pool.of_group(group) {
            let Some(instance) = self.pool.get(index) else { continue };
            let least = match instance.state {
                InstancePhase::Booting => now.at + LIST_AFTER_PLUGIN_UP,
                InstancePhase::Preparing => now.at + self.config.ready_timeout,
                _ => continue,
            };
            self.pool.change(index, |instance| instance.due = instance.due.max(Some(least)));
        }
    }

    /// It runs: connection details and the ready command are next.
    pub(super) fn prepare(&mut self, now: Now, index: usize) {
        let deadline = now.at + self.config.ready_timeout;
        let Some(instance) = self.pool.get(index) else { return };
        let (group, id, after) = (instance.group, instance.id.clone(), now.at.since(instance.requested_at));
        let (restored, teaches, again) = (instance.restored, instance.timing_is_valid, instance.was_ready);
        self.pool.change(index, |instance| instance.enter(InstancePhase::Preparing, now.at, Some(deadline)));
        if let Some(group) = self.group_mut(group).filter(|_| teaches) {
            group.boot.learn(after);
        }
        if !restored {
            self.decide(now, DecisionKind::Running { group, id: id.clone(), after });
        }
        self.actions.push(Action::Prepare { group, id, again });
    }

    pub(super) fn prepared(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        let Some(index) = self.pool.find(group, id) else { return };
        if self.pool.get(index).is_some_and(|instance| matches!(instance.state, InstancePhase::Suspended(_))) {
            return self.resumed(now, index, result);
        }
        let Some(instance) = self.pool.get(index).filter(|instance| instance.state == InstancePhase::Preparing) else {
            return;
        };
        let after = now.at.since(instance.since);
        if let Err(error) = result {
            let told = format!("instance {id} could not be made ready: {error}");
            self.never_ready(now, index, RemovalReason::ReadyTimeout { error }, told);
            return;
        }
        let used_up = instance.held == 0 && self.config.max_uses.is_some_and(|max| instance.job_count >= max.get());
        let (uses, was_ready, teaches) = (instance.job_count, instance.was_ready, instance.timing_is_valid);
        let created = (!was_ready && !instance.restored).then(|| now.at.since(instance.requested_at));
        let beat = self.next_heartbeat(now);
        if !was_ready {
            self.mark_dirty(index);
        }
        let idle_time = self.idle_target.idle_time;
        self.pool.change(index, |instance| {
            instance.was_ready = true;
            instance.enter(InstancePhase::Ready, now.at, beat);
            instance.failures = 0;
            if !instance.was_idle_before_restart {
                (instance.idle_since, instance.idle_unix) = (now.at, now.unix);
            } else {
                // What of its idle time was before the restart counts, up to a while in which jobs may come.
                let counts = idle_time.saturating_sub(MIN_IDLE_AFTER_RESTART);
                let earliest = Time::from_millis(now.at.as_millis().saturating_sub(millis(counts)));
                instance.idle_since = instance.idle_since.max(earliest);
            }
            instance.was_idle_before_restart = false;
        });
        if let Some(group) = self.group_mut(group) {
            group.readiness.succeed();
            if teaches {
                group.preparation.learn(after);
            }
        }
        self.decide(now, DecisionKind::Ready { group, id: id.clone(), after, created });
        if used_up {
            self.delete(now, index, RemovalReason::MaxUsesReached { uses });
        }
    }

    pub(super) fn next_heartbeat(&mut self, now: Now) -> Option<crate::time::Time> {
        let interval = self.config.heartbeat_interval?;
        let jitter = self.jitter();
        Some(now.at + jittered(interval, jitter))
    }

    pub(super) fn check_health(&mut self, now: Now, index: usize) {
        let due = self.next_heartbeat(now);
        let asked = self.pool.change(index, |instance| {
            instance.due = due;
            (instance.group, instance.id.clone())
        });
        if let Some((group, id)) = asked {
            self.actions.push(Action::Heartbeat { group, id });
        }
    }

    /// Nobody could say: it is asked again soon, and nothing is held against it.
    pub(super) fn health_unknown(&mut self, now: Now, group: GroupId, id: &InstanceId) {
        let Some(index) = self.pool.find(group, id) else { return };
        self.pool.change(index, |instance| {
            if instance.state == InstancePhase::Ready {
                instance.due = Some(now.at + RECHECK_INTERVAL);
            }
        });
    }

    /// One failure is a doubt, as many as the threshold are the end (S14): no more jobs, and removal after the last one.
    pub(super) fn health(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        let Some(index) = self.pool.find(group, id) else { return };
        let threshold = self.config.failure_threshold.max(1);
        let failures = self.pool.change(index, |instance| {
            if instance.state != InstancePhase::Ready {
                return 0;
            }
            match &result {
                Ok(()) => instance.failures = 0,
                Err(_) => {
                    instance.failures = instance.failures.saturating_add(1);
                    instance.due =
                        Some(instance.due.unwrap_or(now.at + RECHECK_INTERVAL).min(now.at + RECHECK_INTERVAL));
                }
            }
            instance.failures
        });
        if let (Err(error), Some(failures)) = (result, failures)
            && failures >= threshold
        {
            self.drain_or_delete(now, index, RemovalReason::Unhealthy { error });
        }
    }

    /// A job lost sight of its instance: the provider and the instance are asked at once.
    pub(super) fn connection_lost(&mut self, now: Now, key: &TaskKey) {
        let Some(place) = self.leases.get(key).copied() else { return };
        let Some(group) = self.pool.get(place.index).map(|instance| instance.group) else { return };
        if let Some(group) = self.group_mut(group) {
            group.list_schedule.urgent = Some(now.at);
        }
        if self.pool.get(place.index).is_some_and(|instance| instance.state == InstancePhase::Ready) {
            // Asked at once, or when the plugin is up.
            self.pool.change(place.index, |instance| instance.due = Some(now.at));
        }
    }

    /// Different for each call, the same in each run.
    pub(super) fn jitter(&mut self) -> u64 {
        let number = self.number();
        splitmix64(self.config.jitter_seed ^ number)
    }
}
