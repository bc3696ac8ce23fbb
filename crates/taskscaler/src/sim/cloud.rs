//! A provider's model.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::throttle::TokenBucket;
use crate::time::Time;
use muster_fleeting::model::{InstanceId, InstanceState};

/// A duration that varies: a median, and how far nineteen of twenty stay from it, as a factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { median_s = 90, factor = 1.5 }")]
pub struct Spread {
    /// Half take longer, in seconds.
    pub median_s: f64,
    /// 1 is always the same; at 2, one of forty takes more than twice the median, and one of forty less than half.
    #[serde(default = "one")]
    pub factor: f64,
}

fn one() -> f64 {
    1.0
}

impl Spread {
    /// About so many seconds.
    #[must_use]
    pub const fn new(median_s: f64, factor: f64) -> Self {
        Self { median_s, factor }
    }

    /// One of them.
    pub fn sample(&self, random: &mut ChaCha8Rng) -> Duration {
        // Of twelve uniform numbers the sum is as good as normal, with deviation 1.
        let normal: f64 = (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0;
        let seconds = self.median_s * (self.factor.max(1.0).ln() / 2.0 * normal).exp();
        Duration::from_secs_f64(seconds.clamp(0.001, 1e7))
    }
}

/// How a provider is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CloudConfig {
    /// From the request for an instance until it runs.
    pub boot: Spread,
    /// From running until jobs can have it.
    pub prepare: Spread,
    /// How long a call takes.
    pub call: Spread,
    /// From a removal until the instance is gone; it is paid for until then.
    pub deletion: Spread,
    /// Instances that can be created per second; none: no limit.
    pub creations_per_second: Option<f64>,
    /// The most instances that the account may have; none: no limit.
    pub quota: Option<u32>,
    /// Times of the day without stock: from and to, in hours, UTC.
    pub stockouts: Vec<(f64, f64)>,
    /// The part of the instances that the provider takes back in an hour.
    pub spot_preemptions_per_hour: f64,
    /// Seconds that are paid for at least.
    pub min_billing_s: f64,
    /// What it lies about, as probabilities per call or instance.
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
    /// What cannot be: its key, and why.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let spreads =
            [("boot", self.boot), ("prepare", self.prepare), ("call", self.call), ("deletion", self.deletion)];
        let bad = |value: f64| !(value.is_finite() && value >= 0.0);
        for (key, spread) in spreads {
            if bad(spread.median_s) || bad(spread.factor) {
                return Some(format!("{key}: median_s and factor are numbers from 0 on"));
            }
        }
        for (from, to) in &self.stockouts {
            if !(0.0 <= *from && from < to && *to <= 24.0) {
                let split = "; one over midnight is two: [[20.0, 24.0], [0.0, 3.0]]";
                return Some(format!("stockouts: [{from:?}, {to:?}] is no time of the day, from and to{split}"));
            }
        }
        if let Some(rate) = self.creations_per_second.filter(|rate| bad(*rate) || *rate <= 0.0) {
            return Some(format!(
                "creations_per_second: {rate:?} is not above 0; leave it out where there is no limit"
            ));
        }
        let rates =
            [("spot_preemptions_per_hour", self.spot_preemptions_per_hour), ("min_billing_s", self.min_billing_s)];
        rates
            .into_iter()
            .find(|(_, rate)| bad(*rate))
            .map(|(key, rate)| format!("{key}: {rate:?} is not a number from 0 on"))
    }
}

/// What a provider lies about. All are probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CloudFaults {
    /// A call fails, and did nothing.
    pub reject: f64,
    /// A call fails, and did everything.
    pub fail_after_success: f64,
    /// A creation gives fewer than were asked for.
    pub partial: f64,
    /// A created instance appears minutes later.
    pub delayed: f64,
    /// A created instance never appears.
    pub never_appears: f64,
    /// A created instance never runs.
    pub never_boots: f64,
    /// An instance cannot be made ready.
    pub never_ready: f64,
    /// A list lacks an instance that is there.
    pub missing_from_list: f64,
    /// A list is from some seconds ago.
    pub stale_list: f64,
    /// An answer comes a second time.
    pub duplicate_response: f64,
    /// A call takes a hundred times as long.
    pub slow_call: f64,
    /// A removal is accepted, and does nothing.
    pub delete_ignored: f64,
    /// A suspension or a resumption is accepted, and does nothing.
    pub suspend_ignored: f64,
    /// An instance is unwell when it is asked for its health.
    pub unhealthy: f64,
}

/// One machine, as it really is.
#[derive(Debug, Clone)]
pub struct Machine {
    /// When it was made.
    pub created_at: Time,
    /// Listed from then on.
    pub visible: Time,
    /// It runs from then on.
    pub runs: Time,
    /// The provider announces that it takes it; it is gone half a minute later.
    pub preempted_at: Option<Time>,
    /// When it is gone.
    pub deleted_at: Option<Time>,
    /// It was told to go.
    pub deleting: bool,
    /// The provider made it for who asked, and told of it: in lists that came since the last that lacked it, by the manager's
    /// life and the list's number. None where nobody can know of it.
    pub visibility: Visibility,
    /// A list that had it has come.
    pub is_listed: bool,
    /// A person made it.
    pub is_unmanaged: bool,
    /// When it was suspended, or resumed, and what it was from then on.
    pub suspend_states: Vec<(Time, InstanceState)>,
}

/// Whether a manager can know of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// It can.
    Always,
    /// Once a list has come that is later than this one, by the manager's life and the list's number.
    Since((u32, u64)),
    /// A person made it, or it was listed late: it cannot be told from what was asked for later.
    Never,
}

/// See the module.
#[derive(Debug)]
pub struct Cloud {
    /// How it is.
    pub config: CloudConfig,
    /// Every machine there ever was.
    pub machines: BTreeMap<InstanceId, Machine>,
    /// Machines that are there.
    live: BTreeMap<InstanceId, ()>,
    name: String,
    limit: Option<TokenBucket>,
    next: u64,
    /// From then on it is honest and healthy.
    faults_end: Time,
    /// Seconds of the day at the origin.
    day_s: f64,
}

/// From the announcement that a machine is taken to its end.
const PREEMPTION_NOTICE: Duration = Duration::from_secs(30);

impl Cloud {
    /// A provider whose machines are called `name` with a number; `origin` is the wall clock at the beginning.
    #[must_use]
    pub fn new(name: &str, config: CloudConfig, heals: Time, origin: i64) -> Self {
        let limit = config.creations_per_second.map(|rate| TokenBucket::new(rate, rate.max(1.0), Time::ZERO));
        #[expect(clippy::cast_precision_loss, reason = "seconds of a day")]
        let day_s = origin.rem_euclid(86_400) as f64;
        let (machines, live) = (BTreeMap::new(), BTreeMap::new());
        Self { config, machines, live, name: name.to_owned(), limit, next: 0, faults_end: heals, day_s }
    }

    pub(super) fn faults(&self, at: Time) -> CloudFaults {
        if at < self.faults_end { self.config.faults } else { CloudFaults::default() }
    }

    /// How long a call takes.
    pub fn delay(&self, at: Time, random: &mut ChaCha8Rng) -> Duration {
        let delay = self.config.call.sample(random);
        if chance(random, self.faults(at).slow_call) { delay * 100 } else { delay }
    }

    /// Whether an answer is given twice.
    pub fn duplicates_response(&self, at: Time, random: &mut ChaCha8Rng) -> bool {
        chance(random, self.faults(at).duplicate_response)
    }

    /// Makes machines.
    pub fn increase(&mut self, at: Time, n: u32, random: &mut ChaCha8Rng) -> Result<u32, String> {
        self.remove_machine(at);
        let lies = self.faults(at);
        if chance(random, lies.reject) {
            return Err("internal error, try again".to_owned());
        }
        if self.is_out_of_stock(at) {
            return Err("no capacity for this machine type in this zone".to_owned());
        }
        let failed = chance(random, lies.fail_after_success);
        let mut granted = if chance(random, lies.partial) { random.random_range(0..=n) } else { n };
        if let Some(quota) = self.config.quota.filter(|_| at < self.faults_end) {
            granted = granted.min(quota.saturating_sub(u32::try_from(self.live.len()).unwrap_or(u32::MAX)));
            if granted == 0 {
                return Err(format!("quota of {quota} instances exceeded"));
            }
        }
        if let Some(limit) = &mut self.limit {
            granted = granted.min(limit.available(at));
            if granted == 0 {
                return Err("rate of requests exceeded".to_owned());
            }
            limit.take(granted);
        }
        for _ in 0..granted {
            self.create_machine(at, random, false);
        }
        if failed { Err("502 bad gateway".to_owned()) } else { Ok(granted) }
    }

    /// One machine; `foreign` where a person makes it.
    pub fn create_machine(&mut self, at: Time, random: &mut ChaCha8Rng, foreign: bool) {
        let lies = self.faults(at);
        self.next += 1;
        let id = InstanceId::new(format!("{}-{}", self.name, self.next));
        let never = chance(random, lies.never_appears);
        let late = chance(random, lies.delayed);
        let visible = match (never, late) {
            (true, _) => return,
            (_, true) => at + Duration::from_secs(random.random_range(30..1200)),
            _ => at + Duration::from_millis(random.random_range(0..500)),
        };
        let boot = self.config.boot.sample(random);
        let runs =
            if chance(random, lies.never_boots) { at + Duration::from_secs(1 << 30) } else { visible.max(at + boot) };
        // Lost at a constant rate: an exponential age.
        let hours = if self.config.spot_preemptions_per_hour > 0.0 && at < self.faults_end {
            Some(-(1.0 - random.random::<f64>()).ln() / self.config.spot_preemptions_per_hour)
        } else {
            None
        };
        let end = hours
            .map(|hours| at + Duration::from_secs_f64((hours * 3600.0).min(1e8)))
            .filter(|end| *end < self.faults_end);
        // Half of them are announced, half are just gone.
        let announced = end.filter(|_| random.random::<bool>());
        let gone = announced.map(|taken| taken + PREEMPTION_NOTICE).or(end);
        let machine = Machine {
            created_at: at,
            visible,
            runs,
            preempted_at: announced,
            deleted_at: gone,
            deleting: false,
            visibility: if foreign || late { Visibility::Never } else { Visibility::Always },
            is_listed: false,
            is_unmanaged: foreign,
            suspend_states: Vec::new(),
        };
        self.live.insert(id.clone(), ());
        self.machines.insert(id, machine);
    }

    fn is_out_of_stock(&self, at: Time) -> bool {
        let hour = (self.day_s + at.since(Time::ZERO).as_secs_f64()) / 3600.0 % 24.0;
        at < self.faults_end && self.config.stockouts.iter().any(|(from, to)| (*from..*to).contains(&hour))
    }

    /// Removes machines; unknown ones are gone (P14).
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
            let takes = cloud.config.deletion.sample(random);
            if let Some(machine) = cloud.machines.get_mut(id) {
                let gone = at + takes;
                machine.deleted_at = Some(machine.deleted_at.map_or(gone, |earlier| earlier.min(gone)));
                machine.deleting = true;
            }
            true
        })
    }

    /// A call for some machines: refused, or accepted for some of those that `take` accepts, or done and not answered.
    pub(super) fn for_each(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        random: &mut ChaCha8Rng,
        mut take: impl FnMut(&mut Self, &InstanceId, &mut ChaCha8Rng) -> bool,
    ) -> Result<Vec<InstanceId>, String> {
        let lies = self.faults(at);
        if chance(random, lies.reject) {
            return Err("internal error, try again".to_owned());
        }
        let mut accepted = Vec::new();
        for id in ids {
            if !chance(random, lies.partial) && take(self, id, random) {
                accepted.push(id.clone());
            }
        }
        if chance(random, lies.fail_after_success) { Err("502 bad gateway".to_owned()) } else { Ok(accepted) }
    }

    /// All machines, as the provider says.
    pub fn list(
        &mut self,
        at: Time,
        number: (u32, u64),
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        self.remove_machine(at);
        let lies = self.faults(at);
        if chance(random, lies.reject) {
            return Err("internal error, try again".to_owned());
        }
        let stale = chance(random, lies.stale_list);
        let seen =
            if stale { Time::from_millis(at.as_millis().saturating_sub(random.random_range(0..20_000))) } else { at };
        let mut list = Vec::new();
        // An old list has what is gone by now, too.
        let ids: Vec<InstanceId> =
            if stale { self.machines.keys().cloned().collect() } else { self.live.keys().cloned().collect() };
        for id in ids {
            let Some(machine) = self.machines.get_mut(&id) else { continue };
            if seen < machine.visible || machine.deleted_at.is_some_and(|gone| gone <= seen) {
                // To who looks now, it is there.
                if stale && machine.is_live(at) && machine.visible <= at {
                    machine.is_missing_from(number);
                }
                continue;
            }
            if chance(random, lies.missing_from_list) {
                machine.is_missing_from(number);
                continue;
            }
            let state = if machine.preempted_at.is_some_and(|taken| taken <= seen) || machine.deleting {
                InstanceState::Deleting
            } else if machine.runs <= seen {
                machine.slept(seen)
            } else {
                InstanceState::Creating
            };
            list.push((id, state));
        }
        Ok(list)
    }

    /// A list of this number has come to the manager: what it has is known, unless a later one lacked it.
    pub fn record_listed(&mut self, number: (u32, u64), list: &[(InstanceId, InstanceState)]) {
        for (id, _) in list {
            let Some(machine) = self.machines.get_mut(id) else { continue };
            machine.is_listed = true;
            if matches!(machine.visibility, Visibility::Since(lacked) if lacked < number) {
                machine.visibility = Visibility::Always;
            }
        }
    }

    /// Whether an instance can be made ready, after so long.
    pub fn prepare(&self, at: Time, id: &InstanceId, random: &mut ChaCha8Rng) -> (Duration, Result<(), String>) {
        let takes = self.config.prepare.sample(random);
        let lies = self.faults(at);
        let result = if !self.is_awake(at + takes, id) {
            Err("no route to host".to_owned())
        } else if chance(random, lies.never_ready) {
            Err("instance_ready_command: exit status 1".to_owned())
        } else {
            Ok(())
        };
        (takes, result)
    }

    /// Whether an instance is well.
    pub fn heartbeat(&self, at: Time, id: &InstanceId, random: &mut ChaCha8Rng) -> Result<(), String> {
        let well = self.is_awake(at, id) && !chance(random, self.faults(at).unhealthy);
        if well { Ok(()) } else { Err("no answer".to_owned()) }
    }

    /// Whether a machine is there.
    #[must_use]
    pub fn is_live(&self, at: Time, id: &InstanceId) -> bool {
        self.machines.get(id).is_some_and(|machine| machine.is_live(at))
    }

    /// Machines that are there, as they really are.
    pub fn live(&self, at: Time) -> impl Iterator<Item = (&InstanceId, &Machine)> {
        self.live.keys().filter_map(move |id| Some((id, self.machines.get(id).filter(|machine| machine.is_live(at))?)))
    }

    fn remove_machine(&mut self, at: Time) {
        let machines = &self.machines;
        self.live.retain(|id, ()| machines.get(id).is_some_and(|machine| machine.is_live(at)));
    }

    /// Seconds that are paid for, of all machines, from one moment to another.
    #[must_use]
    pub fn billed_s(&self, from: Time, to: Time) -> f64 {
        let life = |machine: &Machine| {
            let least = machine.created_at + Duration::from_secs_f64(self.config.min_billing_s.max(0.0));
            let end = machine.deleted_at.map_or(to, |gone| gone.max(least)).min(to);
            end.since(machine.created_at.max(from)).as_secs_f64()
        };
        self.machines.values().map(life).sum()
    }
}

impl Machine {
    /// The list of this number, a lie, does not have it.
    fn is_missing_from(&mut self, number: (u32, u64)) {
        self.visibility = match self.visibility {
            // One that no list has had yet may be taken for one that was asked for later.
            Visibility::Never => Visibility::Never,
            _ if !self.is_listed => Visibility::Never,
            _ => Visibility::Since(number),
        };
    }

    /// Whether it is there.
    #[must_use]
    pub fn is_live(&self, at: Time) -> bool {
        self.deleted_at.is_none_or(|gone| gone > at)
    }
}

/// Whether something of this probability happens.
pub fn chance(random: &mut ChaCha8Rng, probability: f64) -> bool {
    probability > 0.0 && random.random::<f64>() < probability
}
