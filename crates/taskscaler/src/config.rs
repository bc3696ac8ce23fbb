//! What the engine is told to do: checked values, no text.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::forecast::ForecastConfig;
use crate::need::Density;
use crate::policy::Policies;

/// An environment is kept for so long: a person who is to look at it first does so within a working day.
const SUSPENDED_MAX: Duration = Duration::from_secs(8 * 3600);

/// One scaler: instances of one or more groups for the jobs of one runner.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Slots of an instance (`capacity_per_instance`).
    pub capacity: NonZeroU32,
    /// Jobs of an instance in its life (`max_use_count`); none: no limit.
    pub uses_max: Option<NonZeroU32>,
    /// The groups; another is taken where one has no capacity.
    pub groups: Vec<GroupConfig>,
    /// Which group is asked first.
    pub order: GroupOrder,
    /// How much is idle, and when.
    pub policies: Policies,
    /// By history, beside the policies; none: off.
    pub forecast: Option<ForecastConfig>,
    /// Failures of health in a row after which an instance gets no more jobs (`failure_threshold`).
    pub failure_threshold: u32,
    /// Instances are listed so often while nothing is expected.
    pub update_interval: Duration,
    /// At least so often while something is; more often when it is due (see [`crate::engine`]).
    pub update_interval_when_expecting: Duration,
    /// A removal that had no effect is repeated after this.
    pub deletion_retry_interval: Duration,
    /// The same while the engine stops.
    pub shutdown_deletion_interval: Duration,
    /// How often it is repeated then: whoever waits for the end waits for so many intervals.
    pub shutdown_deletion_retries: u32,
    /// What was granted appears within this, or counts as failed.
    pub create_deadline: Duration,
    /// What appeared runs within this, or is replaced.
    pub boot_deadline: Duration,
    /// What runs is ready within this (connection details, ready command), or is replaced.
    pub prepare_deadline: Duration,
    /// A ready instance is asked for its health so often; none: never.
    pub heartbeat_interval: Option<Duration>,
    /// Reservations keep no instance beyond its idle time, unless the policy is preemptive (`reservation_throttling`).
    pub reservation_throttling: bool,
    /// How jobs share an instance.
    pub density: Density,
    /// All instances together never cost more than this per hour, in the unit of [`GroupConfig::price_per_hour`].
    pub spend_max_per_hour: Option<f64>,
    /// What is done with instances that nobody here asked for.
    pub foreign: Foreign,
    /// Instances without jobs are removed when the engine stops (`delete_instances_on_shutdown`).
    pub delete_on_shutdown: bool,
    /// Jobs leave nothing on an instance, since each has a machine of its own there: an instance whose job did not survive a
    /// restart is used on.
    pub jobs_leave_nothing: bool,
    /// An environment that a job leaves for a later one is kept for so long.
    pub suspended_max: Duration,
    /// Where jitter comes from: two managers with different seeds do not knock at the same time.
    pub jitter_seed: u64,
}

/// One instance group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupConfig {
    /// Its name for people, unique in the scaler.
    pub name: String,
    /// It is one of a list, with a name that an operator gave it; else it is the runner's only one, and named after it.
    pub listed: bool,
    /// The most instances in any state (`max_instances`); 0: as the plugin says.
    pub instances_max: u32,
    /// What an instance costs in an hour; 0 where nobody says.
    pub price_per_hour: f64,
    /// How fast instances are created.
    pub throttle: Throttle,
}

impl GroupConfig {
    /// A group with the usual throttle and no price.
    #[must_use]
    pub fn new(name: impl Into<String>, instances_max: u32) -> Self {
        Self { name: name.into(), listed: false, instances_max, price_per_hour: 0.0, throttle: Throttle::default() }
    }
}

/// A token bucket on created instances (`scale_throttle`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Throttle {
    /// Instances per second: 0 is the default of 100, below 0 is no limit.
    pub limit: i64,
    /// At most so many at once; 0: `max_instances`, or the limit.
    pub burst: u32,
}

/// Which group is asked first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupOrder {
    /// As they are listed.
    #[default]
    Listed,
    /// The cheapest.
    Price,
}

/// What is done with instances that nobody here asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Foreign {
    /// They are reported and left alone.
    #[default]
    Leave,
    /// They are used as if they had been asked for.
    Adopt,
    /// They are removed.
    Delete,
}

impl Config {
    /// The defaults of the peer's keys (fleeting.md 3.1, 5.1) for one group.
    #[must_use]
    pub fn new(group: GroupConfig) -> Self {
        Self {
            capacity: NonZeroU32::MIN,
            uses_max: None,
            groups: vec![group],
            order: GroupOrder::default(),
            policies: Policies::default(),
            forecast: None,
            failure_threshold: 3,
            update_interval: Duration::from_secs(60),
            update_interval_when_expecting: Duration::from_secs(2),
            deletion_retry_interval: Duration::from_secs(60),
            shutdown_deletion_interval: Duration::from_secs(10),
            shutdown_deletion_retries: 3,
            create_deadline: Duration::from_secs(600),
            boot_deadline: Duration::from_secs(1800),
            prepare_deadline: Duration::from_secs(900),
            heartbeat_interval: Some(Duration::from_secs(300)),
            reservation_throttling: true,
            density: Density::default(),
            spend_max_per_hour: None,
            foreign: Foreign::default(),
            delete_on_shutdown: false,
            jobs_leave_nothing: false,
            suspended_max: SUSPENDED_MAX,
            jitter_seed: 0,
        }
    }

    /// Slots of a new instance that will be given.
    #[must_use]
    pub fn usable(&self) -> u32 {
        self.uses_max.map_or(self.capacity, |uses| uses.min(self.capacity)).get()
    }
}
