//! Reservations: slots that are reserved for job requests before a job has arrived.
//!
//! With two idle slots and a full queue at the coordinator, reservations of free slots would start only two jobs at a time.
//! While job requests immediately return jobs, slots of instances that boot or can be created now are therefore reserved ahead.
//! At most as many slots are reserved ahead as consecutive requests immediately returned a job. After an answer without a job,
//! or after [`HELD_AFTER`] without any answer, the reservations ahead are revoked.
//!
//! A reservation creates no instance. Instances are created for jobs that have arrived.

use std::collections::HashSet;

use super::queue::Queue;
use crate::time::{HELD_AFTER, Now, Time};
use crate::types::TaskKey;

/// All reservations, including those of jobs that wait for a slot, and the recent answers to job requests.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    keys: HashSet<TaskKey>,
    /// Number of jobs that requests immediately returned since the last answer without a job.
    immediate_jobs: u64,
    /// Time from which [`HELD_AFTER`] is counted.
    ///
    /// This is the time of the last answer. If a request was sent later while no other was open, it is the time of that request's reservation.
    last_answer: Time,
    /// Whether reservations may exceed the free slots.
    is_ahead: bool,
    /// Time of the last refused attempt to reserve a slot. A job may be waiting at the coordinator.
    ///
    /// Reset to `None` when a slot that is not free can be reserved.
    last_refusal: Option<Time>,
}

impl Reservations {
    pub(super) fn contains(&self, key: &TaskKey) -> bool {
        self.keys.contains(key)
    }

    pub(super) fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Adds a reservation for a job request that has no answer yet.
    pub(super) fn add_for_request(&mut self, now: Now, key: TaskKey, queue: &Queue) {
        if self.unused(queue) == 0 {
            self.last_answer = now.at;
        }
        self.keys.insert(key);
    }

    /// Adds a reservation for a job that has arrived.
    pub(super) fn add(&mut self, key: TaskKey) {
        self.keys.insert(key);
    }

    pub(super) fn remove(&mut self, key: &TaskKey) {
        self.keys.remove(key);
    }

    /// Records an answer to a job request, and whether it returned a job immediately.
    pub(super) fn record_answer(&mut self, now: Now, is_immediate_job: bool) {
        self.immediate_jobs = if is_immediate_job { self.immediate_jobs.saturating_add(1) } else { 0 };
        self.last_answer = now.at;
    }

    /// Records when an attempt to reserve a slot that is not free was refused. `None` means that the attempt succeeded.
    pub(super) fn record_refusal(&mut self, refused_at: Option<Time>) {
        self.last_refusal = refused_at;
    }

    pub(super) fn last_refusal(&self) -> Option<Time> {
        self.last_refusal
    }

    /// Number of reservations for which no job has arrived.
    pub(super) fn unused(&self, queue: &Queue) -> u64 {
        self.len().saturating_sub(queue.len() as u64)
    }

    /// Number of unused reservations that exceed the free slots.
    fn ahead(&self, queue: &Queue, free_slots: u64) -> u64 {
        self.unused(queue).saturating_sub(free_slots)
    }

    /// Whether slots are reserved ahead of free ones because requests immediately return jobs.
    pub(super) fn are_ahead(&self, queue: &Queue, free_slots: u64) -> bool {
        self.is_ahead && self.ahead(queue, free_slots) > 0
    }

    /// Whether requests were unanswered for [`HELD_AFTER`], which means that no job waits at the coordinator.
    fn is_held(&self, now: Now, queue: &Queue) -> bool {
        self.unused(queue) > 0 && now.at.since(self.last_answer) >= HELD_AFTER
    }

    /// Returns the maximum number of reservations ahead of free slots. The slots that instances can provide may limit it further.
    pub(super) fn max_ahead(&self, now: Now, queue: &Queue) -> u64 {
        if self.is_held(now, queue) { 0 } else { self.immediate_jobs }
    }

    /// Whether one more slot may be reserved ahead of free ones, if at most `max_ahead` may be.
    pub(super) fn may_reserve_ahead(&mut self, queue: &Queue, free_slots: u64, max_ahead: u64) -> bool {
        let is_allowed = self.ahead(queue, free_slots) < max_ahead;
        self.is_ahead |= is_allowed;
        is_allowed
    }

    /// Returns whether [`Self::too_far_ahead`] must be called. Stops reserving ahead if requests are held.
    pub(super) fn check_ahead(&mut self, now: Now, queue: &Queue) -> bool {
        if self.is_ahead && self.is_held(now, queue) {
            self.immediate_jobs = 0;
        }
        self.is_ahead
    }

    /// Number of reservations to revoke because more than `max_ahead` are ahead of free slots.
    pub(super) fn too_far_ahead(&mut self, queue: &Queue, free_slots: u64, max_ahead: u64) -> u64 {
        self.is_ahead = max_ahead > 0;
        self.ahead(queue, free_slots).saturating_sub(max_ahead)
    }

    /// Removes and returns up to `count` reservations for which no job has arrived.
    pub(super) fn revoke(&mut self, queue: &Queue, count: u64) -> Vec<TaskKey> {
        if count == 0 {
            return Vec::new();
        }
        let mut keys: Vec<TaskKey> = self.keys.iter().filter(|key| queue.get(key).is_none()).cloned().collect();
        keys.sort_unstable();
        keys.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        for key in &keys {
            self.keys.remove(key);
        }
        keys
    }

    /// Returns the time from which unanswered requests count as held. `None` if no slot can be reserved ahead.
    pub(super) fn next_wake(&self, now: Now, queue: &Queue) -> Option<Time> {
        let waits = self.is_ahead && self.unused(queue) > 0;
        waits.then_some(self.last_answer + HELD_AFTER).filter(|at| *at > now.at)
    }
}
