//! Policies: the idle capacity that should exist, by time of day.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::cron::Cron;
use crate::formula::{self, Inputs};

/// Idle time if no policy is active (docs/spec/fleeting.md 7.4).
pub const DEFAULT_IDLE_TIME: Duration = Duration::from_secs(300);

/// Idle capacity of a policy, and how free slots are used.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleTarget {
    /// Number of idle slots.
    pub idle_count: u32,
    /// Minimum time that an instance is idle before it is deleted.
    pub idle_time: Duration,
    /// Idle slots as a factor of the slots in use. 0 disables the factor.
    pub scale_factor: f64,
    /// Maximum number of idle slots by [`Self::scale_factor`]. 0 means no limit.
    pub scale_factor_limit: u32,
    /// Whether jobs are requested only for free slots. Has no effect if `idle_count` is 0 (docs/spec/fleeting.md 7.4).
    pub preemptive: bool,
    /// Whether a preemptive policy also requests jobs for instances that boot or can be created.
    ///
    /// Applies only while each request immediately returns a job.
    pub reserve_ahead: bool,
    /// Which free slots are assigned first.
    pub placement: Placement,
}

impl Default for IdleTarget {
    /// Returns the target that applies if no policy is active.
    fn default() -> Self {
        Self {
            idle_count: 0,
            idle_time: DEFAULT_IDLE_TIME,
            scale_factor: 0.0,
            scale_factor_limit: 0,
            preemptive: false,
            reserve_ahead: true,
            placement: Placement::Pack,
        }
    }
}

/// Which free slots are assigned first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// The slots of the fullest instance, so that other instances become idle and can be deleted.
    #[default]
    Pack,
    /// The slots of the emptiest instance, so that jobs disturb each other least.
    Spread,
}

/// A policy and the periods in which it is active.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// When the policy is active.
    pub periods: Vec<Cron>,
    /// Time zone of [`Self::periods`].
    pub zone: TimeZone,
    /// Target of the policy.
    pub idle_target: IdleTarget,
}

/// All policies, in the order of the configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policies {
    list: Vec<Policy>,
}

impl Policies {
    /// Creates a list of policies, in the order of the configuration.
    #[must_use]
    pub fn new(list: Vec<Policy>) -> Self {
        Self { list }
    }

    /// Creates a list with one policy that is always active.
    #[must_use]
    pub fn always(idle_target: IdleTarget) -> Self {
        let periods = "* * * * *".parse().into_iter().collect();
        Self { list: vec![Policy { periods, zone: TimeZone::UTC, idle_target }] }
    }

    /// Returns the index and the target of the policy that is active at `unix` seconds since 1970.
    ///
    /// If several policies match, the last one wins. If none matches, returns `None` and the default target.
    #[must_use]
    pub fn active_at(&self, unix: i64) -> (Option<usize>, IdleTarget) {
        let found = self.list.iter().enumerate().rev().find(|(_, policy)| policy.matches(unix));
        found.map_or_else(|| (None, IdleTarget::default()), |(index, policy)| (Some(index), policy.idle_target.clone()))
    }

    /// Returns the maximum number of idle slots of any policy while `in_use` slots are in use.
    #[must_use]
    pub fn max_idle(&self, in_use: u64) -> u64 {
        let idle = |target: &IdleTarget| {
            formula::idle_target(&Inputs {
                acquired: in_use,
                idle_count: u64::from(target.idle_count),
                scale_factor: target.scale_factor,
                scale_factor_limit: u64::from(target.scale_factor_limit),
                ..Inputs::default()
            })
        };
        self.list.iter().map(|policy| idle(&policy.idle_target)).max().unwrap_or(0)
    }

    /// Returns whether some policy is not always active.
    #[must_use]
    pub fn is_time_dependent(&self) -> bool {
        self.list.iter().any(|policy| !policy.periods.iter().any(Cron::always_matches))
    }
}

impl Policy {
    fn matches(&self, unix: i64) -> bool {
        let Ok(time) = Timestamp::from_second(unix) else { return false };
        let local = time.to_zoned(self.zone.clone());
        let field = |value: i8| u8::try_from(value).unwrap_or(u8::MAX);
        let weekday = field(local.weekday().to_sunday_zero_offset());
        let [minute, hour, day, month] = [local.minute(), local.hour(), local.day(), local.month()].map(field);
        self.periods.iter().any(|period| period.matches(minute, hour, day, month, weekday))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(period: &str, zone: &str, idle_count: u32) -> Policy {
        let zone = TimeZone::get(zone).unwrap();
        Policy {
            periods: vec![period.parse().unwrap()],
            zone,
            idle_target: IdleTarget { idle_count, ..IdleTarget::default() },
        }
    }

    fn unix(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn s04_last_matching_policy_wins() {
        let policies = Policies::new(vec![policy("* 8-18 * * *", "UTC", 10), policy("* 12-13 * * *", "UTC", 2)]);
        assert_eq!(policies.active_at(unix("2026-03-02T09:00:00Z")).1.idle_count, 10);
        let (index, noon) = policies.active_at(unix("2026-03-02T12:30:00Z"));
        assert_eq!((index, noon.idle_count), (Some(1), 2), "both match, so the later one wins");
        let (index, night) = policies.active_at(unix("2026-03-02T03:00:00Z"));
        assert_eq!((index, night.idle_count, night.idle_time), (None, 0, Duration::from_secs(300)));
    }

    #[test]
    fn policy_follows_daylight_saving_time_of_its_zone() {
        let policies = Policies::new(vec![policy("* 9-17 * * mon-fri", "Europe/Berlin", 5)]);
        let idle = |text| policies.active_at(unix(text)).1.idle_count;
        assert_eq!(
            (idle("2026-03-27T07:59:00Z"), idle("2026-03-27T08:00:00Z")),
            (0, 5),
            "winter: one hour ahead of UTC"
        );
        assert_eq!(
            (idle("2026-03-30T06:59:00Z"), idle("2026-03-30T07:00:00Z")),
            (0, 5),
            "summer: two hours ahead of UTC"
        );
        assert_eq!(idle("2026-03-28T10:00:00Z"), 0, "the period must not apply on a Saturday");
    }
}
