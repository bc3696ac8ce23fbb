//! The books: what is stored, and how an engine goes on from it.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::group::{Ask, AskState, DOUBT, Stranger};
use super::instance::{Deleting, State};
use super::sleep::OLD_LIST;
use super::{Engine, Place};
use crate::books::{Intent, Row, RowKey};
use crate::config::{Config, Foreign};
use crate::forecast::BUCKET_S;
use crate::sleep::Environment;
use crate::time::{Now, Time};
use crate::words::{GroupId, Key, Loss, Removal};

impl Engine {
    /// An engine that goes on from stored rows. Instances are believed in until a list says otherwise; leases wait to be
    /// claimed ([`Self::claim`]) until [`crate::event::Event::Settled`]. Also the names of rows that belong to no group of
    /// the configuration: their instances are beyond reach. Books of one group are those of the configuration's only one,
    /// whatever it was called when they were written: its rows get its name.
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
                    let new = key.renamed(name);
                    outdated.extend([key, new.clone()]);
                    new
                }
                _ => key,
            };
            let name = match (&key, &row) {
                (RowKey::Load { bucket }, Row::Load { most }) => {
                    outdated.extend(engine.restore_load(*bucket, *most));
                    continue;
                }
                (RowKey::Spent { day }, Row::Spent { slot_seconds }) => {
                    match &mut engine.forecast {
                        Some(forecast) => forecast.has_spent(*day, *slot_seconds),
                        None => outdated.push(key),
                    }
                    continue;
                }
                (RowKey::Work(work), Row::Work(usage)) => {
                    engine.usages.restore(*work, usage.clone());
                    continue;
                }
                (RowKey::Load { .. } | RowKey::Spent { .. } | RowKey::Work(_), _) => continue,
                (
                    RowKey::Instance { group, .. }
                    | RowKey::Ask { group, .. }
                    | RowKey::Gone { group, .. }
                    | RowKey::Foreign { group, .. }
                    | RowKey::Drained { group },
                    _,
                ) => group,
            };
            let Some(group) = engine.groups.iter().position(|group| group.config.name == *name).map(GroupId) else {
                unknown.push(key);
                continue;
            };
            match (key, row) {
                (
                    RowKey::Instance { id, .. },
                    Row::Instance { slots, used, seen_unix, idle_unix, intent, contexts, was_ready, environment },
                ) => {
                    let is_asleep = intent == Intent::Suspend;
                    let index = engine.restore_instance(now, group, &id, slots, (used, seen_unix, idle_unix), intent);
                    for context in contexts {
                        engine.pool.has_context(index, context, usize::MAX);
                    }
                    engine.restore_environment(now, index, environment, was_ready, is_asleep);
                }
                (RowKey::Foreign { id, .. }, Row::Foreign { unix }) => {
                    found_anew.extend(engine.restore_foreign(group, InstanceId::new(id), unix));
                }
                (RowKey::Ask { call, .. }, Row::Ask { n, open, asked_unix, granted, owed_unix }) => {
                    engine.next_number = engine.next_number.max(call + 1);
                    let state = engine.state_of_ask(now, granted, owed_unix);
                    if let Some(group) = engine.group_mut(group) {
                        let asked = earlier(now, asked_unix);
                        group.asks.push_back(Ask { call, asked, asked_unix, known: now, n, open, state });
                    }
                }
                (RowKey::Drained { .. }, Row::Drained { by }) => {
                    if let Some(group) = engine.group_mut(group) {
                        group.drained = Some(by);
                    }
                }
                (RowKey::Gone { id, .. }, Row::Gone { .. }) => {
                    if let Some(group) = engine.group_mut(group) {
                        group.remember_gone(InstanceId::new(id), now);
                    }
                }
                (key, _) => unknown.push(key),
            }
        }
        engine.dirty.clear();
        engine.dirty.extend(outdated);
        for (group, id) in found_anew {
            engine.touch_foreign(group, &id);
        }
        (engine, unknown)
    }

    /// Knows an instance of others again. One that the configuration treats differently by now is to be found anew.
    fn restore_foreign(&mut self, group: GroupId, id: InstanceId, unix: i64) -> Option<(GroupId, InstanceId)> {
        if self.config.foreign != Foreign::Leave {
            return Some((group, id));
        }
        let of = self.group_mut(group)?;
        of.foreign.insert(id, Stranger::since(unix));
        None
    }

    /// Remembers a load. The rows that are not looked at any more, which leave the books.
    fn restore_load(&mut self, bucket: i64, most: u32) -> Vec<RowKey> {
        let changed =
            self.forecast.as_mut().map(|forecast| forecast.record(bucket.saturating_mul(BUCKET_S), u64::from(most)));
        let is_stale = |bucket: &i64| self.forecast.as_ref().is_none_or(|forecast| forecast.most(*bucket).is_none());
        let stale = changed.unwrap_or_else(|| vec![bucket]).into_iter().filter(is_stale);
        stale.map(|bucket| RowKey::Load { bucket }).collect()
    }

    fn state_of_ask(&self, now: Now, granted: bool, owed_unix: Option<i64>) -> AskState {
        if let Some(until) = owed_unix {
            let left = u64::try_from(until.saturating_sub(now.unix)).unwrap_or(0);
            AskState::Owed { until: now.at + Duration::from_secs(left) }
        } else if granted {
            let last = now.at + self.config.create_deadline;
            AskState::Granted { until: last, last }
        } else {
            AskState::Doubtful { until: now.at + DOUBT }
        }
    }

    /// The name of the only group, where all rows are of one group that has another name: the runner was renamed. One from a
    /// list has been replaced instead, perhaps by another provider's.
    fn renames(&self, rows: &[(RowKey, Row)]) -> Option<String> {
        let [only] = self.groups.as_slice() else { return None };
        if only.config.listed {
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
        let keys: Vec<(usize, Key)> =
            (slots.into_iter().enumerate()).filter_map(|(slot, key)| Some((slot, Key::new(key?)))).collect();
        self.pool.change(index, |instance| {
            instance.used = used;
            instance.seen_unix = seen_unix;
            instance.seen = earlier(now, seen_unix);
            if let Some(unix) = idle_unix.filter(|_| keys.is_empty()) {
                (instance.idle_since, instance.idle_unix, instance.idle_before) = (earlier(now, unix), unix, true);
            }
            for (slot, key) in &keys {
                instance.put(*slot, key.clone());
            }
            instance.jobs = u32::try_from(instance.keys().count()).unwrap_or(u32::MAX);
            match intent {
                Intent::Use | Intent::Suspend => {}
                Intent::Keep { by, then } => instance.enter(State::Aside { by, then }, now.at, None),
                Intent::Drain(why) => instance.enter(State::Draining(why), now.at, None),
                Intent::Delete(why) => {
                    let deleting = Deleting { why, attempts: 0, called: false, since: now.at };
                    instance.enter(State::Deleting(deleting), now.at, Some(now.at));
                }
            }
        });
        // The lowest slot of each comes first.
        for (slot, key) in keys {
            let place = Place { index, slot, slots: 0, since: now.at, crowd: 0, work: None };
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
        environment: Option<Environment>,
        was_ready: bool,
        is_asleep: bool,
    ) {
        self.pool.change(index, |instance| {
            // Earlier books do not say it, and only what was ready has had jobs.
            instance.was_ready = was_ready || instance.used > 0;
            instance.environment = environment;
            // Its job may have been resumed on it just before.
            instance.believed_from = now.at + OLD_LIST;
        });
        if is_asleep {
            self.sleep_on(now, index);
        }
    }

    /// All leases that are still wanted are claimed: the others end, and their instances go where what their jobs left behind
    /// is unknown.
    pub(super) fn settled(&mut self, now: Now) {
        let unclaimed = std::mem::take(&mut self.unclaimed);
        for key in unclaimed {
            if let Some(index) = self.drop_lease(now, &key) {
                self.actions.push(crate::event::Action::Lost { key, cause: Loss::NotFoundAgain });
                if self.config.jobs_leave_nothing {
                    self.after_release(now, index);
                } else {
                    self.retire(now, index, Removal::Unclaimed);
                }
            }
        }
    }

    /// The instance's row has to be stored.
    pub(super) fn touch(&mut self, index: usize) {
        if let Some((group, id)) = self.pool.get(index).map(|instance| (instance.group, instance.id.clone())) {
            self.touch_id(group, &id);
        }
    }

    /// As [`Self::touch`], for an instance that may be gone.
    pub(super) fn touch_id(&mut self, group: GroupId, id: &InstanceId) {
        let Some(name) = self.group(group).map(|group| group.config.name.clone()) else { return };
        let id = id.as_str().to_owned();
        self.dirty.insert(RowKey::Gone { group: name.clone(), id: id.clone() });
        self.dirty.insert(RowKey::Instance { group: name, id });
    }

    /// As [`Self::touch`], for one of someone else.
    pub(super) fn touch_foreign(&mut self, group: GroupId, id: &InstanceId) {
        if let Some(name) = self.group(group).map(|group| group.config.name.clone()) {
            self.dirty.insert(RowKey::Foreign { group: name, id: id.as_str().to_owned() });
        }
    }

    pub(super) fn touch_ask(&mut self, group: GroupId, call: u64) {
        if let Some(name) = self.group(group).map(|group| group.config.name.clone()) {
            self.dirty.insert(RowKey::Ask { group: name, call });
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
                    State::Booting | State::Preparing | State::Ready => Intent::Use,
                    State::Asleep(_) => Intent::Suspend,
                    State::Aside { by, then } => Intent::Keep { by: by.clone(), then: then.clone() },
                    State::Draining(why) => Intent::Drain(why.clone()),
                    State::Deleting(deleting) => Intent::Delete(deleting.why.clone()),
                };
                let slots = instance.slots.iter().map(|key| key.as_ref().map(|key| key.as_str().to_owned())).collect();
                let (used, seen_unix, contexts) = (instance.used, instance.seen_unix, instance.contexts.clone());
                let (was_ready, idle_unix) = (instance.was_ready, Some(instance.idle_unix));
                let environment = instance.environment.clone();
                Some(Row::Instance { slots, used, seen_unix, idle_unix, intent, contexts, was_ready, environment })
            }
            RowKey::Ask { group, call } => {
                let group = self.group(by_name(group)?)?;
                let ask = group
                    .asks
                    .iter()
                    .find(|ask| ask.call == *call && (ask.open > 0 || ask.state == AskState::Asked))?;
                let granted = matches!(ask.state, AskState::Granted { .. } | AskState::Late { .. });
                let owed_unix = match ask.state {
                    AskState::Owed { until } => Some(ask.unix(until)),
                    _ => None,
                };
                Some(Row::Ask { n: ask.n, open: ask.open, asked_unix: ask.asked_unix, granted, owed_unix })
            }
            RowKey::Gone { group, id } => {
                let unix = self.group(by_name(group)?)?.gone_since(&InstanceId::new(id.clone()))?;
                Some(Row::Gone { unix })
            }
            RowKey::Foreign { group, id } => {
                let stranger = self.group(by_name(group)?)?.foreign.get(&InstanceId::new(id.clone()))?;
                Some(Row::Foreign { unix: stranger.since_unix })
            }
            RowKey::Drained { group } => Some(Row::Drained { by: self.group(by_name(group)?)?.drained.clone()? }),
            RowKey::Work(work) => self.usages.get(*work).cloned().map(Row::Work),
            RowKey::Spent { day } => Some(Row::Spent { slot_seconds: self.forecast.as_ref()?.spent(*day)? }),
            RowKey::Load { bucket } => Some(Row::Load { most: self.forecast.as_ref()?.most(*bucket)? }),
        }
    }
}

/// When the wall clock showed this. One that went back since then says that it was now; before the origin there is nothing.
fn earlier(now: Now, unix: i64) -> Time {
    let ago = u64::try_from(now.unix.saturating_sub(unix)).unwrap_or(0);
    Time::from_millis(now.at.as_millis().saturating_sub(ago.saturating_mul(1000)))
}
