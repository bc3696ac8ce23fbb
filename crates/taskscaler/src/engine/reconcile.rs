//! The provider's list against the books.

use std::collections::BTreeMap;

use muster_fleeting::model::{InstanceId, InstanceState};

use super::Engine;
use super::group::{MatchedRequest, UnmanagedInstance};
use super::instance::{Instance, InstancePhase, MIN_MISS_SPAN, MissCounter};
use crate::config::UnmanagedPolicy;
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::time::Now;
use crate::types::{GroupId, LossReason, RemovalReason};

type List = Vec<(InstanceId, InstanceState)>;

impl Engine {
    /// A list came. One that was asked for earlier than the last one that counted is old news.
    pub(super) fn listed(&mut self, now: Now, id: GroupId, call: u64, result: Result<List, String>) {
        let jitter = self.jitter();
        let Some(group) = self.group_mut(id) else { return };
        let updates = &mut group.list_schedule;
        let Some(position) = updates.under_way.iter().position(|(number, _)| *number == call) else { return };
        let started = updates.under_way.remove(position).map_or(now.at, |(_, started)| started);
        updates.under_way.retain(|(number, _)| *number > call);
        match result {
            Err(error) => {
                updates.backoff.fail(now.at, error.clone(), jitter);
                let failures = updates.backoff.failures;
                self.decide(now, DecisionKind::ListFailed { group: id, error, failures });
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
        let mut foreign = std::mem::take(&mut of.unmanaged);
        let mut still = BTreeMap::new();
        for (id, state) in list {
            if let Some(index) = self.pool.find(group, &id) {
                self.observe(now, index, call, state);
            } else if state.is_gone() {
                if foreign.remove(&id).is_some() {
                    self.mark_unmanaged_dirty(group, &id);
                }
            } else if let Some(known) = foreign.remove(&id) {
                still.insert(id, UnmanagedInstance::since(known.since_unix));
            } else {
                self.discover(now, group, call, id, state, &mut still);
            }
        }
        foreign.retain(|id, known| {
            let stays = !known.misses.record_miss(now.at);
            if !stays {
                self.mark_unmanaged_dirty(group, id);
            }
            stays
        });
        still.append(&mut foreign);
        if let Some(of) = self.group_mut(group) {
            of.unmanaged = still;
            for id in of.forget(now.at) {
                self.mark_id_dirty(group, &id);
            }
        }
        for index in self.pool.unlisted(group, call) {
            self.missing(now, index);
        }
        self.retire_known(now, group);
    }

    /// An instance of the books, as the provider sees it.
    fn observe(&mut self, now: Now, index: usize, call: u64, seen: InstanceState) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.misses.is_missing() {
            self.pool.change(index, |instance| instance.misses = MissCounter::default());
        }
        self.pool.mark_listed(index, call);
        let Some(instance) = self.pool.get(index) else { return };
        match (&instance.state, seen) {
            (_, InstanceState::Deleted | InstanceState::Timeout) => self.gone(now, index, LossReason::ProviderDeleted),
            (InstancePhase::Deleting(_), _) => {}
            (_, InstanceState::Deleting) => self.provider_deleted(now, index),
            (InstancePhase::Suspended(_), _) => self.observe_suspended(now, index, seen),
            (InstancePhase::Booting, InstanceState::Running) => self.prepare(now, index),
            (
                InstancePhase::Ready | InstancePhase::Draining(_) | InstancePhase::Preparing,
                InstanceState::Suspending | InstanceState::Suspended,
            ) if now.at >= instance.ignore_lists_before => {
                // Nobody here asked for that: its jobs stand still.
                self.provider_deleted(now, index);
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
        foreign: &mut BTreeMap<InstanceId, UnmanagedInstance>,
    ) {
        let foreign_is = self.config.unmanaged;
        let Some(of) = self.groups.get_mut(group.0) else { return };
        if of.was_managed(&id) {
            let index = self.adopt(now, group, id, false);
            self.pool.mark_listed(index, call);
            self.delete(now, index, RemovalReason::Reappeared);
            if state == InstanceState::Deleting {
                // It goes by itself, and has its place until it is gone.
                let later = now.at + self.config.deletion_retry_interval;
                self.pool.change(index, |instance| instance.due = Some(later));
            }
            return;
        }
        let found = if state == InstanceState::Deleting { None } else { of.match_instance(now.at) };
        if let Some(MatchedRequest { request: ask, late, changed }) = found {
            if ask.timing_is_valid() {
                of.creation_latencies.learn(now.at.since(ask.requested_at));
            }
            let cause = if late { InstanceOrigin::RequestedLate } else { InstanceOrigin::Requested };
            let index = self.adopt(now, group, id.clone(), false);
            self.pool.change(index, |instance| {
                (instance.requested_at, instance.timing_is_valid) = (ask.requested_at, ask.timing_is_valid())
            });
            for call in changed {
                self.mark_scale_up_dirty(group, call);
            }
            self.decide(
                now,
                DecisionKind::Discovered { group, id, origin: cause, after: now.at.since(ask.requested_at) },
            );
            self.observe(now, index, call, state);
            return;
        }
        if foreign_is == UnmanagedPolicy::Ignore || state == InstanceState::Deleting {
            self.decide(now, DecisionKind::Unmanaged { group, id: id.clone(), state });
            self.mark_unmanaged_dirty(group, &id);
            foreign.insert(id, UnmanagedInstance::since(now.unix));
            return;
        }
        let index = self.adopt(now, group, id.clone(), true);
        let cause =
            if foreign_is == UnmanagedPolicy::Adopt { InstanceOrigin::Adopted } else { InstanceOrigin::Unmanaged };
        self.decide(now, DecisionKind::Discovered { group, id, origin: cause, after: std::time::Duration::ZERO });
        if foreign_is == UnmanagedPolicy::Delete {
            self.pool.mark_listed(index, call);
            self.delete(now, index, RemovalReason::Unmanaged);
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
            sequence: born,
            state: InstancePhase::Booting,
            slots: Vec::new(),
            held: 0,
            jobs: 0,
            job_count: 0,
            held_for_request: false,
            contexts: Vec::new(),
            occupancy_ms: (0, now.at),
            failures: 0,
            requested_at: now.at,
            first_seen: now.at,
            first_seen_unix: now.unix,
            since: now.at,
            idle_since: now.at,
            idle_unix: now.unix,
            was_idle_before_restart: false,
            misses: MissCounter::default(),
            due: Some(now.at + self.config.boot_timeout),
            listed: 0,
            restored: old,
            timing_is_valid: !old,
            was_ready: false,
            saved_environment: None,
            resumed_environment: None,
            ignore_lists_before: now.at,
        };
        let index = self.pool.insert(instance);
        self.mark_dirty(index);
        index
    }

    /// An instance of the books that the list does not have.
    fn missing(&mut self, now: Now, index: usize) {
        let Some(instance) = self.pool.get(index) else { return };
        if instance.is_deleting() {
            self.gone(now, index, LossReason::Missing);
            return;
        }
        let (group, id, restored) = (instance.group, instance.id.clone(), instance.restored);
        let lost = self.pool.change(index, |instance| instance.misses.record_miss(now.at));
        if lost == Some(true) {
            let cause = if restored { LossReason::MissingAfterRestart } else { LossReason::Missing };
            self.gone(now, index, cause);
            return;
        }
        self.decide(now, DecisionKind::MissingFromList { group, id });
        if let Some(group) = self.group_mut(group) {
            let soon = now.at + MIN_MISS_SPAN;
            group.list_schedule.urgent = Some(group.list_schedule.urgent.map_or(soon, |urgent| urgent.min(soon)));
        }
    }
}
