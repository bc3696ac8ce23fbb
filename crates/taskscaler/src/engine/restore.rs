//! Restores an engine from the rows of the ledger.

use muster_fleeting::model::InstanceId;

use super::Engine;
use crate::config::{Config, UnmanagedPolicy};
use crate::ledger::{Intent, Row, RowKey};
use crate::time::Now;
use crate::types::{GroupId, RemovalReason};

#[derive(Debug, Default)]
struct Findings {
    /// Keys of unusable rows, see [`Engine::restore`].
    unknown: Vec<RowKey>,
    /// Keys of rows to write or delete.
    outdated: Vec<RowKey>,
}

impl Engine {
    /// Restores an engine from stored rows.
    ///
    /// Also returns the keys of unusable rows, which are ignored: their group is not configured, or their value does
    /// not fit the key.
    ///
    /// Instances count as existing until they are missing from consecutive lists. Leases can be claimed
    /// ([`Self::claim`]) until [`crate::event::Event::ClaimsComplete`].
    ///
    /// If the only configured group has no explicit name, it is named after the runner. If in this case all rows with a
    /// group name have one common name that differs from the name of the configured group, the runner was renamed, and
    /// the rows belong to the configured group.
    #[must_use]
    pub fn restore(config: Config, rows: Vec<(RowKey, Row)>, now: Now) -> (Self, Vec<RowKey>) {
        let mut engine = Self::new(config, now);
        let mut findings = Findings::default();
        let mut rows = rows;
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        let new_name = engine.new_group_name(&rows);
        for (key, row) in rows {
            let key = match &new_name {
                Some(name) if key.group().is_some() => {
                    let renamed = key.with_group(name);
                    findings.outdated.extend([key, renamed.clone()]);
                    renamed
                }
                _ => key,
            };
            match key.group().map(|name| engine.inventory.groups.find(name)) {
                Some(Some(group)) => engine.restore_group_row(now, group, key, &row, &mut findings),
                Some(None) => findings.unknown.push(key),
                None => engine.restore_common_row(key, row, &mut findings),
            }
        }
        let Findings { unknown, outdated } = findings;
        engine.inventory.outbox.take_dirty();
        engine.inventory.outbox.mark_dirty(outdated);
        (engine, unknown)
    }

    /// New name of the only group, if the runner was renamed and all rows have another name.
    ///
    /// `None` if the configuration names the group explicitly, because a different name then means a new group.
    fn new_group_name(&self, rows: &[(RowKey, Row)]) -> Option<String> {
        let mut groups = self.inventory.groups.iter();
        let (Some((_, only)), None) = (groups.next(), groups.next()) else { return None };
        if only.config.is_named {
            return None;
        }
        let mut names = rows.iter().filter_map(|(key, _)| key.group());
        let first = names.next()?;
        (first != only.config.name && names.all(|name| name == first)).then(|| only.config.name.clone())
    }

    fn restore_common_row(&mut self, key: RowKey, row: Row, findings: &mut Findings) {
        match (key, row) {
            (RowKey::SlotDemand { bucket }, Row::SlotDemand { max_slots }) => {
                findings.outdated.extend(self.plan.restore_slot_demand(bucket, max_slots));
            }
            (RowKey::ForecastIdle { day }, Row::ForecastIdle { slot_seconds }) => {
                findings.outdated.extend(self.plan.restore_idle(day, slot_seconds));
            }
            (RowKey::JobKind(kind), Row::JobKind(usage)) => self.usages.restore(kind, usage),
            (key, _) => findings.unknown.push(key),
        }
    }

    fn restore_group_row(&mut self, now: Now, id: GroupId, key: RowKey, row: &Row, findings: &mut Findings) {
        let Some(group) = self.inventory.groups.get_mut(id) else { return };
        match (key, row) {
            (key @ RowKey::Instance { .. }, Row::Instance { .. }) => {
                self.restore_instance(now, id, key, row, findings);
            }
            (RowKey::Unmanaged { group: name, id }, Row::Unmanaged { first_seen_at }) => {
                if self.config.unmanaged == UnmanagedPolicy::Ignore {
                    group.unmanaged.insert(InstanceId::new(id), 0, *first_seen_at);
                } else {
                    // The configuration has changed. The next list decides about the instance again.
                    findings.outdated.push(RowKey::Unmanaged { group: name, id });
                }
            }
            (RowKey::ScaleUp { call, .. }, Row::ScaleUp { .. }) => {
                group.requests.restore(now, call, row, self.config.create_timeout);
                self.inventory.skip_numbers_to(call + 1);
            }
            (RowKey::DrainedGroup { .. }, Row::DrainedGroup { by }) => group.drained = Some(by.clone()),
            (RowKey::Deleted { group: name, id }, Row::Deleted { deleted_at }) => {
                if !group.deleted.restore(InstanceId::new(&id), *deleted_at, now) {
                    findings.outdated.push(RowKey::Deleted { group: name, id });
                }
            }
            (key, _) => findings.unknown.push(key),
        }
    }

    fn restore_instance(&mut self, now: Now, group: GroupId, key: RowKey, row: &Row, findings: &mut Findings) {
        let (RowKey::Instance { id, .. }, Row::Instance { contexts, intent, .. }) = (&key, row) else { return };
        let index = self.inventory.add_instance(now, &self.config, (group, InstanceId::new(id)), true);
        let pool = &mut self.inventory.pool;
        pool.change(index, |instance| instance.restore(now, row));
        for context in contexts {
            pool.add_context(index, *context, usize::MAX);
        }
        self.leases.restore(pool, now.at, index);
        if *intent == Intent::Suspend {
            let removal = self.suspensions.restore(&mut self.inventory, now, index);
            // If the new configuration lets instances run several jobs, the environment can never be resumed.
            let removal = removal.or_else(|| (!self.has_single_use_instances()).then_some(RemovalReason::NotResumable));
            if let Some(reason) = removal {
                self.delete(now, index, reason);
                findings.outdated.push(key);
            }
        }
    }

    pub(super) fn row(&self, key: &RowKey) -> Option<Row> {
        match key {
            RowKey::Instance { .. }
            | RowKey::ScaleUp { .. }
            | RowKey::Deleted { .. }
            | RowKey::Unmanaged { .. }
            | RowKey::DrainedGroup { .. } => self.inventory.row(key),
            RowKey::JobKind(kind) => self.usages.get(*kind).cloned().map(Row::JobKind),
            RowKey::ForecastIdle { .. } | RowKey::SlotDemand { .. } => self.plan.row(key),
        }
    }
}
