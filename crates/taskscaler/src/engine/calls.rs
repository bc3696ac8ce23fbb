//! Plugins that come and go; instances that get ready, and stay healthy or not.

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::group::Plugin;
use super::instance::State;
use super::status::millis;
use crate::decision::What;
use crate::event::Action;
use crate::throttle::{Bucket, jittered, mix};
use crate::time::{Now, Time};
use crate::words::{GroupId, Key, Removal};

/// After a plugin was down, its instances are listed within this.
const HEARD_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);
/// An instance that failed once, or whose plugin is down, is asked again after this.
pub(super) const DOUBTED: std::time::Duration = std::time::Duration::from_secs(5);

/// An instance that was idle before a restart is kept so long at least, unless its idle time is shorter.
const IDLE_AGAIN: std::time::Duration = std::time::Duration::from_secs(15);

impl Engine {
    pub(super) fn group_up(&mut self, now: Now, id: GroupId, max_size: u32) {
        let Some(group) = self.group_mut(id) else { return };
        group.plugin = Plugin::Up { max_size };
        group.updates.urgent = Some(now.at);
        group.updates.under_way.clear();
        // A plugin that starts again has not had its burst again.
        let max = group.max().unwrap_or(0);
        if group.bucket_max != Some(max) {
            group.bucket = Bucket::of(group.config.throttle, max, now.at);
            group.bucket_max = Some(max);
        }
        self.renew_deadlines(now, id);
    }

    pub(super) fn group_down(&mut self, id: GroupId, cause: String) {
        if let Some(group) = self.group_mut(id) {
            group.plugin = Plugin::Down { cause };
        }
    }

    /// Whether an instance cannot be judged, since nobody answers for it: its plugin is down.
    pub(super) fn is_unheard(&self, index: usize) -> bool {
        let group = self.pool.get(index).and_then(|instance| self.group(instance.group));
        group.is_some_and(|group| matches!(group.plugin, Plugin::Down { .. }))
    }

    /// What may have fallen due while the plugin was down has its time: it could not be heard.
    fn renew_deadlines(&mut self, now: Now, group: GroupId) {
        for index in self.pool.of_group(group) {
            let Some(instance) = self.pool.get(index) else { continue };
            let least = match instance.state {
                State::Booting => now.at + HEARD_WITHIN,
                State::Preparing => now.at + self.config.prepare_deadline,
                _ => continue,
            };
            self.pool.change(index, |instance| instance.due = instance.due.max(Some(least)));
        }
    }

    /// It runs: connection details and the ready command are next.
    pub(super) fn prepare(&mut self, now: Now, index: usize) {
        let deadline = now.at + self.config.prepare_deadline;
        let Some(instance) = self.pool.get(index) else { return };
        let (group, id, after) = (instance.group, instance.id.clone(), now.at.since(instance.asked));
        let (restored, teaches, again) = (instance.restored, instance.teaches, instance.was_ready);
        self.pool.change(index, |instance| instance.enter(State::Preparing, now.at, Some(deadline)));
        if let Some(group) = self.group_mut(group).filter(|_| teaches) {
            group.boot.learn(after);
        }
        if !restored {
            self.decide(now, What::Running { group, id: id.clone(), after });
        }
        self.actions.push(Action::Prepare { group, id, again });
    }

    pub(super) fn prepared(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        let Some(index) = self.pool.find(group, id) else { return };
        if self.pool.get(index).is_some_and(|instance| matches!(instance.state, State::Asleep(_))) {
            return self.roused(now, index, result);
        }
        let Some(instance) = self.pool.get(index).filter(|instance| instance.state == State::Preparing) else { return };
        let after = now.at.since(instance.since);
        if let Err(error) = result {
            let told = format!("instance {id} could not be made ready: {error}");
            self.never_ready(now, index, Removal::NeverReady { error }, told);
            return;
        }
        let used_up = instance.held == 0 && self.config.uses_max.is_some_and(|max| instance.used >= max.get());
        let (uses, was_ready, teaches) = (instance.used, instance.was_ready, instance.teaches);
        let created = (!was_ready && !instance.restored).then(|| now.at.since(instance.asked));
        let beat = self.next_heartbeat(now);
        if !was_ready {
            self.touch(index);
        }
        let idle_time = self.wanted.idle_time;
        self.pool.change(index, |instance| {
            instance.was_ready = true;
            instance.enter(State::Ready, now.at, beat);
            instance.failures = 0;
            if !instance.idle_before {
                (instance.idle_since, instance.idle_unix) = (now.at, now.unix);
            } else {
                // What of its idle time was before the restart counts, up to a while in which jobs may come.
                let counts = idle_time.saturating_sub(IDLE_AGAIN);
                let earliest = Time::from_millis(now.at.as_millis().saturating_sub(millis(counts)));
                instance.idle_since = instance.idle_since.max(earliest);
            }
            instance.idle_before = false;
        });
        if let Some(group) = self.group_mut(group) {
            group.readiness.succeed();
            if teaches {
                group.preparation.learn(after);
            }
        }
        self.decide(now, What::Ready { group, id: id.clone(), after, created });
        if used_up {
            self.delete(now, index, Removal::UsedUp { uses });
        }
    }

    pub(super) fn next_heartbeat(&mut self, now: Now) -> Option<crate::time::Time> {
        let interval = self.config.heartbeat_interval?;
        let jitter = self.jitter();
        Some(now.at + jittered(interval, jitter))
    }

    pub(super) fn ask_health(&mut self, now: Now, index: usize) {
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
            if instance.state == State::Ready {
                instance.due = Some(now.at + DOUBTED);
            }
        });
    }

    /// One failure is a doubt, as many as the threshold are the end (S14): no more jobs, and removal after the last one.
    pub(super) fn health(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        let Some(index) = self.pool.find(group, id) else { return };
        let threshold = self.config.failure_threshold.max(1);
        let failures = self.pool.change(index, |instance| {
            if instance.state != State::Ready {
                return 0;
            }
            match &result {
                Ok(()) => instance.failures = 0,
                Err(_) => {
                    instance.failures = instance.failures.saturating_add(1);
                    instance.due = Some(instance.due.unwrap_or(now.at + DOUBTED).min(now.at + DOUBTED));
                }
            }
            instance.failures
        });
        if let (Err(error), Some(failures)) = (result, failures)
            && failures >= threshold
        {
            self.retire(now, index, Removal::Unhealthy { error });
        }
    }

    /// A job lost sight of its instance: the provider and the instance are asked at once.
    pub(super) fn suspect(&mut self, now: Now, key: &Key) {
        let Some(place) = self.leases.get(key).copied() else { return };
        let Some(group) = self.pool.get(place.index).map(|instance| instance.group) else { return };
        if let Some(group) = self.group_mut(group) {
            group.updates.urgent = Some(now.at);
        }
        if self.pool.get(place.index).is_some_and(|instance| instance.state == State::Ready) {
            // Asked at once, or when the plugin is up.
            self.pool.change(place.index, |instance| instance.due = Some(now.at));
        }
    }

    /// Different for each call, the same in each run.
    pub(super) fn jitter(&mut self) -> u64 {
        let number = self.number();
        mix(self.config.jitter_seed ^ number)
    }
}
