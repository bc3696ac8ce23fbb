//! The provider's list against the books.

use std::collections::BTreeMap;

use muster_fleeting::model::{InstanceId, InstanceState};

use super::Engine;
use super::group::{Match, Stranger};
use super::instance::{Absence, Instance, MISSED_FOR, State};
use crate::config::Foreign;
use crate::decision::{Cause, What};
use crate::time::Now;
use crate::words::{GroupId, Loss, Removal};

type List = Vec<(InstanceId, InstanceState)>;

impl Engine {
    /// A list came. One that was asked for earlier than the last one that counted is old news.
    pub(super) fn updated(&mut self, now: Now, id: GroupId, call: u64, result: Result<List, String>) {
        let jitter = self.jitter();
        let Some(group) = self.group_mut(id) else { return };
        let updates = &mut group.updates;
        let Some(position) = updates.under_way.iter().position(|(number, _)| *number == call) else { return };
        let started = updates.under_way.remove(position).map_or(now.at, |(_, started)| started);
        updates.under_way.retain(|(number, _)| *number > call);
        match result {
            Err(error) => {
                updates.backoff.fail(now.at, error.clone(), jitter);
                let failures = updates.backoff.failures;
                self.decide(now, What::UpdateFailed { group: id, error, failures });
            }
            Ok(list) => {
                let took = now.at.since(started);
                updates.cost = (updates.cost * 3 + took) / 4;
                updates.backoff.succeed();
                updates.applied = started;
                group.listed = true;
                self.reconcile(now, id, call, list);
            }
        }
    }

    fn reconcile(&mut self, now: Now, group: GroupId, call: u64, list: List) {
        let Some(of) = self.group_mut(group) else { return };
        let mut foreign = std::mem::take(&mut of.foreign);
        let mut still = BTreeMap::new();
        for (id, state) in list {
            if let Some(index) = self.pool.find(group, &id) {
                self.observe(now, index, call, state);
            } else if state.is_gone() {
                if foreign.remove(&id).is_some() {
                    self.touch_foreign(group, &id);
                }
            } else if let Some(known) = foreign.remove(&id) {
                still.insert(id, Stranger::since(known.since_unix));
            } else {
                self.discover(now, group, call, id, state, &mut still);
            }
        }
        foreign.retain(|id, known| {
            let stays = !known.absence.again(now.at);
            if !stays {
                self.touch_foreign(group, id);
            }
            stays
        });
        still.append(&mut foreign);
        if let Some(of) = self.group_mut(group) {
            of.foreign = still;
            for id in of.forget(now.at) {
                self.touch_id(group, &id);
            }
        }
        for index in self.pool.unlisted(group, call) {
            self.missing(now, index);
        }
        self.disown_known(now, group);
    }

    /// An instance of the books, as the provider sees it.
    fn observe(&mut self, now: Now, index: usize, call: u64, seen: InstanceState) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.absence.is_missing() {
            self.pool.change(index, |instance| instance.absence = Absence::default());
        }
        self.pool.mark_listed(index, call);
        let Some(instance) = self.pool.get(index) else { return };
        match (&instance.state, seen) {
            (_, InstanceState::Deleted | InstanceState::Timeout) => self.gone(now, index, Loss::TakenByProvider),
            (State::Deleting(_), _) => {}
            (_, InstanceState::Deleting) => self.taken(now, index),
            (State::Asleep(_), _) => self.seen_asleep(now, index, seen),
            (State::Booting, InstanceState::Running) => self.prepare(now, index),
            (
                State::Ready | State::Draining(_) | State::Preparing,
                InstanceState::Suspending | InstanceState::Suspended,
            ) if now.at >= instance.believed_from => {
                // Nobody here asked for that: its jobs stand still.
                self.taken(now, index);
                self.pool.change(index, |instance| instance.due = Some(now.at));
            }
            _ => {}
        }
    }

    /// An instance that the books do not have.
    fn discover(
        &mut self,
        now: Now,
        group: GroupId,
        call: u64,
        id: InstanceId,
        state: InstanceState,
        foreign: &mut BTreeMap<InstanceId, Stranger>,
    ) {
        let foreign_is = self.config.foreign;
        let Some(of) = self.groups.get_mut(group.0) else { return };
        if of.was_ours(&id) {
            let index = self.adopt(now, group, id, false);
            self.pool.mark_listed(index, call);
            self.delete(now, index, Removal::Returned);
            if state == InstanceState::Deleting {
                // It goes by itself, and has its place until it is gone.
                let later = now.at + self.config.deletion_retry_interval;
                self.pool.change(index, |instance| instance.due = Some(later));
            }
            return;
        }
        let found = if state == InstanceState::Deleting { None } else { of.consume(now.at) };
        if let Some(Match { ask, late, changed }) = found {
            if ask.teaches() {
                of.appearances.learn(now.at.since(ask.asked));
            }
            let cause = if late { Cause::Late } else { Cause::Requested };
            let index = self.adopt(now, group, id.clone(), false);
            self.pool.change(index, |instance| (instance.asked, instance.teaches) = (ask.asked, ask.teaches()));
            for call in changed {
                self.touch_ask(group, call);
            }
            self.decide(now, What::Appeared { group, id, cause, after: now.at.since(ask.asked) });
            self.observe(now, index, call, state);
            return;
        }
        if foreign_is == Foreign::Leave || state == InstanceState::Deleting {
            self.decide(now, What::Foreign { group, id: id.clone(), state });
            self.touch_foreign(group, &id);
            foreign.insert(id, Stranger::since(now.unix));
            return;
        }
        let index = self.adopt(now, group, id.clone(), true);
        let cause = if foreign_is == Foreign::Adopt { Cause::Adopted } else { Cause::Unwanted };
        self.decide(now, What::Appeared { group, id, cause, after: std::time::Duration::ZERO });
        if foreign_is == Foreign::Delete {
            self.pool.mark_listed(index, call);
            self.delete(now, index, Removal::Foreign);
        } else {
            self.observe(now, index, call, state);
        }
    }

    /// Into the books, as booting; `old`: not asked for now, so its times teach nothing.
    pub(super) fn adopt(&mut self, now: Now, group: GroupId, id: InstanceId, old: bool) -> usize {
        let born = self.number();
        let instance = Instance {
            id,
            group,
            born,
            state: State::Booting,
            slots: Vec::new(),
            held: 0,
            jobs: 0,
            used: 0,
            kept: false,
            contexts: Vec::new(),
            crowd: (0, now.at),
            failures: 0,
            asked: now.at,
            seen: now.at,
            seen_unix: now.unix,
            since: now.at,
            idle_since: now.at,
            idle_unix: now.unix,
            idle_before: false,
            absence: Absence::default(),
            due: Some(now.at + self.config.boot_deadline),
            listed: 0,
            restored: old,
            teaches: !old,
            was_ready: false,
            environment: None,
            resumed: None,
            believed_from: now.at,
        };
        let index = self.pool.insert(instance);
        self.touch(index);
        index
    }

    /// An instance of the books that the list does not have.
    fn missing(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.is_deleting() {
            self.gone(now, index, Loss::Missing);
            return;
        }
        let (group, id, restored) = (instance.group, instance.id.clone(), instance.restored);
        let lost = self.pool.change(index, |instance| instance.absence.again(now.at));
        if lost == Some(true) {
            let cause = if restored { Loss::NotFoundAgain } else { Loss::Missing };
            self.gone(now, index, cause);
            return;
        }
        self.decide(now, What::Missed { group, id });
        if let Some(group) = self.group_mut(group) {
            let soon = now.at + MISSED_FOR;
            group.updates.urgent = Some(group.updates.urgent.map_or(soon, |urgent| urgent.min(soon)));
        }
    }
}
