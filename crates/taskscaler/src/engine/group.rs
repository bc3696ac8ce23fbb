//! One group: its plugin, what was asked of it, and what is held back.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::instance::MissCounter;
use crate::config::GroupConfig;
use crate::throttle::{Backoff, TokenBucket};
use crate::time::{Now, Time};

/// Calls of `Increase` per second, whatever the instances per second (I6).
pub(super) const CALLS_PER_SECOND: f64 = 10.0;
/// Calls of `Increase` at once.
pub(super) const CALLS_BURST: f64 = 10.0;
/// After a call that failed, its instances may appear for so long; they count until then.
pub(super) const UNCONFIRMED_WINDOW: Duration = Duration::from_secs(60);
/// What appears so long after a failed call was given up is still ours.
const LATE_MATCH_AFTER_FAILURE: Duration = Duration::from_secs(1800);
/// What was granted and did not appear in time is ours whenever it appears within this.
const LATE_MATCH_AFTER_ACCEPT: Duration = Duration::from_secs(24 * 3600);
/// What was granted is late after so many times of what the slowest of late took to appear,
const OVERDUE_FACTOR: u32 = 4;
/// and not before this: providers hesitate.
const MIN_OVERDUE: Duration = Duration::from_secs(15);
/// So many appeared before their times say anything,
const MIN_LATENCY_SAMPLES: usize = 8;
/// and so many of late are looked at: with them the slowest is about the 99th of a hundred.
const MAX_LATENCY_SAMPLES: usize = 64;
/// Ids of instances that are gone are known for so long: a list may be old.
const DELETED_ID_TTL: Duration = Duration::from_secs(3600);
/// The most gone ids that are known.
const MAX_DELETED_IDS: usize = 100_000;

/// Whether there is someone to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plugin {
    Down { cause: String },
    Up { max_size: u32 },
}

/// One request for instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScaleUpRequest {
    pub(super) call: u64,
    pub(super) requested_at: Time,
    pub(super) requested_unix: i64,
    /// Since when this process knows of it; later than asked where it comes from the books.
    pub(super) known: Now,
    /// How many it was for.
    pub(super) requested: u32,
    /// How many of it may still appear.
    pub(super) outstanding: u32,
    pub(super) state: RequestState,
}

impl ScaleUpRequest {
    /// Whether the whole time since it was asked for was lived through: only then it says how long creations take.
    pub(super) fn timing_is_valid(&self) -> bool {
        self.known.at == self.requested_at
    }

    /// The wall clock's time of a later moment.
    pub(super) fn unix(&self, at: Time) -> i64 {
        self.known.unix.saturating_add_unsigned(at.since(self.known.at).as_secs())
    }
}

/// An instance that appeared, and whose it is.
#[derive(Debug)]
pub(super) struct MatchedRequest {
    /// The request, as it stood before.
    pub(super) request: ScaleUpRequest,
    /// It was given up, or in doubt.
    pub(super) late: bool,
    /// Requests whose records changed, by their calls.
    pub(super) changed: Vec<u64>,
}

/// What is known of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestState {
    /// It has not been answered.
    Sent,
    /// The provider makes them.
    Accepted {
        /// They appear until then, as far as is known of the group; else they are late.
        until: Time,
        /// They count until then.
        last: Time,
    },
    /// Others are asked for in their place, as far as there is room beside them: they may appear all the same.
    Overdue {
        /// They count until then.
        until: Time,
    },
    /// It failed, which says nothing about what was done.
    Unconfirmed {
        /// They count until then.
        until: Time,
    },
    /// Given up; what appears until then is ours nevertheless.
    WrittenOff {
        /// When it is forgotten.
        until: Time,
    },
}

/// An instance of someone else.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnmanagedInstance {
    pub(super) misses: MissCounter,
    /// When it was seen first.
    pub(super) since_unix: i64,
}

impl UnmanagedInstance {
    pub(super) fn since(since_unix: i64) -> Self {
        Self { misses: MissCounter::default(), since_unix }
    }
}

/// Listing.
#[derive(Debug)]
pub(super) struct ListSchedule {
    /// When the newest list that was applied was asked for.
    pub(super) applied: Time,
    /// Calls under way, the oldest first.
    pub(super) under_way: VecDeque<(u64, Time)>,
    /// When the last one was started.
    pub(super) last: Option<Time>,
    /// It is wanted by then, whatever the period.
    pub(super) urgent: Option<Time>,
    /// How long one takes.
    pub(super) cost: Duration,
    pub(super) backoff: Backoff,
}

impl ListSchedule {
    /// How many lists have failed in a row, and the last error in the provider's words; none: the last one did not fail.
    pub(super) fn failure(&self) -> Option<(u32, &str)> {
        let Backoff { failures, error, .. } = &self.backoff;
        (*failures > 0).then_some((*failures, error.as_str()))
    }
}

/// How long something takes, learned.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    /// The fastest of late, which time lets grow.
    pub(super) fast: Option<Duration>,
}

impl Estimate {
    pub(super) fn learn(&mut self, took: Duration) {
        self.fast = Some(match self.fast {
            Some(fast) if took >= fast => (fast * 15 + took) / 16,
            _ => took,
        });
    }
}

/// How long granted instances took to appear in the list, of late.
#[derive(Debug, Clone, Default)]
pub(super) struct CreationLatencies(VecDeque<Duration>);

impl CreationLatencies {
    pub(super) fn learn(&mut self, took: Duration) {
        if self.0.len() == MAX_LATENCY_SAMPLES {
            self.0.pop_front();
        }
        self.0.push_back(took);
    }

    /// After how long one is late; `most` where too little is known, and never more than that.
    pub(super) fn overdue_after(&self, most: Duration) -> Duration {
        let slowest = self.0.iter().max().filter(|_| self.0.len() >= MIN_LATENCY_SAMPLES);
        slowest.map_or(most, |slowest| (*slowest * OVERDUE_FACTOR).max(MIN_OVERDUE).min(most))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) config: GroupConfig,
    pub(super) plugin: Plugin,
    /// Whether its plugin can suspend and resume instances; none: it has not said so yet.
    pub(super) can_suspend: Option<bool>,
    /// Who drained it, and why.
    pub(super) drained: Option<String>,
    /// Its instances have been listed since the start.
    pub(super) listed: bool,
    pub(super) scale_ups: VecDeque<ScaleUpRequest>,
    pub(super) creation_bucket: Option<TokenBucket>,
    /// The most instances that the bucket was made for.
    pub(super) bucket_max: Option<u32>,
    pub(super) calls: TokenBucket,
    pub(super) creation: Backoff,
    pub(super) readiness: Backoff,
    /// After failures: no more than this in one request.
    pub(super) max_request_size: Option<u32>,
    pub(super) partial_until: Time,
    /// The pause after the last grant that was short; zero: the last one was not.
    pub(super) partial_pause: Duration,
    /// What its instances cost is known.
    pub(super) is_priced: bool,
    /// Its plugin says that nothing can be had now.
    pub(super) out_of_stock: bool,
    /// Its plugin disowned these before they were listed.
    pub(super) retired_early: BTreeMap<InstanceId, (Time, String)>,
    /// Instances of someone else. As ours, one is not gone because of one list; it would be taken for what was asked for.
    pub(super) unmanaged: BTreeMap<InstanceId, UnmanagedInstance>,
    deleted: HashMap<InstanceId, (Time, i64)>,
    deleted_order: VecDeque<(Time, InstanceId)>,
    pub(super) list_schedule: ListSchedule,
    pub(super) creation_latencies: CreationLatencies,
    pub(super) boot: Estimate,
    pub(super) deletion: Estimate,
    /// From running to ready.
    pub(super) preparation: Estimate,
}

impl GroupState {
    pub(super) fn new(config: GroupConfig, at: Time) -> Self {
        let bucket = TokenBucket::of(config.throttle, config.max_instances, at);
        Self {
            is_priced: config.price_per_hour > 0.0,
            bucket_max: Some(config.max_instances),
            config,
            plugin: Plugin::Down { cause: "it has not been started yet".to_owned() },
            can_suspend: None,
            drained: None,
            listed: false,
            scale_ups: VecDeque::new(),
            creation_bucket: bucket,
            calls: TokenBucket::new(CALLS_PER_SECOND, CALLS_BURST, at),
            creation: Backoff::default(),
            readiness: Backoff::default(),
            max_request_size: None,
            partial_until: at,
            partial_pause: Duration::ZERO,
            out_of_stock: false,
            retired_early: BTreeMap::new(),
            unmanaged: BTreeMap::new(),
            deleted: HashMap::new(),
            deleted_order: VecDeque::new(),
            list_schedule: ListSchedule {
                applied: Time::ZERO,
                under_way: VecDeque::new(),
                last: None,
                urgent: Some(at),
                cost: Duration::ZERO,
                backoff: Backoff::default(),
            },
            creation_latencies: CreationLatencies::default(),
            boot: Estimate::default(),
            deletion: Estimate::default(),
            preparation: Estimate::default(),
        }
    }

    /// The most instances; none: no limit.
    pub(super) fn max_instances(&self) -> Option<u32> {
        let of_plugin = match self.plugin {
            Plugin::Up { max_size, .. } if max_size > 0 => Some(max_size),
            _ => None,
        };
        match (self.config.max_instances, of_plugin) {
            (0, max) => max,
            (max, None) => Some(max),
            (max, Some(of_plugin)) => Some(max.min(of_plugin)),
        }
    }

    /// Instances on their way.
    pub(super) fn expected(&self) -> u32 {
        self.open(|state| matches!(state, RequestState::Sent | RequestState::Accepted { .. }))
    }

    /// Of those, the ones that jobs can have: those of a drained group go when they appear.
    pub(super) fn expected_usable(&self) -> u32 {
        if self.drained.is_some() { 0 } else { self.expected() }
    }

    /// Instances that may appear, counted on or not.
    pub(super) fn may_appear(&self) -> u32 {
        self.open(|state| !matches!(state, RequestState::WrittenOff { .. }))
    }

    fn open(&self, which: impl Fn(&RequestState) -> bool) -> u32 {
        self.scale_ups.iter().filter(|ask| which(&ask.state)).map(|ask| ask.outstanding).sum()
    }

    /// When the oldest and the youngest of those that are awaited were asked for.
    pub(super) fn pending_request_times(&self) -> Option<(Time, Time)> {
        let mut times = (self.scale_ups.iter())
            .filter(|ask| ask.outstanding > 0)
            .filter(|ask| {
                matches!(ask.state, RequestState::Sent | RequestState::Accepted { .. } | RequestState::Overdue { .. })
            })
            .map(|ask| ask.requested_at);
        let first = times.next()?;
        Some((first, times.next_back().unwrap_or(first)))
    }

    /// An instance appeared: the request that it belongs to, the likeliest first.
    pub(super) fn match_instance(&mut self, at: Time) -> Option<MatchedRequest> {
        let rank = |state: &RequestState| match state {
            RequestState::Accepted { .. } => 0,
            RequestState::Sent => 1,
            RequestState::Overdue { .. } => 2,
            RequestState::Unconfirmed { .. } => 3,
            RequestState::WrittenOff { .. } => 4,
        };
        let ask = self.scale_ups.iter_mut().filter(|ask| ask.outstanding > 0).min_by_key(|ask| rank(&ask.state))?;
        ask.outstanding -= 1;
        let late = !matches!(ask.state, RequestState::Sent | RequestState::Accepted { .. });
        let found = ask.clone();
        // It may as well have been one that is in doubt or was given up; then this one's own is still to come, and the
        // other request must stand for it as long.
        let own = match found.state {
            RequestState::Accepted { last, .. } => last,
            _ => at + UNCONFIRMED_WINDOW,
        };
        let mut changed = vec![found.call];
        for other in &mut self.scale_ups {
            match &mut other.state {
                RequestState::Overdue { until } | RequestState::Unconfirmed { until } => *until = (*until).max(own),
                RequestState::WrittenOff { until } => {
                    *until = (*until).max(at + LATE_MATCH_AFTER_FAILURE);
                    changed.push(other.call);
                }
                RequestState::Sent | RequestState::Accepted { .. } => {}
            }
        }
        Some(MatchedRequest { request: found, late, changed })
    }

    /// The answer to a request: how many of it are still to appear, or none where it is not known.
    pub(super) fn answered(
        &mut self,
        call: u64,
        granted: Option<u32>,
        at: Time,
        deadline: Duration,
    ) -> Option<&ScaleUpRequest> {
        let late = self.creation_latencies.overdue_after(deadline);
        let ask = self.scale_ups.iter_mut().find(|ask| ask.call == call && ask.state == RequestState::Sent)?;
        match granted {
            Some(granted) => {
                let appeared = ask.requested - ask.outstanding;
                ask.outstanding = granted.min(ask.requested).saturating_sub(appeared);
                ask.state = RequestState::Accepted { until: at + late, last: at + deadline };
            }
            None => ask.state = RequestState::Unconfirmed { until: at + UNCONFIRMED_WINDOW },
        }
        Some(ask)
    }

    /// Lets time pass over the requests: how many that were granted have not appeared in time, and which records changed.
    ///
    /// Only a list that was asked for after its time shows that something did not appear.
    pub(super) fn expire_requests(&mut self, at: Time) -> (u32, Vec<u64>) {
        let (mut overdue, mut changed, listed) = (0, Vec::new(), self.list_schedule.applied);
        for ask in &mut self.scale_ups {
            let next = match ask.state {
                RequestState::Accepted { until, last } if ask.outstanding > 0 && until <= listed => {
                    overdue += ask.outstanding;
                    if last <= listed {
                        RequestState::WrittenOff { until: at + LATE_MATCH_AFTER_ACCEPT }
                    } else {
                        RequestState::Overdue { until: last }
                    }
                }
                RequestState::Overdue { until } if until <= listed => {
                    RequestState::WrittenOff { until: at + LATE_MATCH_AFTER_ACCEPT }
                }
                RequestState::Unconfirmed { until } if until <= listed => {
                    RequestState::WrittenOff { until: at + LATE_MATCH_AFTER_FAILURE }
                }
                RequestState::WrittenOff { until } if until <= at => {
                    ask.outstanding = 0;
                    ask.state
                }
                state => state,
            };
            if next != ask.state {
                ask.state = next;
                changed.push(ask.call);
            }
            if ask.outstanding == 0 && ask.state != RequestState::Sent {
                changed.push(ask.call);
            }
        }
        self.scale_ups.retain(|ask| ask.outstanding > 0 || ask.state == RequestState::Sent);
        (overdue, changed)
    }

    /// Whether [`Self::expire`] would change something.
    pub(super) fn has_expired(&self, at: Time) -> bool {
        self.scale_ups.iter().any(|ask| match ask.state {
            RequestState::Sent => false,
            RequestState::Accepted { until, .. }
            | RequestState::Overdue { until }
            | RequestState::Unconfirmed { until } => until <= self.list_schedule.applied,
            RequestState::WrittenOff { until } => until <= at,
        })
    }

    /// When the first request may change by itself.
    pub(super) fn next_expiry(&self) -> Option<Time> {
        (self.scale_ups.iter())
            .filter_map(|ask| match ask.state {
                RequestState::Sent => None,
                RequestState::Accepted { until, .. }
                | RequestState::Overdue { until }
                | RequestState::Unconfirmed { until }
                | RequestState::WrittenOff { until } => Some(until),
            })
            .min()
    }

    pub(super) fn remember_deleted(&mut self, id: InstanceId, now: Now) {
        self.deleted.insert(id.clone(), (now.at, now.unix));
        self.deleted_order.push_back((now.at, id));
    }

    /// When the instance went, where it is still known.
    pub(super) fn deleted_at(&self, id: &InstanceId) -> Option<i64> {
        self.deleted.get(id).map(|(_, unix)| *unix)
    }

    pub(super) fn was_managed(&self, id: &InstanceId) -> bool {
        self.deleted.contains_key(id)
    }

    /// Forgets what is gone for long; the ids.
    pub(super) fn forget(&mut self, at: Time) -> Vec<InstanceId> {
        let mut forgotten = Vec::new();
        while let Some((then, _)) = self.deleted_order.front()
            && (at.since(*then) >= DELETED_ID_TTL || self.deleted_order.len() > MAX_DELETED_IDS)
        {
            let Some((then, id)) = self.deleted_order.pop_front() else { break };
            if self.deleted.get(&id).is_some_and(|(last, _)| *last == then) {
                self.deleted.remove(&id);
                forgotten.push(id);
            }
        }
        forgotten
    }
}
