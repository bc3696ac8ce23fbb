//! A provider's model.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::throttle::Bucket;
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
    pub stock_outs: Vec<(f64, f64)>,
    /// The part of the instances that the provider takes back in an hour.
    pub spot_loss_per_hour: f64,
    /// Seconds that are paid for at least.
    pub billed_at_least_s: f64,
    /// What it lies about, as probabilities per call or instance.
    pub lies: Lies,
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
            stock_outs: Vec::new(),
            spot_loss_per_hour: 0.0,
            billed_at_least_s: 60.0,
            lies: Lies::default(),
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
        for (from, to) in &self.stock_outs {
            if !(0.0 <= *from && from < to && *to <= 24.0) {
                let split = "; one over midnight is two: [[20.0, 24.0], [0.0, 3.0]]";
                return Some(format!("stock_outs: [{from:?}, {to:?}] is no time of the day, from and to{split}"));
            }
        }
        if let Some(rate) = self.creations_per_second.filter(|rate| bad(*rate) || *rate <= 0.0) {
            return Some(format!(
                "creations_per_second: {rate:?} is not above 0; leave it out where there is no limit"
            ));
        }
        let rates = [("spot_loss_per_hour", self.spot_loss_per_hour), ("billed_at_least_s", self.billed_at_least_s)];
        rates
            .into_iter()
            .find(|(_, rate)| bad(*rate))
            .map(|(key, rate)| format!("{key}: {rate:?} is not a number from 0 on"))
    }
}

/// What a provider lies about. All are probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lies {
    /// A call fails, and did nothing.
    pub refused: f64,
    /// A call fails, and did everything.
    pub failed_after_success: f64,
    /// A creation gives fewer than were asked for.
    pub short: f64,
    /// A created instance appears minutes later.
    pub late: f64,
    /// A created instance never appears.
    pub never: f64,
    /// A created instance never runs.
    pub stuck: f64,
    /// An instance cannot be made ready.
    pub unready: f64,
    /// A list lacks an instance that is there.
    pub hidden: f64,
    /// A list is from some seconds ago.
    pub stale: f64,
    /// An answer comes a second time.
    pub twice: f64,
    /// A call takes a hundred times as long.
    pub slow: f64,
    /// A removal is accepted, and does nothing.
    pub undeleted: f64,
    /// A suspension or a resumption is accepted, and does nothing.
    pub sleepless: f64,
    /// An instance is unwell when it is asked for its health.
    pub unwell: f64,
}

/// One machine, as it really is.
#[derive(Debug, Clone)]
pub struct Machine {
    /// When it was made.
    pub made: Time,
    /// Listed from then on.
    pub visible: Time,
    /// It runs from then on.
    pub runs: Time,
    /// The provider announces that it takes it; it is gone half a minute later.
    pub taken: Option<Time>,
    /// When it is gone.
    pub gone: Option<Time>,
    /// It was told to go.
    pub deleting: bool,
    /// The provider made it for who asked, and told of it: in lists that came since the last that lacked it, by the manager's
    /// life and the list's number. None where nobody can know of it.
    pub known: Known,
    /// A list that had it has come.
    pub is_listed: bool,
    /// A person made it.
    pub foreign: bool,
    /// When it was suspended, or resumed, and what it was from then on.
    pub sleep: Vec<(Time, InstanceState)>,
}

/// Whether a manager can know of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
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
    limit: Option<Bucket>,
    next: u64,
    /// From then on it is honest and healthy.
    heals: Time,
    /// Seconds of the day at the origin.
    day_s: f64,
}

/// From the announcement that a machine is taken to its end.
const NOTICE: Duration = Duration::from_secs(30);

impl Cloud {
    /// A provider whose machines are called `name` with a number; `origin` is the wall clock at the beginning.
    #[must_use]
    pub fn new(name: &str, config: CloudConfig, heals: Time, origin: i64) -> Self {
        let limit = config.creations_per_second.map(|rate| Bucket::new(rate, rate.max(1.0), Time::ZERO));
        #[expect(clippy::cast_precision_loss, reason = "seconds of a day")]
        let day_s = origin.rem_euclid(86_400) as f64;
        let (machines, live) = (BTreeMap::new(), BTreeMap::new());
        Self { config, machines, live, name: name.to_owned(), limit, next: 0, heals, day_s }
    }

    pub(super) fn lies(&self, at: Time) -> Lies {
        if at < self.heals { self.config.lies } else { Lies::default() }
    }

    /// How long a call takes.
    pub fn delay(&self, at: Time, random: &mut ChaCha8Rng) -> Duration {
        let delay = self.config.call.sample(random);
        if chance(random, self.lies(at).slow) { delay * 100 } else { delay }
    }

    /// Whether an answer is given twice.
    pub fn says_twice(&self, at: Time, random: &mut ChaCha8Rng) -> bool {
        chance(random, self.lies(at).twice)
    }

    /// Makes machines.
    pub fn increase(&mut self, at: Time, n: u32, random: &mut ChaCha8Rng) -> Result<u32, String> {
        self.bury(at);
        let lies = self.lies(at);
        if chance(random, lies.refused) {
            return Err("internal error, try again".to_owned());
        }
        if self.is_out_of_stock(at) {
            return Err("no capacity for this machine type in this zone".to_owned());
        }
        let failed = chance(random, lies.failed_after_success);
        let mut granted = if chance(random, lies.short) { random.random_range(0..=n) } else { n };
        if let Some(quota) = self.config.quota.filter(|_| at < self.heals) {
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
            self.make(at, random, false);
        }
        if failed { Err("502 bad gateway".to_owned()) } else { Ok(granted) }
    }

    /// One machine; `foreign` where a person makes it.
    pub fn make(&mut self, at: Time, random: &mut ChaCha8Rng, foreign: bool) {
        let lies = self.lies(at);
        self.next += 1;
        let id = InstanceId::new(format!("{}-{}", self.name, self.next));
        let never = chance(random, lies.never);
        let late = chance(random, lies.late);
        let visible = match (never, late) {
            (true, _) => return,
            (_, true) => at + Duration::from_secs(random.random_range(30..1200)),
            _ => at + Duration::from_millis(random.random_range(0..500)),
        };
        let boot = self.config.boot.sample(random);
        let runs = if chance(random, lies.stuck) { at + Duration::from_secs(1 << 30) } else { visible.max(at + boot) };
        // Lost at a constant rate: an exponential age.
        let hours = if self.config.spot_loss_per_hour > 0.0 && at < self.heals {
            Some(-(1.0 - random.random::<f64>()).ln() / self.config.spot_loss_per_hour)
        } else {
            None
        };
        let end =
            hours.map(|hours| at + Duration::from_secs_f64((hours * 3600.0).min(1e8))).filter(|end| *end < self.heals);
        // Half of them are announced, half are just gone.
        let announced = end.filter(|_| random.random::<bool>());
        let gone = announced.map(|taken| taken + NOTICE).or(end);
        let machine = Machine {
            made: at,
            visible,
            runs,
            taken: announced,
            gone,
            deleting: false,
            known: if foreign || late { Known::Never } else { Known::Always },
            is_listed: false,
            foreign,
            sleep: Vec::new(),
        };
        self.live.insert(id.clone(), ());
        self.machines.insert(id, machine);
    }

    fn is_out_of_stock(&self, at: Time) -> bool {
        let hour = (self.day_s + at.since(Time::ZERO).as_secs_f64()) / 3600.0 % 24.0;
        at < self.heals && self.config.stock_outs.iter().any(|(from, to)| (*from..*to).contains(&hour))
    }

    /// Removes machines; unknown ones are gone (P14).
    pub fn decrease(
        &mut self,
        at: Time,
        ids: &[InstanceId],
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<InstanceId>, String> {
        self.for_each(at, ids, random, |cloud, id, random| {
            if chance(random, cloud.lies(at).undeleted) {
                return true;
            }
            let takes = cloud.config.deletion.sample(random);
            if let Some(machine) = cloud.machines.get_mut(id) {
                let gone = at + takes;
                machine.gone = Some(machine.gone.map_or(gone, |earlier| earlier.min(gone)));
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
        let lies = self.lies(at);
        if chance(random, lies.refused) {
            return Err("internal error, try again".to_owned());
        }
        let mut accepted = Vec::new();
        for id in ids {
            if !chance(random, lies.short) && take(self, id, random) {
                accepted.push(id.clone());
            }
        }
        if chance(random, lies.failed_after_success) { Err("502 bad gateway".to_owned()) } else { Ok(accepted) }
    }

    /// All machines, as the provider says.
    pub fn list(
        &mut self,
        at: Time,
        number: (u32, u64),
        random: &mut ChaCha8Rng,
    ) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        self.bury(at);
        let lies = self.lies(at);
        if chance(random, lies.refused) {
            return Err("internal error, try again".to_owned());
        }
        let stale = chance(random, lies.stale);
        let seen =
            if stale { Time::from_millis(at.as_millis().saturating_sub(random.random_range(0..20_000))) } else { at };
        let mut list = Vec::new();
        // An old list has what is gone by now, too.
        let ids: Vec<InstanceId> =
            if stale { self.machines.keys().cloned().collect() } else { self.live.keys().cloned().collect() };
        for id in ids {
            let Some(machine) = self.machines.get_mut(&id) else { continue };
            if seen < machine.visible || machine.gone.is_some_and(|gone| gone <= seen) {
                // To who looks now, it is there.
                if stale && machine.is_live(at) && machine.visible <= at {
                    machine.is_lacked_by(number);
                }
                continue;
            }
            if chance(random, lies.hidden) {
                machine.is_lacked_by(number);
                continue;
            }
            let state = if machine.taken.is_some_and(|taken| taken <= seen) || machine.deleting {
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
    pub fn is_told(&mut self, number: (u32, u64), list: &[(InstanceId, InstanceState)]) {
        for (id, _) in list {
            let Some(machine) = self.machines.get_mut(id) else { continue };
            machine.is_listed = true;
            if matches!(machine.known, Known::Since(lacked) if lacked < number) {
                machine.known = Known::Always;
            }
        }
    }

    /// Whether an instance can be made ready, after so long.
    pub fn prepare(&self, at: Time, id: &InstanceId, random: &mut ChaCha8Rng) -> (Duration, Result<(), String>) {
        let takes = self.config.prepare.sample(random);
        let lies = self.lies(at);
        let result = if !self.is_awake(at + takes, id) {
            Err("no route to host".to_owned())
        } else if chance(random, lies.unready) {
            Err("instance_ready_command: exit status 1".to_owned())
        } else {
            Ok(())
        };
        (takes, result)
    }

    /// Whether an instance is well.
    pub fn heartbeat(&self, at: Time, id: &InstanceId, random: &mut ChaCha8Rng) -> Result<(), String> {
        let well = self.is_awake(at, id) && !chance(random, self.lies(at).unwell);
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

    fn bury(&mut self, at: Time) {
        let machines = &self.machines;
        self.live.retain(|id, ()| machines.get(id).is_some_and(|machine| machine.is_live(at)));
    }

    /// Seconds that are paid for, of all machines, from one moment to another.
    #[must_use]
    pub fn billed_s(&self, from: Time, to: Time) -> f64 {
        let life = |machine: &Machine| {
            let least = machine.made + Duration::from_secs_f64(self.config.billed_at_least_s.max(0.0));
            let end = machine.gone.map_or(to, |gone| gone.max(least)).min(to);
            end.since(machine.made.max(from)).as_secs_f64()
        };
        self.machines.values().map(life).sum()
    }
}

impl Machine {
    /// The list of this number, a lie, does not have it.
    fn is_lacked_by(&mut self, number: (u32, u64)) {
        self.known = match self.known {
            // One that no list has had yet may be taken for one that was asked for later.
            Known::Never => Known::Never,
            _ if !self.is_listed => Known::Never,
            _ => Known::Since(number),
        };
    }

    /// Whether it is there.
    #[must_use]
    pub fn is_live(&self, at: Time) -> bool {
        self.gone.is_none_or(|gone| gone > at)
    }
}

/// Whether something of this probability happens.
pub fn chance(random: &mut ChaCha8Rng, probability: f64) -> bool {
    probability > 0.0 && random.random::<f64>() < probability
}
