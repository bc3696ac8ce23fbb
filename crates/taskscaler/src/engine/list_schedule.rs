//! Decides when the instances of a group are listed. A *list* is a plugin call that returns all instances of a group.
//!
//! - While no change is expected, the interval is [`Config::update_interval`].
//! - While a change is expected, the interval is [`Config::update_interval_when_expecting`].
//! - While a job waits for such a change, the interval is a small part of the time that the change takes
//!   ([`TYPICAL_DURATION_DIVISOR`]).

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::Config;
use crate::throttle::Backoff;
use crate::time::Time;

/// Minimum time between the starts of two lists.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(50);
/// While a job waits, the list interval is the typical duration of the awaited change divided by this number. If the
/// change already takes longer than is typical, its duration so far is divided instead.
const TYPICAL_DURATION_DIVISOR: u32 = 50;
/// Minimum list interval, as a multiple of the average duration of a list call. [`Config::update_interval`] is the
/// minimum if it is shorter.
const MIN_INTERVAL_PER_LIST_TIME: u32 = 10;
/// Time for which a refused reservation counts as a waiting job.
const RECENT_REFUSAL: Duration = Duration::from_secs(1);
/// Time after which a list in flight no longer delays the next one.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// If there are more, the oldest is forgotten.
const MAX_LISTS_IN_FLIGHT: usize = 3;

#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedChanges {
    pub(super) oldest: Time,
    pub(super) youngest: Time,
    /// `None` if no such change has been observed.
    pub(super) typical: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ListDemand {
    pub(super) arrivals: Option<ExpectedChanges>,
    pub(super) deletions: Option<ExpectedChanges>,
    pub(super) has_waiting_jobs: bool,
    /// Time of the last refused reservation. `None` if none was refused, or if a later reservation was possible even
    /// though no slot was free.
    pub(super) last_refusal: Option<Time>,
}

#[derive(Debug)]
pub(super) struct ListSchedule {
    /// Time at which the call started whose list was applied last.
    applied_list_started_at: Time,
    /// Calls with their start times, the oldest first.
    in_flight: VecDeque<(u64, Time)>,
    last_started: Option<Time>,
    /// Time at which a requested list is due, regardless of the interval.
    requested_due: Option<Time>,
    average_duration: Duration,
    backoff: Backoff,
}

impl ListSchedule {
    pub(super) fn new(at: Time) -> Self {
        Self {
            applied_list_started_at: Time::ZERO,
            in_flight: VecDeque::new(),
            last_started: None,
            requested_due: Some(at),
            average_duration: Duration::ZERO,
            backoff: Backoff::default(),
        }
    }

    pub(super) fn applied_list_started_at(&self) -> Time {
        self.applied_list_started_at
    }

    pub(super) fn request_at(&mut self, at: Time) {
        self.requested_due = Some(at);
    }

    /// Does nothing if a list is due earlier.
    pub(super) fn request_by(&mut self, at: Time) {
        self.requested_due = Some(self.requested_due.map_or(at, |requested| requested.min(at)));
    }

    pub(super) fn restart(&mut self, at: Time) {
        self.in_flight.clear();
        self.request_at(at);
    }

    pub(super) fn start(&mut self, call: u64, at: Time) {
        if self.in_flight.len() >= MAX_LISTS_IN_FLIGHT {
            self.in_flight.pop_front();
        }
        self.in_flight.push_back((call, at));
        self.last_started = Some(at);
        self.requested_due = None;
    }

    /// Returns the start time of an answered call, and forgets older calls in flight.
    ///
    /// `None` means that the list is outdated, or that its call was forgotten.
    pub(super) fn finish(&mut self, call: u64) -> Option<Time> {
        let position = self.in_flight.iter().position(|(number, _)| *number == call)?;
        let (_, started) = self.in_flight.remove(position)?;
        self.in_flight.retain(|(number, _)| *number > call);
        Some(started)
    }

    /// Returns the number of consecutive failures.
    pub(super) fn record_failure(&mut self, at: Time, error: String, jitter: u64) -> u32 {
        self.backoff.fail(at, error, jitter);
        self.backoff.failures
    }

    pub(super) fn record_success(&mut self, started: Time, at: Time) {
        self.average_duration = (self.average_duration * 3 + at.since(started)) / 4;
        self.backoff.succeed();
        self.applied_list_started_at = started;
    }

    /// `None` if the last list succeeded.
    pub(super) fn failure(&self) -> Option<(u32, &str)> {
        let Backoff { failures, error, .. } = &self.backoff;
        (*failures > 0).then_some((*failures, error.as_str()))
    }

    pub(super) fn next(&self, config: &Config, demand: &ListDemand) -> Time {
        let Some(last) = self.last_started else { return Time::ZERO };
        let in_flight_until = self.in_flight.back().map_or(Time::ZERO, |(_, started)| *started + LIST_TIMEOUT);
        let earliest = last
            + MIN_LIST_INTERVAL.max((self.average_duration * MIN_INTERVAL_PER_LIST_TIME).min(config.update_interval));
        let due = if self.backoff.failures > 0 {
            self.backoff.until
        } else {
            let due = last + interval(config, demand, last);
            self.requested_due.map_or(due, |requested| requested.min(due))
        };
        due.max(earliest).max(in_flight_until)
    }
}

fn interval(config: &Config, demand: &ListDemand, last: Time) -> Duration {
    let expecting = config.update_interval_when_expecting;
    let was_refused = demand.last_refusal.is_some_and(|refused| last.since(refused) < RECENT_REFUSAL);
    let is_awaited = demand.has_waiting_jobs || was_refused;
    let changes = [demand.arrivals, demand.deletions].into_iter().flatten();
    let intervals = changes.map(|changes| match is_awaited {
        true => next_change_in(last, changes).clamp(MIN_LIST_INTERVAL, expecting),
        false => expecting,
    });
    intervals.min().unwrap_or(config.update_interval)
}

/// Time from the list at `last` until a change is likely to be visible.
fn next_change_in(last: Time, changes: ExpectedChanges) -> Duration {
    match changes.typical {
        // A change is unlikely to complete before 90 % of its typical duration.
        Some(typical) if last.since(changes.oldest) < typical * 9 / 10 => {
            (changes.oldest + typical * 9 / 10).since(last)
        }
        Some(typical) => typical.max(last.since(changes.youngest)) / TYPICAL_DURATION_DIVISOR,
        None => last.since(changes.youngest) / TYPICAL_DURATION_DIVISOR * 5,
    }
}
