//! One instance: its phase, its slots, and its conversion to and from a row of the ledger.
//!
//! ```text
//!  requested --> Booting --> Preparing --> Ready --(drained with jobs)--> Draining --(last job)--> Deleting --> removed
//!                                          |  ^                                                      ^
//!                     saved by its last job|  |resumed by a job                                      |
//!                                          v  |                                                      |
//!                                        Suspended --------------- expired, failed to resume --------/
//! ```
//!
//! An operator can cordon an instance that is not suspended or deleting. An uncordoned instance starts again as
//! `Booting`. An instance that fails or exceeds a timeout is drained or deleted. In any phase, an instance that the
//! provider no longer lists is removed.

use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::suspend::{MAX_LIST_AGE, Suspension};
use crate::ledger::{Intent, Row};
use crate::suspend::SuspendedEnvironment;
use crate::time::{Now, Time, milliseconds};
use crate::types::{GroupId, RemovalReason, StickyContextId, TaskKey};

/// Consecutive lists without an instance after which the instance is lost.
const LOST_AFTER_MISSES: u32 = 2;
/// Minimum time between the first and the last of these lists, because a wrong list is often followed by another one.
pub(super) const MIN_MISS_SPAN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InstancePhase {
    /// The provider creates the instance.
    Booting,
    /// The instance is running. The ready command runs.
    Preparing,
    /// The slots can be assigned to jobs.
    Ready,
    /// The instance is deleted after its last job.
    Draining(RemovalReason),
    /// The instance is being deleted.
    Deleting(Deleting),
    /// The instance is suspended with the environment of a job, or is being suspended or resumed.
    Suspended(Suspension),
    /// An operator cordoned the instance: it gets no new jobs and is not deleted.
    Cordoned {
        /// Operator and reason.
        by: String,
        /// Reason why the instance is deleted once it is uncordoned.
        pending_removal: Option<RemovalReason>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deleting {
    pub(super) reason: RemovalReason,
    pub(super) attempts: u32,
    pub(super) call_in_flight: bool,
    pub(super) since: Time,
}

impl Deleting {
    pub(super) fn new(reason: RemovalReason, at: Time) -> Self {
        Self { reason, attempts: 0, call_in_flight: false, since: at }
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MissCounter {
    misses: u32,
    since: Time,
}

impl MissCounter {
    /// Records a list without the instance. Returns whether the instance is lost.
    pub(super) fn record_miss(&mut self, at: Time) -> bool {
        if self.misses == 0 {
            self.since = at;
        }
        self.misses += 1;
        self.misses >= LOST_AFTER_MISSES && at.since(self.since) >= MIN_MISS_SPAN
    }

    pub(super) fn is_missing(&self) -> bool {
        self.misses > 0
    }
}

#[derive(Debug, Clone)]
pub(super) struct Instance {
    pub(super) id: InstanceId,
    pub(super) group: GroupId,
    /// Position in the order in which instances were first seen.
    pub(super) sequence: u64,
    pub(super) phase: InstancePhase,
    /// Task key of each slot, up to the highest slot that was ever assigned.
    slots: Vec<Option<TaskKey>>,
    pub(super) assigned_slots: u32,
    /// Number of running jobs.
    pub(super) jobs: u32,
    /// Number of jobs that the instance has had, including running jobs.
    pub(super) job_count: u32,
    /// Whether the free slots are held for a starved request.
    pub(super) held_for_request: bool,
    /// Sticky contexts, the most recently used last.
    pub(super) contexts: Vec<StickyContextId>,
    /// Total run time of the jobs in milliseconds, and the time up to which it was computed.
    occupancy_ms: (u64, Time),
    /// Consecutive failed health checks.
    pub(super) failures: u32,
    pub(super) requested_at: Time,
    pub(super) first_seen: Time,
    first_seen_unix: i64,
    /// When the current phase began.
    pub(super) since: Time,
    /// When the last job ended, or when the instance became ready.
    pub(super) idle_since: Time,
    idle_unix: i64,
    /// Whether the instance had no job before the restart and has not been ready since.
    pub(super) was_idle_before_restart: bool,
    pub(super) misses: MissCounter,
    /// Expiry of the timer. The phase determines what happens then.
    pub(super) due: Option<Time>,
    /// Number of the last list with the instance. 0 if this process has not listed the instance.
    pub(super) last_list: u64,
    /// Whether no request of this process created the instance: it is from the ledger, or was found as unmanaged.
    pub(super) created_elsewhere: bool,
    /// Whether estimates can use the boot and preparation times.
    pub(super) timing_is_valid: bool,
    pub(super) was_ready: bool,
    pub(super) saved_environment: Option<SuspendedEnvironment>,
    pub(super) resumed_environment: Option<SuspendedEnvironment>,
    /// Time before which a list that reports the instance as suspended is outdated.
    pub(super) ignore_lists_before: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SlotTotals {
    /// 1 if the slots can be assigned now or once the instance is ready, otherwise 0.
    pub(super) supply: u32,
    /// Assigned slots, if `supply` is 1.
    pub(super) acquired: u32,
    /// Free slots that will never be assigned, if `supply` is 1.
    pub(super) unavailable: u32,
    /// Slots that can be assigned now.
    pub(super) free: u32,
    /// Assigned slots in any phase.
    pub(super) assigned: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct InstanceLimits {
    pub(super) capacity: u32,
    /// `None` means no limit.
    pub(super) max_uses: Option<u32>,
}

impl InstanceLimits {
    pub(super) fn is_used_up(self, job_count: u32) -> bool {
        self.max_uses.is_some_and(|max| job_count >= max)
    }
}

impl Instance {
    pub(super) fn new(
        group: GroupId,
        id: InstanceId,
        sequence: u64,
        now: Now,
        created_elsewhere: bool,
        boot_timeout: Duration,
    ) -> Self {
        Self {
            id,
            group,
            sequence,
            phase: InstancePhase::Booting,
            slots: Vec::new(),
            assigned_slots: 0,
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
            due: Some(now.at + boot_timeout),
            last_list: 0,
            created_elsewhere,
            timing_is_valid: !created_elsewhere,
            was_ready: false,
            saved_environment: None,
            resumed_environment: None,
            ignore_lists_before: now.at,
        }
    }

    /// Restores the instance from its row, except for the sticky contexts. Ignores rows of other kinds.
    pub(super) fn restore(&mut self, now: Now, row: &Row) {
        let Row::Instance {
            slots, job_count, first_seen_at, idle_since, intent, was_ready, suspended_environment, ..
        } = row
        else {
            return;
        };
        self.job_count = *job_count;
        self.first_seen_unix = *first_seen_at;
        self.first_seen = time_at(now, *first_seen_at);
        for (slot, key) in slots.iter().enumerate() {
            if let Some(key) = key {
                self.assign_slot(slot, TaskKey::new(key));
            }
        }
        self.jobs = u32::try_from(self.keys().count()).unwrap_or(u32::MAX);
        if let Some(unix) = idle_since.filter(|_| self.assigned_slots == 0) {
            (self.idle_since, self.idle_unix, self.was_idle_before_restart) = (time_at(now, unix), unix, true);
        }
        match intent {
            Intent::Serve | Intent::Suspend => {}
            Intent::Cordon { by, pending_removal } => {
                let phase = InstancePhase::Cordoned { by: by.clone(), pending_removal: pending_removal.clone() };
                self.enter(phase, now.at, None);
            }
            Intent::Drain(reason) => self.enter(InstancePhase::Draining(reason.clone()), now.at, None),
            Intent::Delete(reason) => {
                let deleting = Deleting::new(reason.clone(), now.at);
                self.enter(InstancePhase::Deleting(deleting), now.at, Some(now.at));
            }
        }
        // An instance that has had a job was ready, because only ready instances get jobs.
        self.was_ready = *was_ready || self.job_count > 0;
        self.saved_environment.clone_from(suspended_environment);
        // A job may have resumed the instance just before the restart, so lists may still report it as suspended.
        self.ignore_lists_before = now.at + MAX_LIST_AGE;
    }

    pub(super) fn row(&self) -> Row {
        Row::Instance {
            slots: self.slots.iter().map(|key| key.as_ref().map(|key| key.as_str().to_owned())).collect(),
            job_count: self.job_count,
            first_seen_at: self.first_seen_unix,
            idle_since: Some(self.idle_unix),
            intent: match &self.phase {
                InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => Intent::Serve,
                InstancePhase::Suspended(_) => Intent::Suspend,
                InstancePhase::Cordoned { by, pending_removal } => {
                    Intent::Cordon { by: by.clone(), pending_removal: pending_removal.clone() }
                }
                InstancePhase::Draining(reason) => Intent::Drain(reason.clone()),
                InstancePhase::Deleting(deleting) => Intent::Delete(deleting.reason.clone()),
            },
            contexts: self.contexts.clone(),
            was_ready: self.was_ready,
            suspended_environment: self.saved_environment.clone(),
        }
    }

    pub(super) fn slot_totals(&self, limits: InstanceLimits) -> SlotTotals {
        let (assigned, capacity) = (self.assigned_slots, limits.capacity);
        let remaining_uses = limits.max_uses.map_or(capacity, |max| max.saturating_sub(self.job_count));
        let assignable = capacity.saturating_sub(assigned).min(remaining_uses);
        let is_supply = matches!(self.phase, InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready);
        if !is_supply {
            return SlotTotals { assigned, ..SlotTotals::default() };
        }
        SlotTotals {
            supply: 1,
            // The capacity may have been larger before a restart.
            acquired: assigned.min(capacity),
            unavailable: capacity.saturating_sub(assigned + assignable),
            free: if self.phase == InstancePhase::Ready && !self.held_for_request { assignable } else { 0 },
            assigned,
        }
    }

    /// Whether a request for `slots` slots can get them now, or once jobs on the instance have ended.
    pub(super) fn can_fit(&self, slots: u32, limits: InstanceLimits) -> bool {
        self.phase == InstancePhase::Ready && slots <= limits.capacity && !limits.is_used_up(self.job_count)
    }

    /// Returns the lowest assigned slot.
    pub(super) fn assign(&mut self, slots: u32, key: &TaskKey, at: Time) -> usize {
        self.add_occupancy(at);
        let mut first = None;
        for _ in 0..slots {
            let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
            self.assign_slot(slot, key.clone());
            first.get_or_insert(slot);
        }
        self.jobs += 1;
        first.unwrap_or_default()
    }

    fn assign_slot(&mut self, slot: usize, key: TaskKey) {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        if let Some(holder) = self.slots.get_mut(slot) {
            debug_assert!(holder.is_none(), "one lease per slot");
            *holder = Some(key);
            self.assigned_slots += 1;
        }
    }

    /// Frees the slots of a job, and removes the resumed environment.
    pub(super) fn release(&mut self, key: &TaskKey, now: Now) {
        self.add_occupancy(now.at);
        let assigned_before = self.assigned_slots;
        for holder in self.slots.iter_mut().filter(|holder| holder.as_ref() == Some(key)) {
            *holder = None;
            self.assigned_slots -= 1;
        }
        self.jobs -= u32::from(self.assigned_slots < assigned_before);
        self.resumed_environment = None;
        if self.assigned_slots == 0 {
            (self.idle_since, self.idle_unix) = (now.at, now.unix);
        }
    }

    /// `first_check` is the time of the first health check.
    pub(super) fn become_ready(&mut self, at: Time, first_check: Option<Time>) {
        self.enter(InstancePhase::Ready, at, first_check);
        self.failures = 0;
    }

    /// After a restart, at most `max_counted` of the earlier idle time counts.
    pub(super) fn start_idle_time(&mut self, now: Now, max_counted: Duration) {
        if self.was_idle_before_restart {
            let max_counted = milliseconds(max_counted);
            let earliest = Time::from_millis(now.at.as_millis().saturating_sub(max_counted));
            self.idle_since = self.idle_since.max(earliest);
        } else {
            (self.idle_since, self.idle_unix) = (now.at, now.unix);
        }
        self.was_idle_before_restart = false;
    }

    fn add_occupancy(&mut self, at: Time) {
        self.occupancy_ms = (self.occupancy_ms_at(at), at);
    }

    /// Total run time of the jobs, in milliseconds.
    pub(super) fn occupancy_ms_at(&self, at: Time) -> u64 {
        let (sum, since) = self.occupancy_ms;
        let elapsed_ms = at.as_millis().saturating_sub(since.as_millis());
        sum.saturating_add(elapsed_ms.saturating_mul(u64::from(self.jobs)))
    }

    pub(super) fn slots(&self) -> &[Option<TaskKey>] {
        &self.slots
    }

    /// Returns each task that has slots, with its lowest slot.
    pub(super) fn keys(&self) -> impl Iterator<Item = (usize, &TaskKey)> {
        let assigned = self.slots.iter().enumerate().filter_map(|(slot, key)| Some((slot, key.as_ref()?)));
        assigned.filter(|(slot, key)| !self.slots.iter().take(*slot).flatten().any(|other| other == *key))
    }

    /// `due` is when the timer of the new phase expires.
    pub(super) fn enter(&mut self, phase: InstancePhase, at: Time, due: Option<Time>) {
        self.phase = phase;
        self.since = at;
        self.due = due;
    }

    /// Returns why the instance is deleted after its last job. `None` if it is kept, or is already being deleted.
    pub(super) fn removal_after_last_job(&self, limits: InstanceLimits) -> Option<RemovalReason> {
        match &self.phase {
            InstancePhase::Draining(reason) => Some(reason.clone()),
            // An operator may want to examine a cordoned instance, even a used-up one.
            InstancePhase::Deleting(_) | InstancePhase::Cordoned { .. } | InstancePhase::Suspended(_) => None,
            InstancePhase::Booting | InstancePhase::Preparing | InstancePhase::Ready => {
                let is_used_up = limits.is_used_up(self.job_count);
                is_used_up.then_some(RemovalReason::MaxUsesReached { uses: self.job_count })
            }
        }
    }

    /// `None` if the instance is no longer ready.
    pub(super) fn take_resumed_environment(&mut self) -> Option<SuspendedEnvironment> {
        if self.phase == InstancePhase::Ready { self.resumed_environment.take() } else { None }
    }

    /// `None` if no delete call was made.
    pub(super) fn deletion_time(&self, at: Time) -> Option<Duration> {
        match &self.phase {
            InstancePhase::Deleting(deleting) if deleting.attempts > 0 => Some(at.since(deleting.since)),
            _ => None,
        }
    }

    pub(super) fn is_deleting(&self) -> bool {
        matches!(self.phase, InstancePhase::Deleting(_))
    }

    /// Returns the start of the boot, deletion or suspension whose completion the next list may show.
    pub(super) fn change_expected_since(&self) -> Time {
        if self.phase == InstancePhase::Booting { self.requested_at } else { self.since }
    }

    pub(super) fn expects_change(&self) -> bool {
        let may_change = match &self.phase {
            InstancePhase::Booting | InstancePhase::Deleting(_) => true,
            InstancePhase::Suspended(suspension) => suspension.expects_change(),
            InstancePhase::Ready
            | InstancePhase::Draining(_)
            | InstancePhase::Cordoned { .. }
            | InstancePhase::Preparing => false,
        };
        may_change || self.misses.is_missing()
    }
}

/// Converts a Unix time to the engine's time. A time in the future counts as now.
pub(super) fn time_at(now: Now, unix_seconds: i64) -> Time {
    let age_s = u64::try_from(now.unix.saturating_sub(unix_seconds)).unwrap_or(0);
    Time::from_millis(now.at.as_millis().saturating_sub(age_s.saturating_mul(1000)))
}
