//! One instance in the books.
//!
//! ```text
//!  (asked) -> Booting -> Preparing -> Ready <-> (slots held) -> Draining -> Deleting -> gone
//!                                       ^------> Asleep (from a job, for a later one) ---^
//!                 \           \          |  \-> Aside (from any of these three) -> Booting
//!                  \-----------\---------+-> lost, failed, timed out: Deleting or gone
//! ```

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::suspend::Suspension;
use crate::suspend::SuspendedEnvironment;
use crate::time::Time;
use crate::types::{GroupId, RemovalReason, StickyContextId, TaskKey};

/// An instance is lost when it was missing in so many lists in a row,
const LOST_AFTER_MISSES: u32 = 2;
/// of which the last came at least so long after the first: one wrong list is often followed by another.
pub(super) const MIN_MISS_SPAN: Duration = Duration::from_secs(1);

/// Where an instance is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InstancePhase {
    /// The provider makes it.
    Booting,
    /// It runs; connection details are asked for, the ready command runs.
    Preparing,
    /// Jobs can have its slots.
    Ready,
    /// It goes when its jobs have ended.
    Draining(RemovalReason),
    /// It goes.
    Deleting(Deleting),
    /// A job left its environment for a later one.
    Suspended(Suspension),
    /// An operator keeps it: it gets no jobs, and is not removed.
    Cordoned {
        /// Who, and why.
        by: String,
        /// Why it goes when it is not kept any more.
        pending_removal: Option<RemovalReason>,
    },
}

/// A removal under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deleting {
    pub(super) reason: RemovalReason,
    /// Calls so far.
    pub(super) attempts: u32,
    /// A call is under way.
    pub(super) called: bool,
    /// When the first call was made.
    pub(super) since: Time,
}

/// In how many lists in a row an instance was missing, and since when.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MissCounter {
    misses: u32,
    since: Time,
}

impl MissCounter {
    /// It is missing once more; whether it is gone.
    pub(super) fn record_miss(&mut self, at: Time) -> bool {
        if self.misses == 0 {
            self.since = at;
        }
        self.misses += 1;
        self.misses >= LOST_AFTER_MISSES && at.since(self.since) >= MIN_MISS_SPAN
    }

    /// Whether the last list lacked it.
    pub(super) fn is_missing(&self) -> bool {
        self.misses > 0
    }
}

/// One instance.
#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) id: InstanceId,
    pub(super) group: GroupId,
    /// Its number among all instances, in the order in which they were seen first.
    pub(super) sequence: u64,
    pub(super) state: InstancePhase,
    /// By slot, up to the highest that was ever held.
    pub(super) slots: Vec<Option<TaskKey>>,
    /// Slots that are held.
    pub(super) held: u32,
    /// Jobs that hold them.
    pub(super) jobs: u32,
    /// Jobs so far.
    pub(super) job_count: u32,
    /// Its free slots are for one request that needs many.
    pub(super) held_for_request: bool,
    /// Sticky contexts that it has, the one used last at the end.
    pub(super) contexts: Vec<StickyContextId>,
    /// Milliseconds of all its jobs together, up to a moment: shows how many neighbours a job had.
    pub(super) occupancy_ms: (u64, Time),
    /// Failures of health in a row.
    pub(super) failures: u32,
    /// When it was asked for.
    pub(super) requested_at: Time,
    /// When it was seen first, and by the wall clock.
    pub(super) first_seen: Time,
    pub(super) first_seen_unix: i64,
    /// When its state changed last.
    pub(super) since: Time,
    /// Without a job since.
    pub(super) idle_since: Time,
    /// The same by the wall clock.
    pub(super) idle_unix: i64,
    /// It was without a job before the restart, and has not been ready since.
    pub(super) was_idle_before_restart: bool,
    /// Snapshots in a row that did not have it.
    pub(super) misses: MissCounter,
    /// When something is to be done about it, whatever its state asks for.
    pub(super) due: Option<Time>,
    /// The snapshot that had it last.
    pub(super) listed: u64,
    /// It is from before a restart.
    pub(super) restored: bool,
    /// Its times say how long others will take.
    pub(super) timing_is_valid: bool,
    /// It was ready once: what is done to a new instance has been done.
    pub(super) was_ready: bool,
    /// What a job left on it for a later one.
    pub(super) saved_environment: Option<SuspendedEnvironment>,
    /// What its job was resumed with.
    pub(super) resumed_environment: Option<SuspendedEnvironment>,
    /// Before this, a list that says that it is suspended is an old one.
    pub(super) ignore_lists_before: Time,
}

/// What an instance adds to the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SlotTotals {
    /// 1 where it gives or will give slots.
    pub(super) supply: u32,
    /// Held slots of such a one.
    pub(super) acquired: u32,
    /// Slots of such a one that will not be given.
    pub(super) unavailable: u32,
    /// Slots that can be given now.
    pub(super) free: u32,
    /// Held slots, whatever its state.
    pub(super) held: u32,
}

impl Instance {
    /// What it adds, with `capacity` slots and at most `uses_max` jobs.
    pub(super) fn slot_totals(&self, capacity: u32, uses_max: Option<u32>) -> SlotTotals {
        let held = self.held;
        let left = uses_max.map_or(capacity, |max| max.saturating_sub(self.job_count));
        let given = capacity.saturating_sub(held).min(left);
        let supply = matches!(self.state, InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready);
        if !supply {
            return SlotTotals { held, ..SlotTotals::default() };
        }
        SlotTotals {
            supply: 1,
            // More than there are slots were held when the capacity was larger, before a restart.
            acquired: held.min(capacity),
            unavailable: capacity.saturating_sub(held + given),
            free: if self.state == InstancePhase::Ready && !self.held_for_request { given } else { 0 },
            held,
        }
    }

    /// Whether a request for so many slots can have them, now or when its jobs have ended.
    pub(super) fn can_fit(&self, slots: u32, capacity: u32, uses_max: Option<u32>) -> bool {
        self.state == InstancePhase::Ready && slots <= capacity && uses_max.is_none_or(|max| self.job_count < max)
    }

    /// Gives a key the lowest free slots; the lowest of them.
    pub(super) fn hold(&mut self, slots: u32, key: &TaskKey, at: Time) -> usize {
        self.add_occupancy(at);
        let mut first = None;
        for _ in 0..slots {
            let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
            self.put(slot, key.clone());
            first.get_or_insert(slot);
        }
        self.jobs += 1;
        first.unwrap_or_default()
    }

    /// As the books have it.
    pub(super) fn put(&mut self, slot: usize, key: TaskKey) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        if let Some(place) = self.slots.get_mut(slot) {
            debug_assert!(place.is_none(), "one lease per slot");
            *place = Some(key);
            self.held += 1;
        }
    }

    /// Frees what a key holds.
    pub(super) fn free(&mut self, key: &TaskKey, at: Time) {
        self.add_occupancy(at);
        let held = self.held;
        for place in self.slots.iter_mut().filter(|place| place.as_ref() == Some(key)) {
            *place = None;
            self.held -= 1;
        }
        self.jobs -= u32::from(self.held < held);
    }

    fn add_occupancy(&mut self, at: Time) {
        self.occupancy_ms = (self.occupancy_ms_at(at), at);
    }

    /// Milliseconds of all its jobs together.
    pub(super) fn occupancy_ms_at(&self, at: Time) -> u64 {
        let (sum, since) = self.occupancy_ms;
        let more = at.as_millis().saturating_sub(since.as_millis());
        sum.saturating_add(more.saturating_mul(u64::from(self.jobs)))
    }

    /// Who has slots, each once, by the lowest.
    pub(super) fn keys(&self) -> impl Iterator<Item = (usize, &TaskKey)> {
        let held = self.slots.iter().enumerate().filter_map(|(slot, key)| Some((slot, key.as_ref()?)));
        held.filter(|(slot, key)| !self.slots.iter().take(*slot).flatten().any(|other| other == *key))
    }

    pub(super) fn enter(&mut self, state: InstancePhase, at: Time, due: Option<Time>) {
        self.state = state;
        self.since = at;
        self.due = due;
    }

    pub(super) fn is_deleting(&self) -> bool {
        matches!(self.state, InstancePhase::Deleting(_))
    }

    /// Whether the next snapshot may bring news of it.
    pub(super) fn is_expected(&self) -> bool {
        let may_change = match &self.state {
            InstancePhase::Booting | InstancePhase::Deleting(_) => true,
            InstancePhase::Suspended(sleep) => sleep.is_expected(),
            InstancePhase::Ready
            | InstancePhase::Draining(_)
            | InstancePhase::Cordoned { .. }
            | InstancePhase::Preparing => false,
        };
        may_change || self.misses.is_missing()
    }
}
