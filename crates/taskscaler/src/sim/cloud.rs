//! A simulated provider of machines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::throttle::TokenBucket;
use crate::time::Time;
use muster_fleeting::model::{InstanceId, InstanceState};

/// Log-normal distribution of a random duration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { median_s = 90, factor = 1.5 }")]
pub struct Spread {
    /// Median in seconds.
    pub median_s: f64,
    /// If the factor is at most 1, all values equal the median. If it is 2, 95 % of the values are between half and
    /// twice the median.
    #[serde(default = "one")]
    pub factor: f64,
}

fn one() -> f64 {
    1.0
}

impl Spread {
    /// Creates a distribution.
    #[must_use]
    pub const fn new(median_s: f64, factor: f64) -> Self {
        Self { median_s, factor }
    }

    /// Returns a random value.
    pub fn sample(&self, random: &mut ChaCha8Rng) -> Duration {
        // The sum of twelve uniform numbers is nearly normal, with standard deviation 1.
        let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        let seconds = self.median_s * (self.factor.max(1.0).ln() / 2.0 * normal).exp();
        Duration::from_secs_f64(seconds.clamp(0.001, 1e7))
    }
}

/// Properties of a simulated provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CloudConfig {
    /// Time from the request until the instance runs.
    pub boot: Spread,
    /// Time from running until the instance is ready for jobs.
    pub prepare: Spread,
    /// Duration of a call.
    pub call: Spread,
    /// Time from a delete call until the instance no longer exists and is no longer billed.
    pub deletion: Spread,
    /// Maximum rate of creations, in instances per second. `None` means no limit.
    pub creations_per_second: Option<f64>,
    /// Maximum number of instances. `None` means no limit.
    pub quota: Option<u32>,
    /// Times of day without stock, as start and end in hours (UTC).
    pub stockouts: Vec<(f64, f64)>,
    /// Preemptions of an instance per hour.
    pub spot_preemptions_per_hour: f64,
    /// Minimum billed time of an instance, in seconds.
    pub min_billing_s: f64,
    /// Injected faults.
    pub faults: CloudFaults,
}

impl Default for CloudConfig {
    fn default() -> Self {
        Self {
            boot: Spread::new(40.0, 1.5),
            prepare: Spread::new(2.0, 1.5),
            call: Spread::new(0.3, 2.0),
            deletion: Spread::new(20.0, 1.5),
            creations_per_second: None,
            quota: None,
            stockouts: Vec::new(),
            spot_preemptions_per_hour: 0.0,
            min_billing_s: 60.0,
            faults: CloudFaults::default(),
        }
    }
}

impl CloudConfig {
    /// Returns a message about the first invalid key. `None` means that the configuration is valid.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let spreads =
            [("boot", self.boot), ("prepare", self.prepare), ("call", self.call), ("deletion", self.deletion)];
        let is_invalid = |value: f64| !(value.is_finite() && value >= 0.0);
        for (key, spread) in spreads {
            if is_invalid(spread.median_s) || is_invalid(spread.factor) {
                return Some(format!("{key}: median_s and factor must be numbers of at least 0"));
            }
        }
        for (from, to) in &self.stockouts {
            if !(0.0 <= *from && from < to && *to <= 24.0) {
                let hint = "; split one that includes midnight: [[20.0, 24.0], [0.0, 3.0]]";
                return Some(format!("stockouts: [{from:?}, {to:?}] is not a valid period of the day{hint}"));
            }
        }
        if let Some(rate) = self.creations_per_second.filter(|rate| is_invalid(*rate) || *rate <= 0.0) {
            return Some(format!("creations_per_second: {rate:?} is not above 0; omit it if there is no limit"));
        }
        let rates =
            [("spot_preemptions_per_hour", self.spot_preemptions_per_hour), ("min_billing_s", self.min_billing_s)];
        rates
            .into_iter()
            .find(|(_, rate)| is_invalid(*rate))
            .map(|(key, rate)| format!("{key}: {rate:?} is not a valid number; use 0 or more"))
    }
}

/// Injected faults, as probabilities per call or instance.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CloudFaults {
    /// A call fails without effect.
    pub reject: f64,
    /// A call takes effect but reports a failure.
    pub fail_after_success: f64,
    /// A call affects only some of its instances.
    pub partial: f64,
    /// A created instance appears in lists up to 20 minutes later.
    pub delayed: f64,
    /// A created instance never appears in a list.
    pub never_appears: f64,
    /// A created instance never runs.
    pub never_boots: f64,
    /// The preparation of an instance fails.
    pub never_ready: f64,
    /// A list omits an existing instance.
    pub missing_from_list: f64,
    /// A list is up to 20 seconds old.
    pub stale_list: f64,
    /// A response arrives a second time.
    pub duplicate_response: f64,
    /// A call takes a hundred times as long.
    pub slow_call: f64,
    /// A delete call is accepted but has no effect.
    pub delete_ignored: f64,
    /// A suspend or resume call is accepted but has no effect.
    pub suspend_ignored: f64,
    /// A health check fails.
    pub unhealthy: f64,
}

/// True state of a simulated machine.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Time of the creation.
    pub created_at: Time,
    /// Time from which lists contain the machine.
    pub visible_at: Time,
    /// Time from which the machine runs.
    pub running_at: Time,
    /// When the preemption is announced, [`PREEMPTION_NOTICE`] before the end. `None` means never.
    pub preemption_announced_at: Option<Time>,
    /// When the machine ceases to exist. `None` means not planned.
    pub deleted_at: Option<Time>,
    /// Whether a delete call has taken effect.
    pub deleting: bool,
    /// Whether the manager can know that the machine exists.
    pub visibility: Visibility,
    /// Whether the manager has received a list with the machine.
    pub is_listed: bool,
    /// Whether someone other than the manager created the machine.
    pub is_unmanaged: bool,
    /// State changes by suspend and resume calls, with their times.
    pub suspend_states: Vec<(Time, InstanceState)>,
}

/// Whether the manager can know that a machine exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Yes.
    Always,
    /// Not yet: this list wrongly omitted the machine. The manager can know it once a later list contains it.
    ///
    /// A list is identified by the number of the manager's run and the number of the call.
    AfterList((u32, u64)),
    /// No: the manager cannot distinguish the machine from an instance that it requested later.
    Never,
}

/// A simulated provider with its machines.
#[derive(Debug)]
pub struct Cloud {
    /// Properties of the provider.
    pub config: CloudConfig,
    /// All machines, including deleted ones.
    pub machines: BTreeMap<InstanceId, Machine>,
    live: BTreeSet<InstanceId>,
    name: String,
    limit: Option<TokenBucket>,
    last_number: u64,
    faults_end: Time,
    /// Time of day at the start of the simulation, in seconds.
    day_s: f64,
}

const PREEMPTION_NOTICE: Duration = Duration::from_secs(30);

impl Cloud {
    /// Creates a provider whose machines are named `name` with a number.
    ///
    /// Faults, preemptions, stock-outs and the quota end at `faults_end`. `origin` is the start of the simulation in
    /// seconds since 1970.
    #[must_use]
    pub fn new(name: &str, config: CloudConfig, faults_end: Time, origin: i64) -> Self {
        let limit = config.creations_per_second.map(|rate| TokenBucket::new(rate, rate.max(1.0), Time::ZERO));
        #[expect(clippy::cast_precision_loss, reason = "seconds of a day")]
        let day_s = origin.rem_euclid(86_400) as f64;
        let (machines, live) = (BTreeMap::new(), BTreeSet::new());
        Self { config, machines, live, name: name.to_owned(), limit, last_number: 0, faults_end, day_s }
    }

    pub(super) fn faults(&self, at: Time) -> CloudFaults {
        if at < self.faults_end { self.config.faults } else { CloudFaults::default() }
    }

    /// Returns the duration of a call.
    pub fn delay(&self, at: Time, random: &mut ChaCha8Rng) -> Duration {
        let delay = self.config.call.sample(random);
        if chance(random, self.faults(at).slow_call) { delay * 100 } else { delay }
    }

    /// Returns whether the response of a call arrives twice.
    pub fn duplicates_response(&self, at: Time, random: &mut ChaCha8Rng) -> bool {
        chance(random, self.faults(at).duplicate_response)
    }

    /// Simulates a call that creates machines. Returns the number of accepted machines.
    pub fn increase(&mut self, at: Time, n: u32, random: &mut ChaCha8Rng) -> Result<u32, String> {
        self.remove_deleted(at);
        let faults = self.faults(at);
        if chance(random, faults.reject) {
            return Err("internal error, try again".to_owned());
        }
        if self.is_out_of_stock(at) {
            return Err("no capacity for this machine type in this zone".to_owned());
        }
        let failed = chance(random, faults.fail_after_success);
        let mut accepted = if chance(random, faults.partial) { random.random_range(0..=n) } else { n };
        if let Some(quota) = self.config.quota.filter(|_| at < self.faults_end) {
            accepted = accepted.min(quota.saturating_sub(u32::try_from(self.live.len()).unwrap_or(u32::MAX)));
            if accepted == 0 {
                return Err(format!("quota of {quota} instances exceeded"));
            }
        }
        if let Some(limit) = &mut self.limit {
            accepted = accepted.min(limit.available(at));
            if accepted == 0 {
                return Err("rate of requests exceeded".to_owned());
            }
            limit.take(accepted);
        }
        for _ in 0..accepted {
            self.create_machine(at, random, false);
        }
        if failed { Err("502 bad gateway".to_owned()) } else { Ok(accepted) }
    }

    /// Creates a machine. `is_unmanaged` means that the manager did not request it.
    pub fn create_machine(&mut self, at: Time, random: &mut ChaCha8Rng, is_unmanaged: bool) {
        let faults = self.faults(at);
        self.last_number += 1;
        let id = InstanceId::new(format!("{}-{}", self.name, self.last_number));
        let never = chance(random, faults.never_appears);
        let late = chance(random, faults.delayed);
        let visible_at = match (never, late) {
            (true, _) => return,
            (_, true) => at + Duration::from_secs(random.random_range(30..1200)),
            _ => at + Duration::from_millis(random.random_range(0..500)),
        };
        let boot = self.config.boot.sample(random);
        let running_at = if chance(random, faults.never_boots) {
            at + Duration::from_secs(1 << 30)
        } else {
            visible_at.max(at + boot)
        };
        // A constant rate of preemptions means an exponential distribution of ages.
        let hours = if self.config.spot_preemptions_per_hour > 0.0 && at < self.faults_end {
            Some(-(1.0 - random.random::<f64>()).ln() / self.config.spot_preemptions_per_hour)
        } else {
            None
        };
        let end = hours
            .map(|hours| at + Duration::from_secs_f64((hours * 3600.0).min(1e8)))
            .filter(|end| *end < self.faults_end);
        // Half of the preemptions are announced.
        let announced = end.filter(|_| random.random::<bool>());
        let deleted_at = announced.map(|announced| announced + PREEMPTION_NOTICE).or(end);
        let machine = Machine {
            created_at: at,
            visible_at,
            running_at,
            preemption_announced_at: announced,
            deleted_at,
            deleting: false,
            visibility: if is_unmanaged || late { Visibility::Never } else { Visibility::Always },
            is_listed: false,
            is_unmanaged,
            suspend_states: Vec::new(),
        };
        self.live.insert(id.clone());
        self.machines.insert(id, machine);
    }

    fn is_out_of_stock(&self, at: Time) -> bool {
        let hour = (self.day_s + at.since(Time::ZERO).as_secs_f64()) / 3600.0 % 24.0;
        at < self.faults_end && self.config.stockouts.iter().any(|(from, to)| (*from..*to).contains(&hour))
    }

    /// Simulates a call that deletes machines. Accepts unknown machines, which no longer exist (P14 in
    /// docs/spec/fleeting.md).
    pub fn decrease(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        self.for_each(at, ids, random, |cloud, id, random| {
            if chance(random, cloud.faults(at).delete_ignored) {
                return true;
            }
            let duration = cloud.config.deletion.sample(random);
            if let Some(machine) = cloud.machines.get_mut(id) {
                let end = at + duration;
                machine.deleted_at = Some(machine.deleted_at.map_or(end, |earlier| earlier.min(end)));
                machine.deleting = true;
            }
            true
        })
    }

    /// `apply` handles a machine and returns whether the machine is accepted.
    pub(super) fn for_each(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        random: &mut ChaCha8Rng,
        mut apply: impl FnMut(&mut Self, &InstanceId, &mut ChaCha8Rng) -> bool,
    ) -> Result<Vec<InstanceId>, String> {
        let faults = self.faults(at);
        if chance(random, faults.reject) {
            return Err("internal error, try again".to_owned());
        }
        let mut accepted = Vec::new();
        for id in ids {
            if !chance(random, faults.partial) && apply(self, id, random) {
                accepted.push(id.clone());
            }
        }
        if chance(random, faults.fail_after_success) { Err("502 bad gateway".to_owned()) } else { Ok(accepted) }
    }

    /// Simulates a list call. `number` identifies the list ([`Visibility::AfterList`]).
    pub fn list(
        &mut self,
        at: Time,
        number: (u32, u64),
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        self.remove_deleted(at);
        let faults = self.faults(at);
        if chance(random, faults.reject) {
            return Err("internal error, try again".to_owned());
        }
        let stale = chance(random, faults.stale_list);
        let snapshot_time =
            if stale { Time::from_millis(at.as_millis().saturating_sub(random.random_range(0..20_000))) } else { at };
        let mut list = Vec::new();
        // An outdated list also contains machines that have been deleted since.
        let ids: Vec<InstanceId> =
            if stale { self.machines.keys().cloned().collect() } else { self.live.iter().cloned().collect() };
        for id in ids {
            let Some(machine) = self.machines.get_mut(&id) else { continue };
            if snapshot_time < machine.visible_at
                || machine.deleted_at.is_some_and(|deleted_at| deleted_at <= snapshot_time)
            {
                // The machine exists, but the outdated list omits it.
                if stale && machine.is_live(at) && machine.visible_at <= at {
                    machine.record_omission(number);
                }
                continue;
            }
            if chance(random, faults.missing_from_list) {
                machine.record_omission(number);
                continue;
            }
            let state = if machine.preemption_announced_at.is_some_and(|announced| announced <= snapshot_time)
                || machine.deleting
            {
                InstanceState::Deleting
            } else if machine.running_at <= snapshot_time {
                machine.suspend_state(snapshot_time)
            } else {
                InstanceState::Creating
            };
            list.push((id, state));
        }
        Ok(list)
    }

    /// Records that the manager received a list, and thus knows its machines.
    pub fn record_listed(&mut self, number: (u32, u64), list: &[(InstanceId, InstanceState)]) {
        for (id, _) in list {
            let Some(machine) = self.machines.get_mut(id) else { continue };
            machine.is_listed = true;
            if matches!(machine.visibility, Visibility::AfterList(omitting_list) if omitting_list < number) {
                machine.visibility = Visibility::Always;
            }
        }
    }

    /// Simulates a preparation. Returns its duration and result.
    pub fn prepare(&self, at: Time, id: &InstanceId, random: &mut ChaCha8Rng) -> (Duration, Result<(), String>) {
        let duration = self.config.prepare.sample(random);
        let faults = self.faults(at);
        let result = if !self.is_running(at + duration, id) {
            Err("no route to host".to_owned())
        } else if chance(random, faults.never_ready) {
            Err("instance_ready_command: exit status 1".to_owned())
        } else {
            Ok(())
        };
        (duration, result)
    }

    /// Simulates a health check.
    pub fn heartbeat(&self, at: Time, id: &InstanceId, random: &mut ChaCha8Rng) -> Result<(), String> {
        let is_healthy = self.is_running(at, id) && !chance(random, self.faults(at).unhealthy);
        if is_healthy { Ok(()) } else { Err("no answer".to_owned()) }
    }

    /// Returns whether a machine exists.
    #[must_use]
    pub fn is_live(&self, at: Time, id: &InstanceId) -> bool {
        self.machines.get(id).is_some_and(|machine| machine.is_live(at))
    }

    /// Returns the existing machines.
    pub fn live(&self, at: Time) -> impl Iterator<Item = (&InstanceId, &Machine)> {
        self.live.iter().filter_map(move |id| Some((id, self.machines.get(id).filter(|machine| machine.is_live(at))?)))
    }

    fn remove_deleted(&mut self, at: Time) {
        let machines = &self.machines;
        self.live.retain(|id| machines.get(id).is_some_and(|machine| machine.is_live(at)));
    }

    /// Returns the billed time of all machines in a period, in seconds.
    #[must_use]
    pub fn billed_s(&self, from: Time, to: Time) -> f64 {
        let billed_time = |machine: &Machine| {
            let min_end = machine.created_at + Duration::from_secs_f64(self.config.min_billing_s.max(0.0));
            let end = machine.deleted_at.map_or(to, |deleted_at| deleted_at.max(min_end)).min(to);
            end.since(machine.created_at.max(from)).as_secs_f64()
        };
        self.machines.values().map(billed_time).sum()
    }
}

impl Machine {
    fn record_omission(&mut self, number: (u32, u64)) {
        self.visibility = match self.visibility {
            Visibility::Never => Visibility::Never,
            // No list has contained the machine yet, so the manager may match it to a later request.
            _ if !self.is_listed => Visibility::Never,
            _ => Visibility::AfterList(number),
        };
    }

    /// Returns whether the machine exists.
    #[must_use]
    pub fn is_live(&self, at: Time) -> bool {
        self.deleted_at.is_none_or(|deleted_at| deleted_at > at)
    }
}

/// Returns true with the given probability.
pub fn chance(random: &mut ChaCha8Rng, probability: f64) -> bool {
    probability > 0.0 && random.random::<f64>() < probability
}
