//! Slots that are reserved for job requests before a job has arrived.
//!
//! While job requests immediately return jobs, slots are also reserved *ahead*, on instances that boot or can be
//! created. Without that, only two jobs at a time would start while two slots are idle. The number of slots that are
//! reserved ahead is at most the number of requests that immediately returned a job since the last answer without one.
//! After an answer without a job, or after [`HELD_AFTER`] without any answer, the reservations ahead are revoked.
//!
//! A reservation creates no instance.

use std::collections::HashSet;

use super::queue::Queue;
use crate::time::{HELD_AFTER, Now, Time};
use crate::types::TaskKey;

/// Reservations, including those of queued jobs, and the recent answers to job requests.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    keys: HashSet<TaskKey>,
    /// Number of immediately returned jobs since the last answer without a job.
    immediate_jobs: u64,
    /// Time of the last answer, or of a later reservation that was made while no other request was open.
    last_answer: Time,
    /// Whether reservations may exceed the free slots.
    may_exceed_free: bool,
    /// Time of the last refused reservation. `None` if none was refused, or if a later reservation was possible even
    /// though no slot was free.
    last_refusal: Option<Time>,
}

impl Reservations {
    pub(super) fn contains(&self, key: &TaskKey) -> bool {
        self.keys.contains(key)
    }

    pub(super) fn len(&self) -> u64 {
        self.keys.len() as u64
    }

    pub(super) fn add_for_request(&mut self, now: Now, key: TaskKey, queue: &Queue) {
        if self.unused(queue) == 0 {
            self.last_answer = now.at;
        }
        self.keys.insert(key);
    }

    pub(super) fn add(&mut self, key: TaskKey) {
        self.keys.insert(key);
    }

    pub(super) fn remove(&mut self, key: &TaskKey) {
        self.keys.remove(key);
    }

    pub(super) fn record_answer(&mut self, now: Now, is_immediate_job: bool) {
        self.immediate_jobs = if is_immediate_job { self.immediate_jobs.saturating_add(1) } else { 0 };
        self.last_answer = now.at;
    }

    /// `None` means that a reservation was possible although no slot was free.
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

    /// Number of unused reservations beyond the free slots.
    fn ahead(&self, queue: &Queue, free_slots: u64) -> u64 {
        self.unused(queue).saturating_sub(free_slots)
    }

    pub(super) fn are_ahead(&self, queue: &Queue, free_slots: u64) -> bool {
        self.may_exceed_free && self.ahead(queue, free_slots) > 0
    }

    /// Whether no request was answered for [`HELD_AFTER`], which means that no job waits at the coordinator.
    fn requests_are_held(&self, now: Now, queue: &Queue) -> bool {
        self.unused(queue) > 0 && now.at.since(self.last_answer) >= HELD_AFTER
    }

    /// Returns the maximum number of reservations ahead, regardless of how many slots the instances can provide.
    pub(super) fn max_ahead(&self, now: Now, queue: &Queue) -> u64 {
        if self.requests_are_held(now, queue) { 0 } else { self.immediate_jobs }
    }

    pub(super) fn may_reserve_ahead(&mut self, queue: &Queue, free_slots: u64, max_ahead: u64) -> bool {
        let is_allowed = self.ahead(queue, free_slots) < max_ahead;
        self.may_exceed_free |= is_allowed;
        is_allowed
    }

    /// Stops reserving ahead if the coordinator holds the requests. Returns [`Self::may_exceed_free`].
    pub(super) fn stop_ahead_if_held(&mut self, now: Now, queue: &Queue) -> bool {
        if self.may_exceed_free && self.requests_are_held(now, queue) {
            self.immediate_jobs = 0;
        }
        self.may_exceed_free
    }

    pub(super) fn count_to_revoke(&mut self, queue: &Queue, free_slots: u64, max_ahead: u64) -> u64 {
        self.may_exceed_free = max_ahead > 0;
        self.ahead(queue, free_slots).saturating_sub(max_ahead)
    }

    /// Removes up to `count` reservations for which no job has arrived.
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

    /// When unanswered requests will count as held. `None` if no slot can be reserved ahead.
    pub(super) fn next_wake(&self, now: Now, queue: &Queue) -> Option<Time> {
        let waits = self.may_exceed_free && self.unused(queue) > 0;
        waits.then_some(self.last_answer + HELD_AFTER).filter(|at| *at > now.at)
    }
}
