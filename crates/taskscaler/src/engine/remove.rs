//! Instances that go: draining, removal with retries, and everything that is due at a time.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::Engine;
use super::calls::DOUBTED;
use super::instance::{Deleting, Instance, State};
use crate::decision::What;
use crate::event::Action;
use crate::throttle::jittered;
use crate::time::{Now, Time};
use crate::words::{GroupId, Loss, Removal};

/// Before a removal that was refused is tried again; doubles up to the retry interval.
const REFUSED: Duration = Duration::from_secs(1);
/// After so many removals without effect somebody is told, and after as many again.
pub(super) const STUCK: u32 = 10;
/// A call that was not answered for so long is made again; the driver answers each, so this is a net.
const UNANSWERED: Duration = Duration::from_secs(1200);

impl Engine {
    /// An instance without jobs goes; one with jobs goes after them (I4).
    pub(super) fn retire(&mut self, now: Now, index: usize, why: Removal) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.is_deleting() {
            return;
        }
        if matches!(instance.state, State::Aside { .. }) && !why.overrules_who_keeps() {
            self.pool.change(index, |instance| {
                if let State::Aside { then, .. } = &mut instance.state {
                    *then = Some(why);
                }
            });
            self.touch(index);
            return;
        }
        if instance.held == 0 {
            self.delete(now, index, why);
            return;
        }
        let (group, id, jobs) = (instance.group, instance.id.clone(), instance.jobs);
        self.pool.change(index, |instance| instance.enter(State::Draining(why.clone()), now.at, None));
        self.touch(index);
        self.decide(now, What::Drain { group, id, why, jobs });
    }

    /// The instance, which has no jobs, goes.
    pub(super) fn delete(&mut self, now: Now, index: usize, why: Removal) {
        let Some(instance) = self.pool.get(index) else { return };
        debug_assert_eq!(instance.held, 0, "I4: no removal of an instance with a lease");
        if instance.is_deleting() || instance.held > 0 {
            return;
        }
        let (group, id) = (instance.group, instance.id.clone());
        self.fail_waker(now, index, &why.to_string());
        let deleting = Deleting { why: why.clone(), attempts: 0, called: false, since: now.at };
        self.pool.change(index, |instance| instance.enter(State::Deleting(deleting), now.at, Some(now.at)));
        self.touch(index);
        let inputs = self.inputs(now);
        self.decide(now, What::Remove { group, id, why, inputs });
    }

    pub(super) fn stop(&mut self, now: Now) {
        self.stopping = true;
        self.wake_none(now);
        let retry = self.config.deletion_retry_interval.min(self.config.shutdown_deletion_interval);
        self.config.deletion_retry_interval = retry;
        let going: Vec<usize> =
            self.pool.iter().filter(|(_, instance)| instance.is_deleting()).map(|(index, _)| index).collect();
        for index in going {
            self.pool.change(index, |instance| {
                let called = matches!(&instance.state, State::Deleting(deleting) if deleting.called);
                instance.due = instance.due.map(|due| if called { due } else { due.min(now.at + retry) });
            });
        }
    }

    /// While the engine stops: what has no jobs goes, also what was asked for before and appears only now.
    pub(super) fn remove_at_the_end(&mut self, now: Now) {
        if !self.config.delete_on_shutdown {
            return;
        }
        let kept = |state: &State| matches!(state, State::Aside { .. }) && !self.nothing_stays;
        let goes = |instance: &Instance| instance.held == 0 && !instance.is_deleting() && !kept(&instance.state);
        let idle = self.pool.iter().filter(|(_, instance)| goes(instance));
        for index in idle.map(|(index, _)| index).collect::<Vec<_>>() {
            self.delete(now, index, Removal::Shutdown);
        }
    }

    /// Deadlines, heartbeats, retries, one after the other.
    pub(super) fn do_what_is_due(&mut self, now: Now) {
        while let Some((due, index)) = self.pool.first_due()
            && due <= now.at
        {
            let Some(instance) = self.pool.get(index) else { return };
            match instance.state {
                State::Booting | State::Preparing | State::Ready if self.is_unheard(index) => {
                    self.pool.change(index, |instance| instance.due = Some(now.at + DOUBTED));
                }
                State::Booting => {
                    let limit = self.config.boot_deadline.as_secs();
                    self.never_ready(
                        now,
                        index,
                        Removal::NeverRan,
                        format!("an instance did not run within {limit} s"),
                    );
                }
                State::Preparing => {
                    let error = format!("not ready within {} s", self.config.prepare_deadline.as_secs());
                    self.never_ready(now, index, Removal::NeverReady { error: error.clone() }, error);
                }
                State::Ready => self.ask_health(now, index),
                State::Asleep(_) => self.tend(now, index),
                State::Deleting(_) => {
                    // Collected by `remove_what_goes`, in one call for all.
                    self.pool.change(index, |instance| {
                        instance.due = None;
                        if let State::Deleting(deleting) = &mut instance.state {
                            deleting.called = false;
                        }
                    });
                    self.to_remove.push(index);
                }
                State::Draining(_) | State::Aside { .. } => {
                    self.pool.change(index, |instance| instance.due = None);
                }
            }
        }
    }

    /// One call for all instances of a group that are to go now.
    pub(super) fn remove_what_goes(&mut self, now: Now) {
        // What was marked in this very step is due now, too.
        self.do_what_is_due(now);
        let marked = std::mem::take(&mut self.to_remove);
        if marked.is_empty() {
            return;
        }
        let mut calls: Vec<Vec<InstanceId>> = vec![Vec::new(); self.groups.len()];
        for index in marked {
            let Some((group, id, attempts)) = self
                .pool
                .change(index, |instance| {
                    let State::Deleting(deleting) = &mut instance.state else { return None };
                    deleting.called = true;
                    deleting.attempts = deleting.attempts.saturating_add(1);
                    instance.due = Some(now.at + UNANSWERED);
                    let State::Deleting(deleting) = &instance.state else { return None };
                    Some((instance.group, instance.id.clone(), deleting.attempts))
                })
                .flatten()
            else {
                continue;
            };
            if attempts % STUCK == 0 {
                self.decide(now, What::Stuck { group, id: id.clone(), attempts });
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
                let State::Deleting(deleting) = &mut instance.state else { return };
                deleting.called = false;
                let refused = REFUSED.saturating_mul(1 << deleting.attempts.saturating_sub(1).min(10)).min(retry);
                let pause = if accepted.contains(id) { retry } else { jittered(refused, jitter) };
                instance.due = Some(now.at + pause);
            });
        }
    }

    /// It will not become useful. Its group counts a failure; the error reaches the operator.
    pub(super) fn never_ready(&mut self, now: Now, index: usize, why: Removal, error: String) {
        let Some(group) = self.pool.get(index).map(|instance| instance.group) else { return };
        let jitter = self.jitter();
        if let Some(of) = self.groups.get_mut(group.0) {
            let pause = of.readiness.fail(now.at, error.clone(), jitter);
            let failures = of.readiness.failures;
            self.decide(now, What::CreationFailed { group, error, failures, pause });
        }
        self.retire(now, index, why);
    }

    /// The provider takes it: its jobs are lost now, not when it answers no more.
    pub(super) fn taken(&mut self, now: Now, index: usize) {
        self.lose_jobs(now, index, &Loss::TakenByProvider);
        self.delete(now, index, Removal::Provider);
        // It goes by itself: a call of ours comes only if it is still there later.
        let later: Time = now.at + self.config.deletion_retry_interval;
        self.pool.change(index, |instance| instance.due = Some(later));
    }
}
