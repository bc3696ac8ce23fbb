//! Instances of a group that are not in the pool: unmanaged, recently deleted, or retired before they were listed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::instance::MissCounter;
use crate::time::{Now, Time};

/// Time for which the ID of a deleted instance is remembered, because an outdated list may contain the instance.
const DELETED_ID_TTL: Duration = Duration::from_secs(3600);
const MAX_DELETED_IDS: usize = 100_000;
const EARLY_RETIREMENT_TTL: Duration = Duration::from_secs(600);
const MAX_EARLY_RETIREMENTS: usize = 1000;

#[derive(Debug, Clone, Copy)]
struct UnmanagedInstance {
    misses: MissCounter,
    /// Number of the last list with the instance.
    last_list: u64,
    first_seen_unix: i64,
}

/// Unmanaged instances of a group.
///
/// An instance that is missing from a single list is kept, because it would be matched to a scale-up request if it
/// reappeared.
#[derive(Debug, Default)]
pub(super) struct UnmanagedInstances(BTreeMap<InstanceId, UnmanagedInstance>);

impl UnmanagedInstances {
    /// `list` is the number of a list with the instance.
    pub(super) fn insert(&mut self, id: InstanceId, list: u64, first_seen_unix: i64) {
        self.0.insert(id, UnmanagedInstance { misses: MissCounter::default(), last_list: list, first_seen_unix });
    }

    /// Returns whether the instance was known.
    pub(super) fn remove(&mut self, id: &InstanceId) -> bool {
        self.0.remove(id).is_some()
    }

    pub(super) fn contains(&self, id: &InstanceId) -> bool {
        self.0.contains_key(id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &InstanceId> {
        self.0.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// In seconds since 1970.
    pub(super) fn first_seen_unix(&self, id: &InstanceId) -> Option<i64> {
        self.0.get(id).map(|instance| instance.first_seen_unix)
    }

    /// Returns whether the instance is known.
    pub(super) fn record_listed(&mut self, id: &InstanceId, list: u64) -> bool {
        let Some(instance) = self.0.get_mut(id) else { return false };
        (instance.misses, instance.last_list) = (MissCounter::default(), list);
        true
    }

    /// Removes and returns the instances that are missing from list number `list` and from enough earlier lists.
    pub(super) fn remove_missing(&mut self, list: u64, at: Time) -> Vec<InstanceId> {
        let mut lost = Vec::new();
        self.0.retain(|id, instance| {
            let is_lost = instance.last_list != list && instance.misses.record_miss(at);
            lost.extend(is_lost.then(|| id.clone()));
            !is_lost
        });
        lost
    }
}

#[derive(Debug, Default)]
pub(super) struct DeletedIds {
    by_id: HashMap<InstanceId, (Time, i64)>,
    order: VecDeque<(Time, InstanceId)>,
}

impl DeletedIds {
    pub(super) fn insert(&mut self, id: InstanceId, now: Now) {
        self.by_id.insert(id.clone(), (now.at, now.unix));
        self.order.push_back((now.at, id));
    }

    /// Restores an ID that was deleted at `deleted_at`, in seconds since 1970. Returns whether the ID is still
    /// remembered.
    ///
    /// The ID is then kept for [`DELETED_ID_TTL`] from now, because a deletion before the start of engine time has no
    /// [`Time`].
    pub(super) fn restore(&mut self, id: InstanceId, deleted_at: i64, now: Now) -> bool {
        let age_s = u64::try_from(now.unix.saturating_sub(deleted_at)).unwrap_or(0);
        let is_remembered = age_s < DELETED_ID_TTL.as_secs();
        if is_remembered {
            self.insert(id, Now { unix: deleted_at, ..now });
        }
        is_remembered
    }

    pub(super) fn contains(&self, id: &InstanceId) -> bool {
        self.by_id.contains_key(id)
    }

    /// In seconds since 1970. `None` if the ID is not remembered.
    pub(super) fn deleted_at(&self, id: &InstanceId) -> Option<i64> {
        self.by_id.get(id).map(|(_, unix)| *unix)
    }

    pub(super) fn forget_old(&mut self, at: Time) -> Vec<InstanceId> {
        let mut forgotten = Vec::new();
        while let Some((deleted_at, _)) = self.order.front()
            && (at.since(*deleted_at) >= DELETED_ID_TTL || self.order.len() > MAX_DELETED_IDS)
        {
            let Some((deleted_at, id)) = self.order.pop_front() else { break };
            // An instance that reappeared may have been deleted again later.
            if self.by_id.get(&id).is_some_and(|(last, _)| *last == deleted_at) {
                self.by_id.remove(&id);
                forgotten.push(id);
            }
        }
        forgotten
    }
}

/// Instances that a plugin retired before they were listed, with the reasons.
#[derive(Debug, Default)]
pub(super) struct EarlyRetirements(BTreeMap<InstanceId, (Time, String)>);

impl EarlyRetirements {
    /// Does nothing if too many retirements are remembered already.
    pub(super) fn insert(&mut self, id: InstanceId, reason: String, at: Time) {
        self.0.retain(|_, (since, _)| at.since(*since) < EARLY_RETIREMENT_TTL);
        if self.0.len() < MAX_EARLY_RETIREMENTS {
            self.0.insert(id, (at, reason));
        }
    }

    pub(super) fn take_known(&mut self, is_known: impl Fn(&InstanceId) -> bool) -> Vec<(InstanceId, String)> {
        let ids: Vec<InstanceId> = self.0.keys().filter(|id| is_known(id)).cloned().collect();
        let take = |id: InstanceId| self.0.remove(&id).map(|(_, reason)| (id, reason));
        ids.into_iter().filter_map(take).collect()
    }
}
