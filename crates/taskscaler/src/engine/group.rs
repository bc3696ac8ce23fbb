//! One group: its plugin, what was asked of it, and what is held back.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use muster_fleeting::model::InstanceId;

use super::instance::Absence;
use crate::config::GroupConfig;
use crate::throttle::{Backoff, Bucket};
use crate::time::{Now, Time};

/// Calls of `Increase` per second, whatever the instances per second (I6).
pub(super) const CALLS_PER_SECOND: f64 = 10.0;
/// Calls of `Increase` at once.
pub(super) const CALLS_BURST: f64 = 10.0;
/// After a call that failed, its instances may appear for so long; they count until then.
pub(super) const DOUBT: Duration = Duration::from_secs(60);
/// What appears so long after a failed call was given up is still ours.
const OWED_AFTER_FAILURE: Duration = Duration::from_secs(1800);
/// What was granted and did not appear in time is ours whenever it appears within this.
const OWED_AFTER_GRANT: Duration = Duration::from_secs(24 * 3600);
/// What was granted is late after so many times of what the slowest of late took to appear,
const LATE_TIMES: u32 = 4;
/// and not before this: providers hesitate.
const LATE_MIN: Duration = Duration::from_secs(15);
/// So many appeared before their times say anything,
const APPEARED_MIN: usize = 8;
/// and so many of late are looked at: with them the slowest is about the 99th of a hundred.
const APPEARED_MAX: usize = 64;
/// Ids of instances that are gone are known for so long: a list may be old.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// The most gone ids that are known.
const REMEMBERED_MAX: usize = 100_000;

/// Whether there is someone to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plugin {
    Down { cause: String },
    Up { max_size: u32 },
}

/// One request for instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) call: u64,
    pub(super) asked: Time,
    pub(super) asked_unix: i64,
    /// Since when this process knows of it; later than asked where it comes from the books.
    pub(super) known: Now,
    /// How many it was for.
    pub(super) n: u32,
    /// How many of it may still appear.
    pub(super) open: u32,
    pub(super) state: AskState,
}

impl Ask {
    /// Whether the whole time since it was asked for was lived through: only then it says how long creations take.
    pub(super) fn teaches(&self) -> bool {
        self.known.at == self.asked
    }

    /// The wall clock's time of a later moment.
    pub(super) fn unix(&self, at: Time) -> i64 {
        self.known.unix.saturating_add_unsigned(at.since(self.known.at).as_secs())
    }
}

/// An instance that appeared, and whose it is.
#[derive(Debug)]
pub(super) struct Match {
    /// The request, as it stood before.
    pub(super) ask: Ask,
    /// It was given up, or in doubt.
    pub(super) late: bool,
    /// Requests whose records changed, by their calls.
    pub(super) changed: Vec<u64>,
}

/// What is known of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskState {
    /// It has not been answered.
    Asked,
    /// The provider makes them.
    Granted {
        /// They appear until then, as far as is known of the group; else they are late.
        until: Time,
        /// They count until then.
        last: Time,
    },
    /// Others are asked for in their place, as far as there is room beside them: they may appear all the same.
    Late {
        /// They count until then.
        until: Time,
    },
    /// It failed, which says nothing about what was done.
    Doubtful {
        /// They count until then.
        until: Time,
    },
    /// Given up; what appears until then is ours nevertheless.
    Owed {
        /// When it is forgotten.
        until: Time,
    },
}

/// An instance of someone else.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stranger {
    pub(super) absence: Absence,
    /// When it was seen first.
    pub(super) since_unix: i64,
}

impl Stranger {
    pub(super) fn since(since_unix: i64) -> Self {
        Self { absence: Absence::default(), since_unix }
    }
}

/// Listing.
#[derive(Debug)]
pub(super) struct Updates {
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

impl Updates {
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
pub(super) struct Appearances(VecDeque<Duration>);

impl Appearances {
    pub(super) fn learn(&mut self, took: Duration) {
        if self.0.len() == APPEARED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(took);
    }

    /// After how long one is late; `most` where too little is known, and never more than that.
    pub(super) fn late_after(&self, most: Duration) -> Duration {
        let slowest = self.0.iter().max().filter(|_| self.0.len() >= APPEARED_MIN);
        slowest.map_or(most, |slowest| (*slowest * LATE_TIMES).max(LATE_MIN).min(most))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) config: GroupConfig,
    pub(super) plugin: Plugin,
    /// Whether its plugin can suspend and resume instances; none: it has not said so yet.
    pub(super) can_suspend: Option<bool>,
    /// Who drained it, and why.
    pub(super) drained: Option<String>,
    /// Its instances have been listed since the start.
    pub(super) listed: bool,
    pub(super) asks: VecDeque<Ask>,
    pub(super) bucket: Option<Bucket>,
    /// The most instances that the bucket was made for.
    pub(super) bucket_max: Option<u32>,
    pub(super) calls: Bucket,
    pub(super) creation: Backoff,
    pub(super) readiness: Backoff,
    /// After failures: no more than this in one request.
    pub(super) ask_max: Option<u32>,
    pub(super) short_until: Time,
    /// The pause after the last grant that was short; zero: the last one was not.
    pub(super) short_pause: Duration,
    /// What its instances cost is known.
    pub(super) is_priced: bool,
    /// Its plugin says that nothing can be had now.
    pub(super) out_of_stock: bool,
    /// Its plugin disowned these before they were listed.
    pub(super) disowned: BTreeMap<InstanceId, (Time, String)>,
    /// Instances of someone else. As ours, one is not gone because of one list; it would be taken for what was asked for.
    pub(super) foreign: BTreeMap<InstanceId, Stranger>,
    gone: HashMap<InstanceId, (Time, i64)>,
    gone_order: VecDeque<(Time, InstanceId)>,
    pub(super) updates: Updates,
    pub(super) appearances: Appearances,
    pub(super) boot: Estimate,
    pub(super) deletion: Estimate,
    /// From running to ready.
    pub(super) preparation: Estimate,
}

impl Group {
    pub(super) fn new(config: GroupConfig, at: Time) -> Self {
        let bucket = Bucket::of(config.throttle, config.instances_max, at);
        Self {
            is_priced: config.price_per_hour > 0.0,
            bucket_max: Some(config.instances_max),
            config,
            plugin: Plugin::Down { cause: "it has not been started yet".to_owned() },
            can_suspend: None,
            drained: None,
            listed: false,
            asks: VecDeque::new(),
            bucket,
            calls: Bucket::new(CALLS_PER_SECOND, CALLS_BURST, at),
            creation: Backoff::default(),
            readiness: Backoff::default(),
            ask_max: None,
            short_until: at,
            short_pause: Duration::ZERO,
            out_of_stock: false,
            disowned: BTreeMap::new(),
            foreign: BTreeMap::new(),
            gone: HashMap::new(),
            gone_order: VecDeque::new(),
            updates: Updates {
                applied: Time::ZERO,
                under_way: VecDeque::new(),
                last: None,
                urgent: Some(at),
                cost: Duration::ZERO,
                backoff: Backoff::default(),
            },
            appearances: Appearances::default(),
            boot: Estimate::default(),
            deletion: Estimate::default(),
            preparation: Estimate::default(),
        }
    }

    /// The most instances; none: no limit.
    pub(super) fn max(&self) -> Option<u32> {
        let of_plugin = match self.plugin {
            Plugin::Up { max_size, .. } if max_size > 0 => Some(max_size),
            _ => None,
        };
        match (self.config.instances_max, of_plugin) {
            (0, max) => max,
            (max, None) => Some(max),
            (max, Some(of_plugin)) => Some(max.min(of_plugin)),
        }
    }

    /// Instances on their way.
    pub(super) fn expected(&self) -> u32 {
        self.open(|state| matches!(state, AskState::Asked | AskState::Granted { .. }))
    }

    /// Of those, the ones that jobs can have: those of a drained group go when they appear.
    pub(super) fn counted_on(&self) -> u32 {
        if self.drained.is_some() { 0 } else { self.expected() }
    }

    /// Instances that may appear, counted on or not.
    pub(super) fn possible(&self) -> u32 {
        self.open(|state| !matches!(state, AskState::Owed { .. }))
    }

    fn open(&self, which: impl Fn(&AskState) -> bool) -> u32 {
        self.asks.iter().filter(|ask| which(&ask.state)).map(|ask| ask.open).sum()
    }

    /// When the oldest and the youngest of those that are awaited were asked for.
    pub(super) fn asked(&self) -> Option<(Time, Time)> {
        let mut times = (self.asks.iter())
            .filter(|ask| ask.open > 0)
            .filter(|ask| matches!(ask.state, AskState::Asked | AskState::Granted { .. } | AskState::Late { .. }))
            .map(|ask| ask.asked);
        let first = times.next()?;
        Some((first, times.next_back().unwrap_or(first)))
    }

    /// An instance appeared: the request that it belongs to, the likeliest first.
    pub(super) fn consume(&mut self, at: Time) -> Option<Match> {
        let rank = |state: &AskState| match state {
            AskState::Granted { .. } => 0,
            AskState::Asked => 1,
            AskState::Late { .. } => 2,
            AskState::Doubtful { .. } => 3,
            AskState::Owed { .. } => 4,
        };
        let ask = self.asks.iter_mut().filter(|ask| ask.open > 0).min_by_key(|ask| rank(&ask.state))?;
        ask.open -= 1;
        let late = !matches!(ask.state, AskState::Asked | AskState::Granted { .. });
        let found = ask.clone();
        // It may as well have been one that is in doubt or was given up; then this one's own is still to come, and the
        // other request must stand for it as long.
        let own = match found.state {
            AskState::Granted { last, .. } => last,
            _ => at + DOUBT,
        };
        let mut changed = vec![found.call];
        for other in &mut self.asks {
            match &mut other.state {
                AskState::Late { until } | AskState::Doubtful { until } => *until = (*until).max(own),
                AskState::Owed { until } => {
                    *until = (*until).max(at + OWED_AFTER_FAILURE);
                    changed.push(other.call);
                }
                AskState::Asked | AskState::Granted { .. } => {}
            }
        }
        Some(Match { ask: found, late, changed })
    }

    /// The answer to a request: how many of it are still to appear, or none where it is not known.
    pub(super) fn answered(&mut self, call: u64, granted: Option<u32>, at: Time, deadline: Duration) -> Option<&Ask> {
        let late = self.appearances.late_after(deadline);
        let ask = self.asks.iter_mut().find(|ask| ask.call == call && ask.state == AskState::Asked)?;
        match granted {
            Some(granted) => {
                let appeared = ask.n - ask.open;
                ask.open = granted.min(ask.n).saturating_sub(appeared);
                ask.state = AskState::Granted { until: at + late, last: at + deadline };
            }
            None => ask.state = AskState::Doubtful { until: at + DOUBT },
        }
        Some(ask)
    }

    /// Lets time pass over the requests: how many that were granted have not appeared in time, and which records changed.
    ///
    /// Only a list that was asked for after its time shows that something did not appear.
    pub(super) fn expire(&mut self, at: Time) -> (u32, Vec<u64>) {
        let (mut overdue, mut changed, listed) = (0, Vec::new(), self.updates.applied);
        for ask in &mut self.asks {
            let next = match ask.state {
                AskState::Granted { until, last } if ask.open > 0 && until <= listed => {
                    overdue += ask.open;
                    if last <= listed {
                        AskState::Owed { until: at + OWED_AFTER_GRANT }
                    } else {
                        AskState::Late { until: last }
                    }
                }
                AskState::Late { until } if until <= listed => AskState::Owed { until: at + OWED_AFTER_GRANT },
                AskState::Doubtful { until } if until <= listed => AskState::Owed { until: at + OWED_AFTER_FAILURE },
                AskState::Owed { until } if until <= at => {
                    ask.open = 0;
                    ask.state
                }
                state => state,
            };
            if next != ask.state {
                ask.state = next;
                changed.push(ask.call);
            }
            if ask.open == 0 && ask.state != AskState::Asked {
                changed.push(ask.call);
            }
        }
        self.asks.retain(|ask| ask.open > 0 || ask.state == AskState::Asked);
        (overdue, changed)
    }

    /// Whether [`Self::expire`] would change something.
    pub(super) fn has_expired(&self, at: Time) -> bool {
        self.asks.iter().any(|ask| match ask.state {
            AskState::Asked => false,
            AskState::Granted { until, .. } | AskState::Late { until } | AskState::Doubtful { until } => {
                until <= self.updates.applied
            }
            AskState::Owed { until } => until <= at,
        })
    }

    /// When the first request may change by itself.
    pub(super) fn next_expiry(&self) -> Option<Time> {
        (self.asks.iter())
            .filter_map(|ask| match ask.state {
                AskState::Asked => None,
                AskState::Granted { until, .. }
                | AskState::Late { until }
                | AskState::Doubtful { until }
                | AskState::Owed { until } => Some(until),
            })
            .min()
    }

    pub(super) fn remember_gone(&mut self, id: InstanceId, now: Now) {
        self.gone.insert(id.clone(), (now.at, now.unix));
        self.gone_order.push_back((now.at, id));
    }

    /// When the instance went, where it is still known.
    pub(super) fn gone_since(&self, id: &InstanceId) -> Option<i64> {
        self.gone.get(id).map(|(_, unix)| *unix)
    }

    pub(super) fn was_ours(&self, id: &InstanceId) -> bool {
        self.gone.contains_key(id)
    }

    /// Forgets what is gone for long; the ids.
    pub(super) fn forget(&mut self, at: Time) -> Vec<InstanceId> {
        let mut forgotten = Vec::new();
        while let Some((then, _)) = self.gone_order.front()
            && (at.since(*then) >= REMEMBERED || self.gone_order.len() > REMEMBERED_MAX)
        {
            let Some((then, id)) = self.gone_order.pop_front() else { break };
            if self.gone.get(&id).is_some_and(|(last, _)| *last == then) {
                self.gone.remove(&id);
                forgotten.push(id);
            }
        }
        forgotten
    }
}
