//! Policies: how much idle capacity is wanted, and when.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cron::Cron;
use crate::formula::{self, Inputs};

/// Idle time where no policy matches (fleeting.md 7.4).
pub const DEFAULT_IDLE_TIME: Duration = Duration::from_secs(300);

/// What a policy wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Idle slots (jobs, not machines).
    pub idle_count: u32,
    /// How long an instance is idle at least before it is removed.
    pub idle_time: Duration,
    /// Idle slots as a part of the slots in use; 0: none.
    pub scale_factor: f64,
    /// The most idle slots by [`Self::scale_factor`]; 0: no limit.
    pub scale_factor_limit: u32,
    /// Jobs are requested only for slots that are free now. Nothing as long as `idle_count` is 0 (fleeting.md 7.4).
    pub preemptive: bool,
    /// While each request is answered with a job at once, jobs are requested also for slots of instances that boot or can be
    /// created now. `false` means never, as does a policy that is not preemptive.
    pub ahead: bool,
    /// Which of the free slots is taken.
    pub placement: Placement,
}

impl Default for Wanted {
    /// Nothing idle, for five minutes: what holds while no policy matches.
    fn default() -> Self {
        Self {
            idle_count: 0,
            idle_time: DEFAULT_IDLE_TIME,
            scale_factor: 0.0,
            scale_factor_limit: 0,
            preemptive: false,
            ahead: true,
            placement: Placement::Pack,
        }
    }
}

/// Which of the free slots is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// On the fullest instance, so that the others get idle and can be removed.
    #[default]
    Pack,
    /// On the emptiest, so that jobs disturb each other least.
    Spread,
}

/// One entry of the list of policies.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// It holds in every minute in which one of these does.
    pub periods: Vec<Cron>,
    /// The zone of [`Self::periods`].
    pub zone: TimeZone,
    /// What it wants.
    pub wanted: Wanted,
}

/// All of them, as the file has them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policies {
    list: Vec<Policy>,
}

impl Policies {
    /// Policies in the order of the file.
    #[must_use]
    pub fn new(list: Vec<Policy>) -> Self {
        Self { list }
    }

    /// One policy that always holds.
    #[must_use]
    pub fn always(wanted: Wanted) -> Self {
        let periods = "* * * * *".parse().into_iter().collect();
        Self { list: vec![Policy { periods, zone: TimeZone::UTC, wanted }] }
    }

    /// The policy that holds at `unix` seconds since 1970: the last one in the file with a matching period, by its number
    /// from 0; none and the default where none matches (S4).
    #[must_use]
    pub fn at(&self, unix: i64) -> (Option<usize>, Wanted) {
        let found = self.list.iter().enumerate().rev().find(|(_, policy)| policy.holds(unix));
        found.map_or_else(|| (None, Wanted::default()), |(index, policy)| (Some(index), policy.wanted.clone()))
    }

    /// The most idle slots that any of them keeps beside so many in use.
    #[must_use]
    pub fn idle_most(&self, in_use: u64) -> u64 {
        let idle = |wanted: &Wanted| {
            formula::idle(&Inputs {
                acquired: in_use,
                idle_count: u64::from(wanted.idle_count),
                scale_factor: wanted.scale_factor,
                scale_factor_limit: u64::from(wanted.scale_factor_limit),
                ..Inputs::default()
            })
        };
        self.list.iter().map(|policy| idle(&policy.wanted)).max().unwrap_or(0)
    }

    /// Whether the answer of [`Self::at`] can differ between two moments.
    #[must_use]
    pub fn vary(&self) -> bool {
        self.list.iter().any(|policy| !policy.periods.iter().any(Cron::is_always))
    }
}

impl Policy {
    fn holds(&self, unix: i64) -> bool {
        let Ok(time) = Timestamp::from_second(unix) else { return false };
        let local = time.to_zoned(self.zone.clone());
        let field = |value: i8| u8::try_from(value).unwrap_or(u8::MAX);
        let weekday = field(local.weekday().to_sunday_zero_offset());
        let [minute, hour, day, month] = [local.minute(), local.hour(), local.day(), local.month()].map(field);
        self.periods.iter().any(|period| period.holds(minute, hour, day, month, weekday))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(period: &str, zone: &str, idle_count: u32) -> Policy {
        let zone = TimeZone::get(zone).unwrap();
        Policy { periods: vec![period.parse().unwrap()], zone, wanted: Wanted { idle_count, ..Wanted::default() } }
    }

    fn unix(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn s04_the_last_that_matches_wins_and_else_the_default() {
        let policies = Policies::new(vec![policy("* 8-18 * * *", "UTC", 10), policy("* 12-13 * * *", "UTC", 2)]);
        assert_eq!(policies.at(unix("2026-03-02T09:00:00Z")).1.idle_count, 10);
        let (index, noon) = policies.at(unix("2026-03-02T12:30:00Z"));
        assert_eq!((index, noon.idle_count), (Some(1), 2), "both match: the later one");
        let (index, night) = policies.at(unix("2026-03-02T03:00:00Z"));
        assert_eq!((index, night.idle_count, night.idle_time), (None, 0, Duration::from_secs(300)));
    }

    #[test]
    fn a_policy_follows_the_clocks_of_its_zone() {
        let policies = Policies::new(vec![policy("* 9-17 * * mon-fri", "Europe/Berlin", 5)]);
        let idle = |text| policies.at(unix(text)).1.idle_count;
        assert_eq!((idle("2026-03-27T07:59:00Z"), idle("2026-03-27T08:00:00Z")), (0, 5), "winter: an hour ahead");
        assert_eq!((idle("2026-03-30T06:59:00Z"), idle("2026-03-30T07:00:00Z")), (0, 5), "summer: two");
        assert_eq!(idle("2026-03-28T10:00:00Z"), 0, "Saturday");
    }
}
