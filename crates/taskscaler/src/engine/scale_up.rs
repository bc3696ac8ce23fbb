//! Scale-up requests of a group: instances that were requested and may still appear.
//!
//! ```text
//! Sent --accepted--> Accepted --> Overdue --\
//!   \                                        +--> WrittenOff --> forgotten
//!    \--failed-----> Unconfirmed -----------/
//! ```
//!
//! A failed call may have created instances anyway, and an accepted call may create them late. An instance that appears
//! is therefore matched to the likeliest request, even one that was written off. Only a list that was requested after a
//! deadline proves that an instance did not appear before the deadline.

use std::collections::VecDeque;
use std::time::Duration;

use super::instance::time_at;
use crate::ledger::Row;
use crate::time::{Now, Time};

/// Time in which the instances of a failed request count towards the limits.
const UNCONFIRMED_WINDOW: Duration = Duration::from_secs(60);
/// Time for which instances that appear are still matched to a failed request that was written off.
const LATE_MATCH_AFTER_FAILURE: Duration = Duration::from_secs(1800);
/// Time for which instances that appear are still matched to an accepted request that was written off.
const LATE_MATCH_AFTER_ACCEPT: Duration = Duration::from_secs(24 * 3600);
/// Instances are overdue after this multiple of the slowest recent creation time.
const OVERDUE_FACTOR: u32 = 4;
const MIN_OVERDUE: Duration = Duration::from_secs(15);
const MIN_LATENCY_SAMPLES: usize = 8;
/// The slowest of 64 is about the 99th percentile.
const MAX_LATENCY_SAMPLES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScaleUpRequest {
    call: u64,
    pub(super) requested_at: Time,
    requested_unix: i64,
    /// When the request was added to this engine: later than `requested_at` if it was restored from the ledger.
    added_at: Now,
    pub(super) requested: u32,
    /// Number of instances that may still appear.
    outstanding: u32,
    state: RequestState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestState {
    /// The provider has not answered.
    Sent,
    /// The provider creates the instances.
    Accepted {
        /// Time at which instances that have not appeared are overdue.
        overdue_at: Time,
        /// Time until which instances that have not appeared count towards the limits.
        counts_until: Time,
    },
    /// Some instances did not appear in time. They may still appear, but replacements may be requested within the
    /// group's limits.
    Overdue {
        /// Time until which the instances count towards the limits.
        until: Time,
    },
    /// The call failed. Whether the provider creates the instances is unknown.
    Unconfirmed {
        /// Time until which the instances count towards the limits.
        until: Time,
    },
    /// The instances no longer count towards the limits. An instance that appears anyway is managed.
    WrittenOff {
        /// Time at which the request is forgotten.
        until: Time,
    },
}

impl RequestState {
    fn restored(now: Now, accepted: bool, written_off_until: Option<i64>, create_timeout: Duration) -> Self {
        if let Some(until) = written_off_until {
            let remaining_s = u64::try_from(until.saturating_sub(now.unix)).unwrap_or(0);
            Self::WrittenOff { until: now.at + Duration::from_secs(remaining_s) }
        } else if accepted {
            let deadline = now.at + create_timeout;
            Self::Accepted { overdue_at: deadline, counts_until: deadline }
        } else {
            Self::Unconfirmed { until: now.at + UNCONFIRMED_WINDOW }
        }
    }
}

impl ScaleUpRequest {
    pub(super) fn timing_is_valid(&self) -> bool {
        self.added_at.at == self.requested_at
    }

    /// Converts `at`, which must not be before `added_at`, to seconds since 1970.
    fn unix(&self, at: Time) -> i64 {
        self.added_at.unix.saturating_add_unsigned(at.since(self.added_at.at).as_secs())
    }

    fn is_open(&self) -> bool {
        self.outstanding > 0 || self.state == RequestState::Sent
    }
}

#[derive(Debug)]
pub(super) struct MatchedRequest {
    /// The request after the match.
    pub(super) request: ScaleUpRequest,
    /// Whether the request was overdue, unconfirmed or written off.
    pub(super) is_late: bool,
    /// Calls of the requests whose ledger rows have changed.
    pub(super) changed: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Expired {
    /// Number of accepted instances that did not appear in time.
    pub(super) overdue: u32,
    /// Time after which an instance is overdue.
    pub(super) limit: Duration,
    /// Calls of the requests whose ledger rows have changed.
    pub(super) changed: Vec<u64>,
}

#[derive(Debug, Default)]
struct CreationLatencies(VecDeque<Duration>);

impl CreationLatencies {
    fn learn(&mut self, duration: Duration) {
        if self.0.len() == MAX_LATENCY_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(duration);
    }

    /// At most `max`, and `max` if there are too few samples.
    fn overdue_after(&self, max: Duration) -> Duration {
        let slowest = self.0.iter().max().filter(|_| self.0.len() >= MIN_LATENCY_SAMPLES);
        slowest.map_or(max, |slowest| (*slowest * OVERDUE_FACTOR).max(MIN_OVERDUE).min(max))
    }
}

#[derive(Debug, Default)]
pub(super) struct ScaleUpRequests {
    all: VecDeque<ScaleUpRequest>,
    latencies: CreationLatencies,
}

impl ScaleUpRequests {
    pub(super) fn send(&mut self, now: Now, call: u64, requested: u32) {
        self.all.push_back(ScaleUpRequest {
            call,
            requested_at: now.at,
            requested_unix: now.unix,
            added_at: now,
            requested,
            outstanding: requested,
            state: RequestState::Sent,
        });
    }

    /// Ignores rows of other kinds.
    pub(super) fn restore(&mut self, now: Now, call: u64, row: &Row, create_timeout: Duration) {
        let Row::ScaleUp { requested, outstanding, requested_at, accepted, written_off_until } = *row else { return };
        self.all.push_back(ScaleUpRequest {
            call,
            requested_at: time_at(now, requested_at),
            requested_unix: requested_at,
            added_at: now,
            requested,
            outstanding,
            state: RequestState::restored(now, accepted, written_off_until, create_timeout),
        });
    }

    pub(super) fn row(&self, call: u64) -> Option<Row> {
        let request = self.all.iter().find(|request| request.call == call && request.is_open())?;
        Some(Row::ScaleUp {
            requested: request.requested,
            outstanding: request.outstanding,
            requested_at: request.requested_unix,
            accepted: matches!(request.state, RequestState::Accepted { .. } | RequestState::Overdue { .. }),
            written_off_until: match request.state {
                RequestState::WrittenOff { until } => Some(request.unix(until)),
                _ => None,
            },
        })
    }

    /// Number of instances that are expected to appear in time.
    pub(super) fn expected(&self) -> u32 {
        self.outstanding(|state| matches!(state, RequestState::Sent | RequestState::Accepted { .. }))
    }

    /// Number of instances that may appear and count towards the limits.
    pub(super) fn may_appear(&self) -> u32 {
        self.outstanding(|state| !matches!(state, RequestState::WrittenOff { .. }))
    }

    /// Number of instances whose creation failed or is overdue.
    pub(super) fn unconfirmed(&self) -> u32 {
        self.may_appear() - self.expected()
    }

    fn outstanding(&self, is_counted: impl Fn(&RequestState) -> bool) -> u32 {
        self.all.iter().filter(|request| is_counted(&request.state)).map(|request| request.outstanding).sum()
    }

    pub(super) fn has_unanswered(&self) -> bool {
        self.all.iter().any(|request| request.state == RequestState::Sent)
    }

    /// Times of the oldest and the youngest request that awaits an instance.
    pub(super) fn pending_since(&self) -> Option<(Time, Time)> {
        let is_awaited = |state: &RequestState| {
            matches!(state, RequestState::Sent | RequestState::Accepted { .. } | RequestState::Overdue { .. })
        };
        let mut times = (self.all.iter())
            .filter(|request| request.outstanding > 0 && is_awaited(&request.state))
            .map(|request| request.requested_at);
        let first = times.next()?;
        Some((first, times.next_back().unwrap_or(first)))
    }

    /// Matches a new instance to the likeliest request. `None` if no instance is outstanding.
    pub(super) fn match_instance(&mut self, at: Time) -> Option<MatchedRequest> {
        let rank = |state: &RequestState| match state {
            RequestState::Accepted { .. } => 0,
            RequestState::Sent => 1,
            RequestState::Overdue { .. } => 2,
            RequestState::Unconfirmed { .. } => 3,
            RequestState::WrittenOff { .. } => 4,
        };
        let open = self.all.iter_mut().filter(|request| request.outstanding > 0);
        let matched = open.min_by_key(|request| rank(&request.state))?;
        matched.outstanding -= 1;
        let is_late = !matches!(matched.state, RequestState::Sent | RequestState::Accepted { .. });
        let request = matched.clone();
        if request.timing_is_valid() {
            self.latencies.learn(at.since(request.requested_at));
        }
        // The match may be wrong: if another request has created this instance, the instance of the matched request
        // appears later, and must then be matched to that other request. So all requests are kept until then.
        let keep_until = match request.state {
            RequestState::Accepted { counts_until, .. } => counts_until,
            _ => at + UNCONFIRMED_WINDOW,
        };
        let mut changed = vec![request.call];
        for other in &mut self.all {
            match &mut other.state {
                RequestState::Overdue { until } | RequestState::Unconfirmed { until } => {
                    *until = (*until).max(keep_until)
                }
                RequestState::WrittenOff { until } => {
                    *until = (*until).max(at + LATE_MATCH_AFTER_FAILURE);
                    changed.push(other.call);
                }
                RequestState::Sent | RequestState::Accepted { .. } => {}
            }
        }
        Some(MatchedRequest { request, is_late, changed })
    }

    /// Records the number of accepted instances. `accepted` is `None` if the call failed.
    ///
    /// Returns the number of requested instances. `None` if the request is unknown or was already answered.
    pub(super) fn answer(
        &mut self,
        call: u64,
        accepted: Option<u32>,
        at: Time,
        create_timeout: Duration,
    ) -> Option<u32> {
        let overdue_after = self.latencies.overdue_after(create_timeout);
        let is_unanswered = |request: &&mut ScaleUpRequest| request.call == call && request.state == RequestState::Sent;
        let request = self.all.iter_mut().find(is_unanswered)?;
        match accepted {
            Some(accepted) => {
                let appeared = request.requested - request.outstanding;
                request.outstanding = accepted.min(request.requested).saturating_sub(appeared);
                request.state =
                    RequestState::Accepted { overdue_at: at + overdue_after, counts_until: at + create_timeout };
            }
            None => request.state = RequestState::Unconfirmed { until: at + UNCONFIRMED_WINDOW },
        }
        Some(request.requested)
    }

    pub(super) fn remove_complete(&mut self) {
        self.all.retain(ScaleUpRequest::is_open);
    }

    /// Advances the requests whose deadlines have passed. `listed` is the start time of the newest applied list.
    ///
    /// Returns `None` if no deadline has passed.
    pub(super) fn expire(&mut self, at: Time, listed: Time, create_timeout: Duration) -> Option<Expired> {
        if !self.has_expired(at, listed) {
            return None;
        }
        let limit = self.latencies.overdue_after(create_timeout);
        let mut expired = Expired { limit, ..Expired::default() };
        for request in &mut self.all {
            let next = match request.state {
                RequestState::Accepted { overdue_at, counts_until }
                    if request.outstanding > 0 && overdue_at <= listed =>
                {
                    expired.overdue += request.outstanding;
                    if counts_until <= listed {
                        RequestState::WrittenOff { until: at + LATE_MATCH_AFTER_ACCEPT }
                    } else {
                        RequestState::Overdue { until: counts_until }
                    }
                }
                RequestState::Overdue { until } if until <= listed => {
                    RequestState::WrittenOff { until: at + LATE_MATCH_AFTER_ACCEPT }
                }
                RequestState::Unconfirmed { until } if until <= listed => {
                    RequestState::WrittenOff { until: at + LATE_MATCH_AFTER_FAILURE }
                }
                RequestState::WrittenOff { until } if until <= at => {
                    request.outstanding = 0;
                    request.state
                }
                state => state,
            };
            if next != request.state {
                request.state = next;
                expired.changed.push(request.call);
            }
            if !request.is_open() {
                expired.changed.push(request.call);
            }
        }
        self.remove_complete();
        Some(expired)
    }

    fn has_expired(&self, at: Time, listed: Time) -> bool {
        self.all.iter().any(|request| match request.state {
            RequestState::Sent => false,
            RequestState::Accepted { overdue_at: until, .. }
            | RequestState::Overdue { until }
            | RequestState::Unconfirmed { until } => until <= listed,
            RequestState::WrittenOff { until } => until <= at,
        })
    }

    pub(super) fn next_expiry(&self) -> Option<Time> {
        (self.all.iter())
            .filter_map(|request| match request.state {
                RequestState::Sent => None,
                RequestState::Accepted { overdue_at: until, .. }
                | RequestState::Overdue { until }
                | RequestState::Unconfirmed { until }
                | RequestState::WrittenOff { until } => Some(until),
            })
            .min()
    }
}
