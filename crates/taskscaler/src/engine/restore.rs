//! The rows of the ledger: what is stored, and how an engine is restored from them.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::group::{RequestState, ScaleUpRequest, UNCONFIRMED_WINDOW, UnmanagedInstance};
use super::instance::{Deleting, InstancePhase};
use super::suspend::MAX_LIST_AGE;
use super::{Engine, LeaseLocation};
use crate::config::{Config, UnmanagedPolicy};
use crate::forecast::BUCKET_S;
use crate::ledger::{Intent, Row, RowKey};
use crate::suspend::SuspendedEnvironment;
use crate::time::{Now, Time};
use crate::types::{GroupId, LossReason, RemovalReason, TaskKey};

impl Engine {
    /// Returns an engine that is restored from stored rows, and the keys of rows that belong to no configured group. The
    /// instances of such rows are ignored.
    ///
    /// Instances count as existing until a list lacks them. Leases can be claimed ([`Self::claim`]) until
    /// [`crate::event::Event::ClaimsComplete`]. If the rows and the configuration have one group each, the rows belong to
    /// that group, also if it was renamed.
    #[must_use]
    pub fn restore(config: Config, rows: Vec<(RowKey, Row)>, now: Now) -> (Self, Vec<RowKey>) {
        let mut engine = Self::new(config, now);
        let (mut unknown, mut found_anew) = (Vec::new(), Vec::new());
        let mut rows = rows;
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        let renames = engine.renames(&rows);
        let mut outdated = Vec::new();
        for (key, row) in rows {
            let key = match &renames {
                Some(name) if key.group().is_some() => {
                    let new = key.with_group(name);
                    outdated.extend([key, new.clone()]);
                    new
                }
                _ => key,
            };
            let name = match (&key, &row) {
                (RowKey::SlotDemand { bucket }, Row::SlotDemand { max_slots: most }) => {
                    outdated.extend(engine.restore_slot_demand(*bucket, *most));
                    continue;
                }
                (RowKey::ForecastIdle { day }, Row::ForecastIdle { slot_seconds }) => {
                    match &mut engine.forecast {
                        Some(forecast) => forecast.restore_idle(*day, *slot_seconds),
                        None => outdated.push(key),
                    }
                    continue;
                }
                (RowKey::JobKind(work), Row::JobKind(usage)) => {
                    engine.usages.restore(*work, usage.clone());
                    continue;
                }
                (RowKey::SlotDemand { .. } | RowKey::ForecastIdle { .. } | RowKey::JobKind(_), _) => continue,
                (
                    RowKey::Instance { group, .. }
                    | RowKey::ScaleUp { group, .. }
                    | RowKey::Deleted { group, .. }
                    | RowKey::Unmanaged { group, .. }
                    | RowKey::DrainedGroup { group },
                    _,
                ) => group,
            };
            let Some(group) = engine.groups.iter().position(|group| group.config.name == *name).map(GroupId) else {
                unknown.push(key);
                continue;
            };
            match engine.restore_row_of_group(now, group, key, row) {
                Ok(unmanaged) => found_anew.extend(unmanaged),
                Err(key) => unknown.push(key),
            }
        }
        engine.dirty.clear();
        engine.dirty.extend(outdated);
        for (group, id) in found_anew {
            engine.mark_unmanaged_dirty(group, &id);
        }
        (engine, unknown)
    }

    /// Restores a row of a group. Returns an unmanaged instance if the next list must decide about it again.
    ///
    /// # Errors
    /// The key, if the row does not fit it.
    fn restore_row_of_group(
        &mut self,
        now: Now,
        group: GroupId,
        key: RowKey,
        row: Row,
    ) -> Result<Option<(GroupId, InstanceId)>, RowKey> {
        match (key, row) {
            (
                RowKey::Instance { id, .. },
                Row::Instance {
                    slots,
                    job_count,
                    first_seen_at,
                    idle_since,
                    intent,
                    contexts,
                    was_ready,
                    suspended_environment,
                },
            ) => {
                let is_suspended = intent == Intent::Suspend;
                let times = (job_count, first_seen_at, idle_since);
                let index = self.restore_instance(now, group, &id, slots, times, intent);
                for context in contexts {
                    self.pool.add_context(index, context, usize::MAX);
                }
                self.restore_environment(now, index, suspended_environment, was_ready, is_suspended);
            }
            (RowKey::Unmanaged { id, .. }, Row::Unmanaged { first_seen_at }) => {
                return Ok(self.restore_unmanaged(group, InstanceId::new(id), first_seen_at));
            }
            (
                RowKey::ScaleUp { call, .. },
                Row::ScaleUp { requested, outstanding, requested_at, accepted, written_off_until },
            ) => {
                self.next_number = self.next_number.max(call + 1);
                let state = self.restored_request_state(now, accepted, written_off_until);
                if let Some(group) = self.group_mut(group) {
                    group.scale_ups.push_back(ScaleUpRequest {
                        call,
                        requested_at: time_before(now, requested_at),
                        requested_unix: requested_at,
                        known: now,
                        requested,
                        outstanding,
                        state,
                    });
                }
            }
            (RowKey::DrainedGroup { .. }, Row::DrainedGroup { by }) => {
                if let Some(group) = self.group_mut(group) {
                    group.drained = Some(by);
                }
            }
            (RowKey::Deleted { id, .. }, Row::Deleted { .. }) => {
                if let Some(group) = self.group_mut(group) {
                    group.remember_deleted(InstanceId::new(id), now);
                }
            }
            (key, _) => return Err(key),
        }
        Ok(None)
    }

    /// Restores an unmanaged instance. Returns it if `unmanaged_instances` has changed, so that the next list decides about it.
    fn restore_unmanaged(&mut self, group: GroupId, id: InstanceId, unix: i64) -> Option<(GroupId, InstanceId)> {
        if self.config.unmanaged != UnmanagedPolicy::Ignore {
            return Some((group, id));
        }
        let of = self.group_mut(group)?;
        of.unmanaged.insert(id, UnmanagedInstance::since(unix));
        None
    }

    /// Restores a slot demand. Returns the keys of rows that are no longer needed, to delete them from the ledger.
    fn restore_slot_demand(&mut self, bucket: i64, most: u32) -> Vec<RowKey> {
        let changed =
            self.forecast.as_mut().map(|forecast| forecast.record(bucket.saturating_mul(BUCKET_S), u64::from(most)));
        let is_stale = |bucket: &i64| self.forecast.as_ref().is_none_or(|forecast| forecast.most(*bucket).is_none());
        let stale = changed.unwrap_or_else(|| vec![bucket]).into_iter().filter(is_stale);
        stale.map(|bucket| RowKey::SlotDemand { bucket }).collect()
    }

    fn restored_request_state(&self, now: Now, granted: bool, owed_unix: Option<i64>) -> RequestState {
        if let Some(until) = owed_unix {
            let left = u64::try_from(until.saturating_sub(now.unix)).unwrap_or(0);
            RequestState::WrittenOff { until: now.at + Duration::from_secs(left) }
        } else if granted {
            let last = now.at + self.config.create_timeout;
            RequestState::Accepted { until: last, last }
        } else {
            RequestState::Unconfirmed { until: now.at + UNCONFIRMED_WINDOW }
        }
    }

    /// The name of the only group, where all rows are of one group that has another name: the runner was renamed. One from a
    /// list has been replaced instead, perhaps by another provider's.
    fn renames(&self, rows: &[(RowKey, Row)]) -> Option<String> {
        let [only] = self.groups.as_slice() else { return None };
        if only.config.is_named {
            return None;
        }
        let mut names = rows.iter().filter_map(|(key, _)| key.group());
        let first = names.next()?;
        (first != only.config.name && names.all(|name| name == first)).then(|| only.config.name.clone())
    }

    fn restore_instance(
        &mut self,
        now: Now,
        group: GroupId,
        id: &str,
        slots: Vec<Option<String>>,
        (used, seen_unix, idle_unix): (u32, i64, Option<i64>),
        intent: Intent,
    ) -> usize {
        let index = self.adopt(now, group, InstanceId::new(id), true);
        let keys: Vec<(usize, TaskKey)> =
            (slots.into_iter().enumerate()).filter_map(|(slot, key)| Some((slot, TaskKey::new(key?)))).collect();
        self.pool.change(index, |instance| {
            instance.job_count = used;
            instance.first_seen_unix = seen_unix;
            instance.first_seen = time_before(now, seen_unix);
            if let Some(unix) = idle_unix.filter(|_| keys.is_empty()) {
                (instance.idle_since, instance.idle_unix, instance.was_idle_before_restart) =
                    (time_before(now, unix), unix, true);
            }
            for (slot, key) in &keys {
                instance.put(*slot, key.clone());
            }
            instance.jobs = u32::try_from(instance.keys().count()).unwrap_or(u32::MAX);
            match intent {
                Intent::Serve | Intent::Suspend => {}
                Intent::Cordon { by, pending_removal: then } => {
                    instance.enter(InstancePhase::Cordoned { by, pending_removal: then }, now.at, None)
                }
                Intent::Drain(why) => instance.enter(InstancePhase::Draining(why), now.at, None),
                Intent::Delete(why) => {
                    let deleting = Deleting { reason: why, attempts: 0, called: false, since: now.at };
                    instance.enter(InstancePhase::Deleting(deleting), now.at, Some(now.at));
                }
            }
        });
        // The lowest slot of each comes first.
        for (slot, key) in keys {
            let place = LeaseLocation { index, slot, slots: 0, since: now.at, occupancy_ms: 0, job_kind: None };
            self.unclaimed.insert(key.clone());
            self.leases.entry(key).or_insert(place).slots += 1;
        }
        index
    }

    /// What a job left on an instance.
    fn restore_environment(
        &mut self,
        now: Now,
        index: usize,
        environment: Option<SuspendedEnvironment>,
        was_ready: bool,
        is_asleep: bool,
    ) {
        self.pool.change(index, |instance| {
            // Only an instance that was ready has had jobs.
            instance.was_ready = was_ready || instance.job_count > 0;
            instance.saved_environment = environment;
            // Its job may have been resumed on it just before.
            instance.ignore_lists_before = now.at + MAX_LIST_AGE;
        });
        if is_asleep {
            self.restore_suspended(now, index);
        }
    }

    /// All leases that are still wanted are claimed: the others end, and their instances go where what their jobs left behind
    /// is unknown.
    pub(super) fn claims_complete(&mut self, now: Now) {
        let unclaimed = std::mem::take(&mut self.unclaimed);
        for key in unclaimed {
            if let Some(index) = self.remove_lease(now, &key) {
                self.actions.push(crate::event::Action::Lost { key, reason: LossReason::MissingAfterRestart });
                if self.config.jobs_are_isolated {
                    self.on_release(now, index);
                } else {
                    self.drain_or_delete(now, index, RemovalReason::Unclaimed);
                }
            }
        }
    }

    /// The instance's row has to be stored.
    pub(super) fn mark_dirty(&mut self, index: usize) {
        if let Some((group, id)) = self.pool.get(index).map(|instance| (instance.group, instance.id.clone())) {
            self.mark_id_dirty(group, &id);
        }
    }

    /// As [`Self::touch`], for an instance that may be gone.
    pub(super) fn mark_id_dirty(&mut self, group: GroupId, id: &InstanceId) {
        let Some(name) = self.group(group).map(|group| group.config.name.clone()) else { return };
        let id = id.as_str().to_owned();
        self.dirty.insert(RowKey::Deleted { group: name.clone(), id: id.clone() });
        self.dirty.insert(RowKey::Instance { group: name, id });
    }

    /// As [`Self::touch`], for one of someone else.
    pub(super) fn mark_unmanaged_dirty(&mut self, group: GroupId, id: &InstanceId) {
        if let Some(name) = self.group(group).map(|group| group.config.name.clone()) {
            self.dirty.insert(RowKey::Unmanaged { group: name, id: id.as_str().to_owned() });
        }
    }

    pub(super) fn mark_scale_up_dirty(&mut self, group: GroupId, call: u64) {
        if let Some(name) = self.group(group).map(|group| group.config.name.clone()) {
            self.dirty.insert(RowKey::ScaleUp { group: name, call });
        }
    }

    /// What is stored under a name now.
    pub(super) fn row(&self, key: &RowKey) -> Option<Row> {
        let by_name = |name: &str| self.groups.iter().position(|group| group.config.name == name).map(GroupId);
        match key {
            RowKey::Instance { group, id } => {
                let index = self.pool.find(by_name(group)?, &InstanceId::new(id.clone()))?;
                let instance = self.pool.get(index)?;
                let intent = match &instance.state {
                    InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => Intent::Serve,
                    InstancePhase::Suspended(_) => Intent::Suspend,
                    InstancePhase::Cordoned { by, pending_removal: then } => {
                        Intent::Cordon { by: by.clone(), pending_removal: then.clone() }
                    }
                    InstancePhase::Draining(why) => Intent::Drain(why.clone()),
                    InstancePhase::Deleting(deleting) => Intent::Delete(deleting.reason.clone()),
                };
                let slots = instance.slots.iter().map(|key| key.as_ref().map(|key| key.as_str().to_owned())).collect();
                let (used, seen_unix, contexts) =
                    (instance.job_count, instance.first_seen_unix, instance.contexts.clone());
                let (was_ready, idle_unix) = (instance.was_ready, Some(instance.idle_unix));
                let environment = instance.saved_environment.clone();
                Some(Row::Instance {
                    slots,
                    job_count: used,
                    first_seen_at: seen_unix,
                    idle_since: idle_unix,
                    intent,
                    contexts,
                    was_ready,
                    suspended_environment: environment,
                })
            }
            RowKey::ScaleUp { group, call } => {
                let group = self.group(by_name(group)?)?;
                let ask = group
                    .scale_ups
                    .iter()
                    .find(|ask| ask.call == *call && (ask.outstanding > 0 || ask.state == RequestState::Sent))?;
                let granted = matches!(ask.state, RequestState::Accepted { .. } | RequestState::Overdue { .. });
                let owed_unix = match ask.state {
                    RequestState::WrittenOff { until } => Some(ask.unix(until)),
                    _ => None,
                };
                Some(Row::ScaleUp {
                    requested: ask.requested,
                    outstanding: ask.outstanding,
                    requested_at: ask.requested_unix,
                    accepted: granted,
                    written_off_until: owed_unix,
                })
            }
            RowKey::Deleted { group, id } => {
                let unix = self.group(by_name(group)?)?.deleted_at(&InstanceId::new(id.clone()))?;
                Some(Row::Deleted { deleted_at: unix })
            }
            RowKey::Unmanaged { group, id } => {
                let stranger = self.group(by_name(group)?)?.unmanaged.get(&InstanceId::new(id.clone()))?;
                Some(Row::Unmanaged { first_seen_at: stranger.since_unix })
            }
            RowKey::DrainedGroup { group } => {
                Some(Row::DrainedGroup { by: self.group(by_name(group)?)?.drained.clone()? })
            }
            RowKey::JobKind(work) => self.usages.get(*work).cloned().map(Row::JobKind),
            RowKey::ForecastIdle { day } => {
                Some(Row::ForecastIdle { slot_seconds: self.forecast.as_ref()?.idle_slot_seconds_on(*day)? })
            }
            RowKey::SlotDemand { bucket } => {
                Some(Row::SlotDemand { max_slots: self.forecast.as_ref()?.most(*bucket)? })
            }
        }
    }
}

/// When the wall clock showed this. One that went back since then says that it was now; before the origin there is nothing.
fn time_before(now: Now, unix: i64) -> Time {
    let ago = u64::try_from(now.unix.saturating_sub(unix)).unwrap_or(0);
    Time::from_millis(now.at.as_millis().saturating_sub(ago.saturating_mul(1000)))
}
