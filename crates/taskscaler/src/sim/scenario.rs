//! Scenarios of the simulator. Tests generate them from a seed.

use std::num::NonZeroU32;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::cloud::{CloudConfig, CloudFaults, Spread, chance};
use super::disturbance::{self, Disturbance};
use super::report::Report;
use super::simulation::Simulation;
use super::trace::Job;
use crate::config::{Config, GroupConfig, GroupSelection, Throttle};
use crate::engine::Violation;
use crate::event::Action;
use crate::policy::{IdleTarget, Placement, Policies};
use crate::time::Time;
use crate::types::ResourceRequest;
use crate::types::{JobKind, SlotRequest, StickyContextId};

/// A scenario, without its jobs.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Configuration of the engine.
    pub config: Config,
    /// A provider for each group.
    pub clouds: Vec<CloudConfig>,
    /// Wall-clock time at the start, in seconds since 1970.
    pub origin: i64,
    /// Times at which the manager is killed and immediately restarted.
    pub manager_kills: Vec<Time>,
    /// Probability that the manager is killed between writing the ledger and performing an action.
    pub kill_before_actions: f64,
    /// Times at which someone other than the manager creates a machine in the first group.
    pub unmanaged_instances: Vec<Time>,
    /// Disturbances with their times, before [`Self::faults_end`].
    pub disturbances: Vec<(Time, Disturbance)>,
    /// Number of job requests that the manager keeps open even while no job waits, each with a reservation.
    pub reservations: usize,
    /// Whether the coordinator holds a request until it has a job. Otherwise, it answers immediately.
    pub holds_requests: bool,
    /// Maximum time between the end of a job that saves its environment and the arrival of the job that resumes it.
    /// `None` means that no job saves its environment.
    ///
    /// In each group of three jobs, the second resumes the environment of the first.
    pub max_resume_delay: Option<Duration>,
    /// Time at which the faults end. If it is later than [`Self::end`], they do not end.
    pub faults_end: Time,
    /// Time by which all jobs must be done. The simulation ends at most [`Self::settle_time`] later.
    pub end: Time,
    /// Time that the simulation continues after the last job and the last fault. `None` means until [`Self::end`].
    pub settle_time: Option<Duration>,
    /// Whether invariants are checked after every event, and jobs and machines at the end.
    pub checks_invariants: bool,
    /// Whether the simulation ends with the last job.
    pub stop_when_done: bool,
    /// Time from which wait times and costs count.
    pub measured_from: Time,
    /// Interval of the timeline. `None` means no timeline.
    pub sample_interval: Option<Duration>,
    /// A simulated defect of the engine, which changes its actions. Used to test that the invariants find defects.
    pub injected_defect: Option<fn(Vec<Action>) -> Vec<Action>>,
}

/// A scenario with its jobs.
#[derive(Debug, Clone)]
pub struct Case {
    /// The scenario.
    pub scenario: Scenario,
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// 2026-03-02 00:00 UTC, a Monday.
pub const MONDAY: i64 = 1_772_409_600;

impl Scenario {
    /// Creates a scenario without kills, disturbances and checks. Faults that `clouds` configure do not end.
    #[must_use]
    pub fn fault_free(config: Config, clouds: Vec<CloudConfig>, seed: u64, end: Time) -> Self {
        Self {
            seed,
            config,
            clouds,
            origin: MONDAY,
            manager_kills: Vec::new(),
            kill_before_actions: 0.0,
            unmanaged_instances: Vec::new(),
            disturbances: Vec::new(),
            reservations: 0,
            holds_requests: false,
            max_resume_delay: None,
            faults_end: Time::from_millis(u64::MAX),
            end,
            settle_time: None,
            checks_invariants: false,
            stop_when_done: false,
            measured_from: Time::ZERO,
            sample_interval: None,
            injected_defect: None,
        }
    }

    /// Returns the maximum number of instances that the policies of `config` retain at the end.
    #[must_use]
    pub fn retained_instances(&self, config: &Config) -> u64 {
        let unix = self.origin + i64::try_from(self.end.as_millis() / 1000).unwrap_or(0);
        let (_, target) = config.policies.active_at(unix);
        let min_slots = if config.max_uses.is_some() { 1 } else { config.capacity.get() };
        u64::from(target.idle_count).div_ceil(u64::from(min_slots))
    }
}

impl Case {
    /// Generates a small case with many faults and disturbances.
    #[must_use]
    pub fn random(seed: u64) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
        let groups: Vec<GroupConfig> = (0..random.random_range(1..=3u32)).map(|number| group(number, random)).collect();
        let mut clouds: Vec<CloudConfig> = groups.iter().map(|_| cloud(random)).collect();
        let faults_end = Time::from_millis(random.random_range(5..60) * 60_000);
        let random_time = |random: &mut ChaCha8Rng| Time::from_millis(random.random_range(0..faults_end.as_millis()));
        let times = |random: &mut ChaCha8Rng, max: usize| -> Vec<Time> {
            let n = if chance(random, 0.5) { random.random_range(0..=max) } else { 0 };
            (0..n).map(|_| random_time(random)).collect()
        };
        let (manager_kills, unmanaged_instances): (Vec<Time>, Vec<Time>) = (times(random, 4), times(random, 2));
        let mut jobs: Vec<Job> = (0..random.random_range(1..60))
            .map(|_| Job {
                at: random_time(random),
                duration: Duration::from_millis(random.random_range(100..600_000)),
                request: SlotRequest::default(),
            })
            .collect();
        // Enough time to run all jobs one after the other, each on a new instance.
        let end = jobs
            .iter()
            .fold(faults_end + Duration::from_secs(7200), |end, job| end + job.duration + Duration::from_secs(600));
        let mut config = config(groups, random);
        // Two for each unmanaged machine: for itself, and for a requested machine that the protocol cannot distinguish
        // from it.
        let extra = 2 * u32::try_from(unmanaged_instances.len()).unwrap_or(0);
        if let Some(first) = config.groups.first_mut() {
            first.max_instances += extra;
            config.max_cost_per_hour =
                config.max_cost_per_hour.map(|max| max + f64::from(extra) * first.price_per_hour);
        }
        config.jitter_seed = seed;
        // Separate random generators, so that a new feature does not change the rest of a seed's case.
        share_instances(&mut config, &mut jobs, &mut ChaCha8Rng::seed_from_u64(seed ^ 0xde45));
        let disturbance_random = &mut ChaCha8Rng::seed_from_u64(seed ^ 0x0bad);
        let (mut disturbances, mut reservations) = (Vec::new(), 0);
        if chance(disturbance_random, 0.5) {
            disturbances = disturbance::random(clouds.len(), faults_end, disturbance_random);
            disturbance::configure(&mut config, disturbance_random);
            reservations = disturbance_random.random_range(0..4);
        }
        let ahead_random = &mut ChaCha8Rng::seed_from_u64(seed ^ 0xa4ead);
        let holds_requests = chance(ahead_random, 0.5);
        if chance(ahead_random, 0.5) {
            add_bursts(&mut config, &mut jobs, ahead_random);
            reservations = reservations.max(ahead_random.random_range(0..8));
        }
        let max_resume_delay =
            add_suspended_jobs(&mut config, &mut clouds, &mut ChaCha8Rng::seed_from_u64(seed ^ 0x51ee));
        let end = end + max_resume_delay.unwrap_or_default() * u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        let kill_before_actions = if chance(random, 0.3) { 0.02 } else { 0.0 };
        let scenario = Scenario {
            seed,
            config,
            clouds,
            origin: MONDAY + random.random_range(0..86_400),
            manager_kills,
            kill_before_actions,
            unmanaged_instances,
            disturbances,
            reservations,
            holds_requests,
            max_resume_delay,
            faults_end,
            end,
            settle_time: Some(Duration::from_secs(3600)),
            checks_invariants: true,
            stop_when_done: false,
            measured_from: Time::ZERO,
            sample_interval: None,
            injected_defect: None,
        };
        Self { scenario, jobs }
    }

    /// Runs the case.
    ///
    /// # Errors
    /// Returns the first [`Violation`].
    pub fn run(&self) -> Result<Report, Violation> {
        Simulation::new(&self.scenario, &self.jobs).run()
    }

    /// Simplifies the case while it violates the same invariant.
    #[must_use]
    pub fn shrunk(&self, violation: &Violation) -> Self {
        let mut best = self.clone();
        loop {
            let fails = |case: &Self| case.run().is_err_and(|found| found.invariant == violation.invariant);
            let Some(smaller) = best.smaller().into_iter().find(fails) else { return best };
            best = smaller;
        }
    }

    /// Variants that are simplified in one way each.
    fn smaller(&self) -> Vec<Self> {
        let mut cases = Vec::new();
        let mut add_variant = |change: &dyn Fn(&mut Self)| {
            let mut case = self.clone();
            change(&mut case);
            if format!("{case:?}") != format!("{self:?}") {
                cases.push(case);
            }
        };
        let half = self.jobs.len() / 2;
        if half > 0 {
            add_variant(&|case| case.jobs.truncate(half));
            add_variant(&|case| case.jobs = case.jobs.split_off(half));
        }
        add_variant(&|case| {
            case.jobs.pop();
        });
        add_variant(&|case| {
            case.scenario.manager_kills.pop();
        });
        add_variant(&|case| {
            case.scenario.unmanaged_instances.pop();
        });
        for index in 0..self.scenario.disturbances.len() {
            add_variant(&|case| drop(case.scenario.disturbances.remove(index)));
        }
        add_variant(&|case| case.scenario.reservations = 0);
        add_variant(&|case| case.scenario.holds_requests = false);
        add_variant(&|case| case.scenario.max_resume_delay = None);
        add_variant(&|case| case.scenario.kill_before_actions = 0.0);
        add_variant(&|case| case.jobs.iter_mut().for_each(|job| job.request = SlotRequest::default()));
        add_variant(&|case| {
            if case.scenario.clouds.len() > 1 {
                case.scenario.clouds.pop();
                case.scenario.config.groups.pop();
                let groups = case.scenario.clouds.len();
                case.scenario
                    .disturbances
                    .retain(|(_, disturbance)| disturbance.group().is_none_or(|group| group < groups));
            }
        });
        for index in 0..self.scenario.clouds.len() {
            for fault in FAULTS.into_iter().chain([SUSPEND_IGNORED]) {
                add_variant(&|case| {
                    if let Some(cloud) = case.scenario.clouds.get_mut(index) {
                        *fault(&mut cloud.faults) = 0.0;
                    }
                });
            }
            add_variant(&|case| {
                if let Some(cloud) = case.scenario.clouds.get_mut(index) {
                    (cloud.spot_preemptions_per_hour, cloud.quota, cloud.creations_per_second) = (0.0, None, None);
                }
            });
        }
        cases
    }
}

type Fault = fn(&mut CloudFaults) -> &mut f64;
const FAULTS: [Fault; 13] = [
    |faults| &mut faults.reject,
    |faults| &mut faults.fail_after_success,
    |faults| &mut faults.partial,
    |faults| &mut faults.delayed,
    |faults| &mut faults.never_appears,
    |faults| &mut faults.never_boots,
    |faults| &mut faults.never_ready,
    |faults| &mut faults.missing_from_list,
    |faults| &mut faults.stale_list,
    |faults| &mut faults.duplicate_response,
    |faults| &mut faults.slow_call,
    |faults| &mut faults.delete_ignored,
    |faults| &mut faults.unhealthy,
];

const SUSPEND_IGNORED: Fault = |faults| &mut faults.suspend_ignored;

fn group(number: u32, random: &mut ChaCha8Rng) -> GroupConfig {
    let mut group = GroupConfig::new(format!("g{number}"), random.random_range(1..12));
    group.price_per_hour = random.random_range(1..5u32).into();
    if chance(random, 0.3) {
        group.throttle = Throttle { limit: random.random_range(1..5), burst: random.random_range(0..3) };
    }
    group
}

fn cloud(random: &mut ChaCha8Rng) -> CloudConfig {
    let mut cloud = CloudConfig {
        boot: Spread::new(random.random_range(0.3..90.0), random.random_range(1.0..3.0)),
        prepare: Spread::new(random.random_range(0.1..10.0), 2.0),
        call: Spread::new(random.random_range(0.01..3.0), 3.0),
        deletion: Spread::new(random.random_range(0.1..60.0), 2.0),
        ..CloudConfig::default()
    };
    for fault in FAULTS {
        if chance(random, 0.25) {
            *fault(&mut cloud.faults) = random.random_range(0.0..0.4);
        }
    }
    if chance(random, 0.3) {
        cloud.spot_preemptions_per_hour = random.random_range(0.1..6.0);
    }
    if chance(random, 0.2) {
        cloud.quota = Some(random.random_range(0..6));
    }
    if chance(random, 0.2) {
        cloud.creations_per_second = Some(random.random_range(0.05..2.0));
    }
    cloud
}

/// Lets several jobs share an instance, in half of the cases.
fn share_instances(config: &mut Config, jobs: &mut [Job], random: &mut ChaCha8Rng) {
    if chance(random, 0.5) {
        return;
    }
    config.capacity = NonZeroU32::MIN.saturating_add(random.random_range(0..8));
    config.density.slot = ResourceRequest { cpu_milli: Some(1000), memory_bytes: None };
    config.density.learn_from_usage = chance(random, 0.5);
    let declared_fraction = random.random_range(0.0..1.0);
    for job in jobs {
        let declared = chance(random, declared_fraction).then(|| random.random_range(100..9000));
        job.request = SlotRequest {
            resources: ResourceRequest { cpu_milli: declared, memory_bytes: None },
            job_kind: chance(random, 0.5).then(|| JobKind(random.random_range(0..3))),
            sticky_context: chance(random, 0.5).then(|| StickyContextId(random.random_range(0..4))),
            avoid: None,
        };
    }
}

fn add_bursts(config: &mut Config, jobs: &mut [Job], random: &mut ChaCha8Rng) {
    let (_, target) = config.policies.active_at(MONDAY);
    let idle_count = random.random_range(1..5);
    config.policies = Policies::always(IdleTarget { idle_count, preemptive: true, reserve_ahead: true, ..target });
    let burst_size = random.random_range(1..20);
    for jobs in jobs.chunks_mut(burst_size) {
        let first = jobs.first().map_or(Time::ZERO, |job| job.at);
        jobs.iter_mut().for_each(|job| job.at = first + Duration::from_millis(random.random_range(0..3000)));
    }
}

/// Lets jobs save and resume environments, in 40 % of the cases. Returns [`Scenario::max_resume_delay`].
fn add_suspended_jobs(config: &mut Config, clouds: &mut [CloudConfig], random: &mut ChaCha8Rng) -> Option<Duration> {
    if chance(random, 0.6) {
        return None;
    }
    (config.capacity, config.max_uses) = (NonZeroU32::MIN, Some(NonZeroU32::MIN));
    config.suspended_ttl = Duration::from_secs(random.random_range(30..1500));
    for cloud in clouds {
        if chance(random, 0.3) {
            cloud.faults.suspend_ignored = random.random_range(0.0..0.4);
        }
    }
    // Some jobs arrive after the environment has expired.
    Some(config.suspended_ttl * random.random_range(1..13) / 10)
}

fn config(groups: Vec<GroupConfig>, random: &mut ChaCha8Rng) -> Config {
    let mut config = Config::new(GroupConfig::new("", 0));
    config.groups = groups;
    config.capacity = NonZeroU32::MIN.saturating_add(random.random_range(0..4));
    config.max_uses = if chance(random, 0.4) { NonZeroU32::new(random.random_range(1..6)) } else { None };
    let idle_count = if chance(random, 0.4) { random.random_range(1..6) } else { 0 };
    config.policies = Policies::always(IdleTarget {
        idle_count,
        idle_time: Duration::from_secs(random.random_range(0..600)),
        scale_factor: if chance(random, 0.2) { random.random_range(0.0..2.0) } else { 0.0 },
        scale_factor_limit: random.random_range(0..5),
        preemptive: chance(random, 0.5),
        placement: if chance(random, 0.5) { Placement::Pack } else { Placement::Spread },
        reserve_ahead: false,
    });
    config.group_selection = if chance(random, 0.5) { GroupSelection::Price } else { GroupSelection::Order };
    config.reservation_throttling = chance(random, 0.5);
    config.create_timeout = Duration::from_secs(random.random_range(60..600));
    config.boot_timeout = Duration::from_secs(random.random_range(300..900));
    config.ready_timeout = Duration::from_secs(300);
    config.max_cost_per_hour = chance(random, 0.2).then(|| random.random_range(4.0..20.0));
    config
}
