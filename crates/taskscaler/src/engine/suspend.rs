//! Instances that sleep for the lease that holds them (fleeting.md 7.11).

use muster_fleeting::model::{InstanceId, InstanceState};

use super::Engine;
use super::group::Plugin;
use super::instance::State;
use crate::event::Action;
use crate::time::Now;
use crate::words::{GroupId, Key, Loss, Removal};

/// A call that had no effect is repeated after this.
const RETRY: std::time::Duration = std::time::Duration::from_secs(60);
/// An instance sleeps at most so long; then it is removed.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// An instance wakes within this, or its lease is lost.
const WAKES_WITHIN: std::time::Duration = std::time::Duration::from_secs(600);

impl Engine {
    /// Whether the group of a lease can put instances to sleep, and the lease has its instance alone.
    #[must_use]
    pub fn can_sleep(&self, key: &Key) -> bool {
        let Some(instance) = self.leases.get(key).and_then(|place| self.pool.get(place.index)) else { return false };
        let can = |group: &super::Group| matches!(group.plugin, Plugin::Up { can_suspend: true, .. });
        instance.jobs == 1 && self.group(instance.group).is_some_and(can)
    }

    pub(super) fn sleep(&mut self, now: Now, key: &Key) {
        let Some(place) = self.leases.get(key).copied().filter(|_| self.can_sleep(key)) else { return };
        let asleep = self.pool.change(place.index, |instance| {
            if instance.state != State::Ready {
                return None;
            }
            instance.enter(State::Suspending, now.at, Some(now.at + RETRY));
            Some((instance.group, instance.id.clone()))
        });
        if let Some((group, id)) = asleep.flatten() {
            self.touch(place.index);
            self.actions.push(Action::Suspend { group, id });
        }
    }

    pub(super) fn wake(&mut self, now: Now, key: Key) {
        let Some(place) = self.leases.get(&key).copied() else { return };
        let Some(instance) = self.pool.get(place.index) else { return };
        if !matches!(instance.state, State::Suspending | State::Suspended) {
            return;
        }
        self.waking.insert(key, now.at);
        if instance.state == State::Suspended {
            self.resume(now, place.index);
        }
        // One that is falling asleep is woken when it sleeps.
    }

    fn resume(&mut self, now: Now, index: usize) {
        let woken = self.pool.change(index, |instance| {
            instance.enter(State::Resuming, now.at, Some(now.at + RETRY));
            (instance.group, instance.id.clone())
        });
        self.touch(index);
        if let Some((group, id)) = woken {
            self.actions.push(Action::Resume { group, id });
        }
    }

    pub(super) fn observe_sleep(&mut self, now: Now, index: usize, seen: InstanceState) {
        let Some(instance) = self.pool.get(index) else { return };
        match (&instance.state, seen) {
            (State::Suspending, InstanceState::Suspended) => {
                self.pool.change(index, |instance| instance.enter(State::Suspended, now.at, Some(now.at + LONGEST)));
                let wanted =
                    self.pool.get(index).is_some_and(|one| one.keys().any(|(_, key)| self.waking.contains_key(key)));
                if wanted {
                    self.resume(now, index);
                }
            }
            (State::Resuming, InstanceState::Running) => self.prepare(now, index),
            _ => {}
        }
    }

    pub(super) fn sleep_answered(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        if result.is_err() {
            self.soon(now, group, id, &State::Suspending);
        }
    }

    pub(super) fn wake_answered(&mut self, now: Now, group: GroupId, id: &InstanceId, result: Result<(), String>) {
        if result.is_err() {
            self.soon(now, group, id, &State::Resuming);
        }
    }

    fn soon(&mut self, now: Now, group: GroupId, id: &InstanceId, state: &State) {
        let Some(index) = self.pool.find(group, id) else { return };
        self.pool.change(index, |instance| {
            if instance.state == *state {
                instance.due = Some(now.at + self.config.update_interval_when_expecting);
            }
        });
    }

    /// A call had no effect, or a sleep was too long.
    pub(super) fn sleep_is_due(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        let (group, id, state) = (instance.group, instance.id.clone(), instance.state.clone());
        let late = instance
            .keys()
            .filter_map(|(_, key)| self.waking.get(key))
            .any(|since| now.at.since(*since) >= WAKES_WITHIN);
        if state == State::Suspended || late {
            self.lose_jobs(now, index, Loss::Missing);
            self.delete(now, index, Removal::SleptTooLong);
            return;
        }
        self.pool.change(index, |instance| instance.due = Some(now.at + RETRY));
        self.actions.push(match state {
            State::Suspending => Action::Suspend { group, id },
            _ => Action::Resume { group, id },
        });
    }

    /// An instance is ready: the leases that waited for it to wake have their slots again.
    pub(super) fn awake(&mut self, _now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        let woken: Vec<Key> =
            instance.keys().map(|(_, key)| key).filter(|key| self.waking.contains_key(*key)).cloned().collect();
        for key in woken {
            self.waking.remove(&key);
            if let Some(lease) = self.leases.get(&key).and_then(|place| self.lease_at(&key, *place)) {
                self.actions.push(Action::Grant(lease));
            }
        }
    }
}
