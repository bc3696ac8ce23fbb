//! Decides when the instances of a group are listed. A *list* is a call of the plugin that returns all instances of the group.
//!
//! - While no change is expected, the interval is [`Config::update_interval`].
//! - While a change is expected, the interval is [`Config::update_interval_when_expecting`].
//! - While a job waits for a change that should complete soon, the interval is a small part of the time that the change takes, so
//!   that the job is hardly delayed (see [`TYPICAL_DURATION_DIVISOR`]).
//!
//! If list calls are slow, the interval is at least [`MIN_INTERVAL_PER_LIST_TIME`] times their average duration, up to
//! [`Config::update_interval`].

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::Config;
use crate::throttle::Backoff;
use crate::time::Time;

/// Minimum time between the starts of two lists.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(50);
/// Divisor that determines the list interval while a job waits.
///
/// The interval is the typical duration of the awaited change, or its duration so far if that is longer, divided by this number.
/// Polling thus delays a waiting job by about a fiftieth of the time that the change takes, or by a tenth if its typical duration is
/// unknown.
const TYPICAL_DURATION_DIVISOR: u32 = 50;
/// Minimum list interval, as a multiple of the average duration of a list.
///
/// This minimum is at most [`Config::update_interval`], because a list that hangs for minutes does not predict the duration of the
/// next one.
const MIN_INTERVAL_PER_LIST_TIME: u32 = 10;
/// Time for which a refused reservation counts as a waiting job.
///
/// While a caller waits for capacity, each change of the engine renews the refusal.
const RECENT_REFUSAL: Duration = Duration::from_secs(1);
/// Time after which a list in flight no longer delays the next one.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of tracked lists in flight. The oldest is forgotten.
const MAX_LISTS_IN_FLIGHT: usize = 3;

/// Changes of one kind that the next lists should show, such as boots or deletions.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpectedChanges {
    /// When the oldest change began.
    pub(super) oldest: Time,
    /// When the youngest change began.
    pub(super) youngest: Time,
    /// Typical duration of such a change. `None` if none has been observed.
    pub(super) typical: Option<Duration>,
}

/// Inputs that determine how soon a group must be listed.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListDemand {
    pub(super) arrivals: Option<ExpectedChanges>,
    pub(super) deletions: Option<ExpectedChanges>,
    /// Whether a job waits for a slot or for a suspended environment.
    pub(super) has_waiting_jobs: bool,
    /// When the last reservation was refused. `None` if it was possible, or if there was none.
    pub(super) last_refusal: Option<Time>,
}

/// Schedule of a group's lists, and its lists in flight.
#[derive(Debug)]
pub(super) struct ListSchedule {
    /// When the newest applied list was requested.
    applied: Time,
    /// Calls in flight with their start times, the oldest first.
    in_flight: VecDeque<(u64, Time)>,
    /// When the last list was started.
    last_started: Option<Time>,
    /// Time at which a requested list is due, regardless of the interval.
    requested: Option<Time>,
    /// Average duration of a list.
    average_duration: Duration,
    backoff: Backoff,
}

impl ListSchedule {
    pub(super) fn new(at: Time) -> Self {
        Self {
            applied: Time::ZERO,
            in_flight: VecDeque::new(),
            last_started: None,
            requested: Some(at),
            average_duration: Duration::ZERO,
            backoff: Backoff::default(),
        }
    }

    /// Returns when the newest applied list was requested.
    pub(super) fn applied(&self) -> Time {
        self.applied
    }

    /// Makes the next list due at this time.
    pub(super) fn request_at(&mut self, at: Time) {
        self.requested = Some(at);
    }

    /// Makes the next list due at this time, unless one is due earlier.
    pub(super) fn request_by(&mut self, at: Time) {
        self.requested = Some(self.requested.map_or(at, |requested| requested.min(at)));
    }

    /// Forgets the lists in flight of a plugin that was restarted, and makes the next list due now.
    pub(super) fn restart(&mut self, at: Time) {
        self.in_flight.clear();
        self.request_at(at);
    }

    /// Records that a list is started.
    pub(super) fn start(&mut self, call: u64, at: Time) {
        if self.in_flight.len() >= MAX_LISTS_IN_FLIGHT {
            self.in_flight.pop_front();
        }
        self.in_flight.push_back((call, at));
        self.last_started = Some(at);
        self.requested = None;
    }

    /// Returns the start time of a list that was answered, and forgets older lists in flight.
    ///
    /// Returns `None` if a newer list was answered before, which makes this one outdated, or if the call was forgotten, for example
    /// because the plugin was restarted.
    pub(super) fn finish(&mut self, call: u64) -> Option<Time> {
        let position = self.in_flight.iter().position(|(number, _)| *number == call)?;
        let (_, started) = self.in_flight.remove(position)?;
        self.in_flight.retain(|(number, _)| *number > call);
        Some(started)
    }

    /// Records a failed list. Returns the number of consecutive failures.
    pub(super) fn record_failure(&mut self, at: Time, error: String, jitter: u64) -> u32 {
        self.backoff.fail(at, error, jitter);
        self.backoff.failures
    }

    /// Records a list that is applied.
    pub(super) fn record_success(&mut self, started: Time, at: Time) {
        self.average_duration = (self.average_duration * 3 + at.since(started)) / 4;
        self.backoff.succeed();
        self.applied = started;
    }

    /// Returns the number of consecutive failures and the provider's last error. `None` if the last list succeeded.
    pub(super) fn failure(&self) -> Option<(u32, &str)> {
        let Backoff { failures, error, .. } = &self.backoff;
        (*failures > 0).then_some((*failures, error.as_str()))
    }

    /// Returns when the next list is due.
    pub(super) fn next(&self, config: &Config, demand: &ListDemand) -> Time {
        let Some(last) = self.last_started else { return Time::ZERO };
        let in_flight_until = self.in_flight.back().map_or(Time::ZERO, |(_, started)| *started + LIST_TIMEOUT);
        let earliest = last
            + MIN_LIST_INTERVAL.max((self.average_duration * MIN_INTERVAL_PER_LIST_TIME).min(config.update_interval));
        let due = if self.backoff.failures > 0 {
            self.backoff.until
        } else {
            let due = last + interval(config, demand, last);
            self.requested.map_or(due, |requested| requested.min(due))
        };
        due.max(earliest).max(in_flight_until)
    }
}

/// Returns the interval from the list at `last` to the next one.
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

/// Returns the time from the last list until one of the changes is likely to be visible.
fn next_change_in(last: Time, changes: ExpectedChanges) -> Duration {
    match changes.typical {
        // A change is unlikely to complete before 90 % of its typical duration, so the next list waits until then.
        Some(typical) if last.since(changes.oldest) < typical * 9 / 10 => {
            (changes.oldest + typical * 9 / 10).since(last)
        }
        Some(typical) => typical.max(last.since(changes.youngest)) / TYPICAL_DURATION_DIVISOR,
        None => last.since(changes.youngest) / TYPICAL_DURATION_DIVISOR * 5,
    }
}
