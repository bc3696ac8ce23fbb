//! How many slots a job takes: by the CPU and memory that it declares, or that earlier jobs of its kind used.
//!
//! ```text
//! declared need --or--> usages of earlier runs: 95th percentile, and a margin --by what a slot stands for--> slots
//! ```
//!
//! Without a [`Density::slot`] every job takes one slot, as with gitlab-runner.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::words::{Need, Work};

/// Runs of one kind that are remembered.
const RUNS: usize = 20;
/// Kinds that are remembered; the one that ran longest ago is forgotten first.
const KINDS_MAX: usize = 5_000;
/// Runs alone before a run beside others is compared with them.
const ALONE_LEAST: usize = 3;
/// With fewer neighbours than this, on average over its time, a job ran alone.
const ALONE: f64 = 0.05;

/// CPUs in thousandths, from text as Kubernetes and Docker take it: `0.5`, `2`, `500m`.
#[must_use]
pub fn cpu_milli(text: &str) -> Option<u32> {
    let text = text.trim();
    let milli = match text.strip_suffix('m') {
        Some(milli) => milli.parse::<f64>().ok()?,
        None => text.parse::<f64>().ok()? * 1000.0,
    };
    (milli.is_finite() && milli > 0.0).then(|| u32::try_from(rounded(milli)).unwrap_or(u32::MAX))
}

/// Bytes, from text as Kubernetes and Docker take it: `512Mi`, `512m`, `2g`, `1.5Gi`, `1073741824`. Units are powers of 1024.
#[must_use]
pub fn memory_bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let text = text.strip_suffix('i').unwrap_or(text);
    let unit = text.char_indices().next_back().filter(|(_, last)| last.is_ascii_alphabetic());
    let (number, factor) = match unit {
        None => (text, 1_u64),
        Some((at, unit)) => (text.get(..at)?, 1 << (10 * (1 + "kmgt".find(unit)?))),
    };
    let number = number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)?;
    #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
    let bytes = number * factor as f64;
    Some(rounded(bytes))
}

/// What a job used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// From its start to its end.
    pub wall: Duration,
    /// CPU time of its processes.
    pub cpu: Option<Duration>,
    /// The most memory that it had at once.
    pub memory_bytes: Option<u64>,
    /// How long something around it waited.
    pub stalled: Stalled,
}

/// How long at least one process waited for a resource, by the kernel's pressure counters; none: it has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Stalled {
    pub cpu: Option<Duration>,
    pub memory: Option<Duration>,
    pub io: Option<Duration>,
}

/// How jobs share an instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Density {
    /// What one slot stands for.
    pub slot: Need,
    /// Jobs that declare nothing take what earlier jobs of their kind used.
    pub measured: bool,
    /// Runs of a kind before they count.
    pub runs_least: usize,
    /// What was measured is multiplied by this.
    pub margin: f64,
}

impl Default for Density {
    /// A slot for each job.
    fn default() -> Self {
        Self { slot: Need::default(), measured: false, runs_least: 5, margin: 1.2 }
    }
}

impl Density {
    /// Slots for a need, from 1 to `most`.
    #[must_use]
    pub fn slots(&self, need: Need, most: u32) -> u32 {
        let of = |need: Option<u64>, slot: Option<u64>| match (need, slot) {
            (Some(need), Some(slot @ 1..)) => need.div_ceil(slot),
            _ => 1,
        };
        let cpu = of(need.cpu_milli.map(u64::from), self.slot.cpu_milli.map(u64::from));
        let memory = of(need.memory_bytes, self.slot.memory_bytes);
        u32::try_from(cpu.max(memory)).unwrap_or(u32::MAX).clamp(1, most.max(1))
    }
}

/// The last runs of one kind of job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPUs, on average over a run, in thousandths.
    pub cpu_milli: VecDeque<u32>,
    /// Most memory, in KiB.
    pub memory_kib: VecDeque<u32>,
    /// How long runs without neighbours took, in milliseconds.
    pub alone_ms: VecDeque<u32>,
    /// When it ran last, in seconds since 1970.
    pub last_unix: i64,
}

impl Usage {
    fn need(&self, density: &Density) -> Need {
        let of = |runs: &VecDeque<u32>| {
            let enough = runs.len() >= density.runs_least.max(1);
            let most = enough.then(|| percentile(runs, 95)).flatten()?;
            Some(f64::from(most) * density.margin)
        };
        Need {
            cpu_milli: of(&self.cpu_milli).map(|milli| u32::try_from(rounded(milli)).unwrap_or(u32::MAX)),
            memory_bytes: of(&self.memory_kib).map(|kib| rounded(kib).saturating_mul(1024)),
        }
    }
}

/// The runs of all kinds.
#[derive(Debug, Default)]
pub(crate) struct Usages {
    kinds: HashMap<Work, Usage>,
    by_age: BTreeSet<(i64, Work)>,
}

/// What a run showed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Recorded {
    /// How many times longer it took than runs alone do; none for one that ran alone, or where too few have.
    pub(crate) slow_down: Option<f64>,
    /// This kind is not remembered any more.
    pub(crate) forgotten: Option<Work>,
}

impl Usages {
    /// A run of a kind, with so many neighbours on average.
    pub(crate) fn record(&mut self, work: Work, used: &Used, neighbours: f64, unix: i64) -> Recorded {
        let usage = self.kinds.entry(work).or_default();
        self.by_age.remove(&(usage.last_unix, work));
        usage.last_unix = unix;
        let wall_ms = u32::try_from(used.wall.as_millis()).unwrap_or(u32::MAX);
        if let Some(cpu) = used.cpu.filter(|_| wall_ms > 0) {
            let milli = cpu.as_millis().saturating_mul(1000) / u128::from(wall_ms);
            push(&mut usage.cpu_milli, u32::try_from(milli).unwrap_or(u32::MAX));
        }
        if let Some(bytes) = used.memory_bytes {
            push(&mut usage.memory_kib, u32::try_from(bytes / 1024).unwrap_or(u32::MAX));
        }
        let slow_down = if neighbours < ALONE {
            push(&mut usage.alone_ms, wall_ms);
            None
        } else {
            let alone = (usage.alone_ms.len() >= ALONE_LEAST).then(|| percentile(&usage.alone_ms, 50)).flatten();
            alone.filter(|alone| *alone > 0).map(|alone| f64::from(wall_ms) / f64::from(alone))
        };
        self.by_age.insert((unix, work));
        Recorded { slow_down, forgotten: self.forget() }
    }

    fn forget(&mut self) -> Option<Work> {
        if self.kinds.len() <= KINDS_MAX {
            return None;
        }
        let (_, work) = self.by_age.pop_first()?;
        self.kinds.remove(&work);
        Some(work)
    }

    /// From the books.
    pub(crate) fn restore(&mut self, work: Work, usage: Usage) {
        self.by_age.insert((usage.last_unix, work));
        self.kinds.insert(work, usage);
        self.forget();
    }

    pub(crate) fn get(&self, work: Work) -> Option<&Usage> {
        self.kinds.get(&work)
    }

    /// What a job of this kind is expected to use.
    pub(crate) fn need(&self, work: Work, density: &Density) -> Need {
        self.kinds.get(&work).map_or_else(Need::default, |usage| usage.need(density))
    }
}

fn push(runs: &mut VecDeque<u32>, value: u32) {
    if runs.len() >= RUNS {
        runs.pop_front();
    }
    runs.push_back(value);
}

/// The smallest value that so many percent are not above.
fn percentile(runs: &VecDeque<u32>, percent: usize) -> Option<u32> {
    let mut sorted: Vec<u32> = runs.iter().copied().collect();
    sorted.sort_unstable();
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not below 0")]
fn rounded(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(seconds: u64, cpu_seconds: u64, mib: u64) -> Used {
        Used {
            wall: Duration::from_secs(seconds),
            cpu: Some(Duration::from_secs(cpu_seconds)),
            memory_bytes: Some(mib << 20),
            ..Used::default()
        }
    }

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(["2", "0.5", "1500m", " 1 "].map(cpu_milli), [2000, 500, 1500, 1000].map(Some));
        assert_eq!(["", "x", "-1", "0", "NaN", "inf", "m"].map(cpu_milli), [None; 7]);
        let gib = 1 << 30;
        assert_eq!(["1g", "1G", "1Gi", "1GiB", "1024m", "1048576k"].map(memory_bytes), [Some(gib); 6]);
        assert_eq!(["4096", "1.5k", "2t"].map(memory_bytes), [Some(4096), Some(1536), Some(2 << 40)]);
        assert_eq!(["", "g", "-1g", "0", "1x", "1é", "NaNg"].map(memory_bytes), [None; 7]);
    }

    #[test]
    fn slots_follow_the_resource_that_is_needed_most() {
        let slot = Need { cpu_milli: Some(1000), memory_bytes: Some(2 << 30) };
        let density = Density { slot, ..Density::default() };
        let need = |cpu_milli, gib: Option<u64>| Need { cpu_milli, memory_bytes: gib.map(|gib| gib << 30) };
        assert_eq!(density.slots(need(None, None), 8), 1);
        assert_eq!(density.slots(need(Some(100), Some(1)), 8), 1);
        assert_eq!(density.slots(need(Some(2500), Some(2)), 8), 3);
        assert_eq!(density.slots(need(Some(1000), Some(9)), 8), 5);
        assert_eq!(density.slots(need(Some(64_000), None), 8), 8, "no more than an instance has");
        assert_eq!(Density::default().slots(need(Some(64_000), None), 8), 1, "a slot stands for nothing");
    }

    #[test]
    fn after_twenty_runs_the_need_is_the_95th_percentile_and_a_margin() {
        let (mut usages, work) = (Usages::default(), Work(7));
        let density = Density { measured: true, ..Density::default() };
        for run in 1..=4 {
            usages.record(work, &used(10, run, 100 * run), 0.0, 0);
        }
        assert_eq!(usages.need(work, &density), Need::default(), "too few runs say nothing");
        for run in 1..=20 {
            usages.record(work, &used(10, run, 100 * run), 0.0, 0);
        }
        // Of 1 to 20 CPU seconds in 10 s, the 19th: 1.9 CPUs, and a fifth more.
        let need = usages.need(work, &density);
        assert_eq!(need, Need { cpu_milli: Some(2280), memory_bytes: Some(1900 * 1024 * 1024 * 12 / 10) });
        assert_eq!(usages.need(Work(8), &density), Need::default());
    }

    #[test]
    fn a_run_beside_others_is_compared_with_runs_alone() {
        let (mut usages, work) = (Usages::default(), Work(7));
        assert_eq!(usages.record(work, &used(20, 1, 1), 1.0, 0).slow_down, None, "nothing to compare with");
        for seconds in [10, 11, 30] {
            assert_eq!(usages.record(work, &used(seconds, 1, 1), 0.0, 0).slow_down, None);
        }
        assert_eq!(usages.record(work, &used(22, 1, 1), 2.5, 0).slow_down, Some(2.0));
    }

    #[test]
    fn what_ran_longest_ago_is_forgotten_first() {
        let mut usages = Usages::default();
        for kind in 0..KINDS_MAX as u64 {
            let unix = i64::try_from(kind).unwrap();
            assert_eq!(usages.record(Work(kind), &used(1, 1, 1), 0.0, unix).forgotten, None);
        }
        usages.record(Work(0), &used(1, 1, 1), 0.0, 1 << 40);
        assert_eq!(usages.record(Work(1 << 40), &used(1, 1, 1), 0.0, 1 << 40).forgotten, Some(Work(1)));
        assert!(usages.get(Work(0)).is_some() && usages.get(Work(1)).is_none());
    }
}
