//! Validated configuration of the scaler.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::forecast::ForecastConfig;
use crate::policy::Policies;
use crate::resources::Density;

/// Default of `suspended_ttl`: a working day, so that a user can inspect the environment.
const DEFAULT_SUSPENDED_TTL: Duration = Duration::from_secs(8 * 3600);

/// Configuration of a scaler, which manages the instance groups of one runner.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Slots per instance (`capacity_per_instance`).
    pub capacity: NonZeroU32,
    /// Maximum number of jobs per instance (`max_use_count`). `None` means no limit.
    pub max_uses: Option<NonZeroU32>,
    /// Instance groups. If a group cannot create instances, the next one is used.
    pub groups: Vec<GroupConfig>,
    /// Order in which groups are used.
    pub group_selection: GroupSelection,
    /// Policies that define the idle capacity.
    pub policies: Policies,
    /// Forecast from past demand. `None` disables it.
    pub forecast: Option<ForecastConfig>,
    /// Consecutive failed health checks after which an instance is drained (`failure_threshold`).
    pub failure_threshold: u32,
    /// Interval between list calls while no change is expected.
    pub update_interval: Duration,
    /// Interval between list calls while a change is expected.
    ///
    /// Longer if the calls are slow or fail. Shorter while a job waits for an instance that should soon run.
    pub update_interval_when_expecting: Duration,
    /// Time after which a delete call without effect is repeated.
    pub deletion_retry_interval: Duration,
    /// Time after which a delete call is repeated during shutdown.
    pub shutdown_deletion_interval: Duration,
    /// Number of `shutdown_deletion_interval`s that a shutdown waits for deletions.
    pub shutdown_deletion_retries: u32,
    /// Time from the acceptance of a create request until the instance must be listed. Otherwise the creation counts as
    /// failed.
    pub create_timeout: Duration,
    /// Time from the first listing of an instance until it must run. Otherwise it is replaced.
    pub boot_timeout: Duration,
    /// Time within which a running instance must become ready. Otherwise it is replaced.
    pub ready_timeout: Duration,
    /// Interval between health checks of a ready instance. `None` disables them.
    pub heartbeat_interval: Option<Duration>,
    /// Whether an instance that only reservations need is deleted after its idle time.
    ///
    /// A preemptive policy with idle slots ignores this.
    pub reservation_throttling: bool,
    /// How jobs share an instance.
    pub density: Density,
    /// Maximum cost of all instances per hour, in the unit of [`GroupConfig::price_per_hour`]. `None` means no limit.
    pub max_cost_per_hour: Option<f64>,
    /// How to treat unmanaged instances.
    pub unmanaged: UnmanagedPolicy,
    /// Whether instances without jobs are deleted on shutdown (`delete_instances_on_shutdown`).
    pub delete_on_shutdown: bool,
    /// Whether each job runs in a virtual machine on the instance. If so, an instance can be used again even if the
    /// manager was restarted and the instance's job was lost.
    pub jobs_are_isolated: bool,
    /// Time after which a suspended environment that no job resumed is deleted.
    pub suspended_ttl: Duration,
    /// Seed of the jitter. With different seeds, several managers do not call a provider at the same time.
    pub jitter_seed: u64,
}

/// Configuration of an instance group.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupConfig {
    /// Name, unique in the scaler.
    pub name: String,
    /// Whether the name comes from the configuration. Otherwise, the group is its runner's only group and has the
    /// runner's name.
    pub is_named: bool,
    /// Maximum number of instances in any state. 0 uses the plugin's limit.
    pub max_instances: u32,
    /// Price of an instance per hour. 0 means unknown.
    pub price_per_hour: f64,
    /// Limit on the creation rate.
    pub throttle: Throttle,
}

impl GroupConfig {
    /// Creates a group with the default throttle and without a price.
    #[must_use]
    pub fn new(name: impl Into<String>, max_instances: u32) -> Self {
        Self { name: name.into(), is_named: false, max_instances, price_per_hour: 0.0, throttle: Throttle::default() }
    }
}

/// A token bucket on created instances (`scale_throttle`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Throttle {
    /// Instances per second. 0 means 100, a negative value means no limit.
    pub limit: i64,
    /// Maximum number of instances created at once.
    ///
    /// 0 uses `max_instances`, or `limit` if there is no maximum.
    pub burst: u32,
}

/// Order in which groups are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupSelection {
    /// Order of the configuration.
    #[default]
    Order,
    /// Cheapest first.
    Price,
}

/// How to treat unmanaged instances: instances that belong to a group, but were not created by this manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnmanagedPolicy {
    /// Unmanaged instances are reported and not used.
    #[default]
    Ignore,
    /// Unmanaged instances are used.
    Adopt,
    /// Unmanaged instances are deleted.
    Delete,
}

impl Config {
    /// Creates a configuration with one group and gitlab-runner's defaults (docs/spec/fleeting.md, sections 3.1 and
    /// 5.1).
    #[must_use]
    pub fn new(group: GroupConfig) -> Self {
        Self {
            capacity: NonZeroU32::MIN,
            max_uses: None,
            groups: vec![group],
            group_selection: GroupSelection::default(),
            policies: Policies::default(),
            forecast: None,
            failure_threshold: 3,
            update_interval: Duration::from_secs(60),
            update_interval_when_expecting: Duration::from_secs(2),
            deletion_retry_interval: Duration::from_secs(60),
            shutdown_deletion_interval: Duration::from_secs(10),
            shutdown_deletion_retries: 3,
            create_timeout: Duration::from_secs(600),
            boot_timeout: Duration::from_secs(1800),
            ready_timeout: Duration::from_secs(900),
            heartbeat_interval: Some(Duration::from_secs(300)),
            reservation_throttling: true,
            density: Density::default(),
            max_cost_per_hour: None,
            unmanaged: UnmanagedPolicy::default(),
            delete_on_shutdown: false,
            jobs_are_isolated: false,
            suspended_ttl: DEFAULT_SUSPENDED_TTL,
            jitter_seed: 0,
        }
    }

    /// Returns the number of jobs that a new instance can run at once.
    #[must_use]
    pub fn slots_per_new_instance(&self) -> u32 {
        self.max_uses.map_or(self.capacity, |uses| uses.min(self.capacity)).get()
    }
}
