//! Number of slots that a job takes.
//!
//! ```text
//! declared resources, or else the 95th percentile of earlier runs with a margin --divided by the resources of a slot--> slots
//! ```
//!
//! Without a [`Density::slot`], every job takes one slot, as with gitlab-runner.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::{JobKind, ResourceRequest};

const MAX_RUNS: usize = 20;
/// The least recently run kind is forgotten first.
const MAX_JOB_KINDS: usize = 5_000;
/// Minimum number of runs without neighbors before other runs are compared with them.
const MIN_SOLO_RUNS: usize = 3;
const SOLO_NEIGHBOR_THRESHOLD: f64 = 0.05;

/// Parses CPUs in the notation of Kubernetes and Docker (`0.5`, `2`, `500m`) into thousandths.
#[must_use]
pub fn cpu_milli(text: &str) -> Option<u32> {
    let text = text.trim();
    let milli = match text.strip_suffix('m') {
        Some(milli) => milli.parse::<f64>().ok()?,
        None => text.parse::<f64>().ok()? * 1000.0,
    };
    (milli.is_finite() && milli > 0.0).then(|| u32::try_from(round_up(milli)).unwrap_or(u32::MAX))
}

/// Parses a size in the notation of Kubernetes and Docker (`512Mi`, `2g`) into bytes. Units are powers of 1024.
#[must_use]
pub fn memory_bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix('b').unwrap_or(&text);
    let text = text.strip_suffix('i').unwrap_or(text);
    let unit = text.char_indices().next_back().filter(|(_, last)| last.is_ascii_alphabetic());
    let (number, factor) = match unit {
        None => (text, 1_u64),
        Some((end, unit)) => (text.get(..end)?, 1 << (10 * (1 + "kmgt".find(unit)?))),
    };
    let number = number.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)?;
    #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
    let bytes = number * factor as f64;
    Some(round_up(bytes))
}

/// Resources that a job used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobUsage {
    /// Run time.
    pub wall: Duration,
    /// CPU time. `None` means that it was not measured.
    pub cpu: Option<Duration>,
    /// Peak memory, in bytes. `None` means that it was not measured.
    pub memory_bytes: Option<u64>,
    /// Time in which the job's processes waited for resources.
    pub stalled: PressureStall,
}

/// Time in which a process waited for a resource (the kernel's PSI counters). `None` means that there is no counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the field names are self-explanatory")]
pub struct PressureStall {
    pub cpu: Option<Duration>,
    pub memory: Option<Duration>,
    pub io: Option<Duration>,
}

/// How jobs share an instance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Density {
    /// Resources of one slot.
    pub slot: ResourceRequest,
    /// Whether jobs without declared resources take as many slots as earlier runs of their kind needed.
    pub learn_from_usage: bool,
    /// Minimum number of runs before their usage counts.
    pub min_runs: usize,
    /// Factor by which the measured usage is multiplied.
    pub usage_margin: f64,
}

impl Default for Density {
    /// Returns settings with which each job takes one slot.
    fn default() -> Self {
        Self { slot: ResourceRequest::default(), learn_from_usage: false, min_runs: 5, usage_margin: 1.2 }
    }
}

impl Density {
    /// Returns the number of slots for a resource request, from 1 to `max`.
    #[must_use]
    pub fn slots_for(&self, need: ResourceRequest, max: u32) -> u32 {
        let slots = |need: Option<u64>, slot: Option<u64>| match (need, slot) {
            (Some(need), Some(slot @ 1..)) => need.div_ceil(slot),
            _ => 1,
        };
        let cpu = slots(need.cpu_milli.map(u64::from), self.slot.cpu_milli.map(u64::from));
        let memory = slots(need.memory_bytes, self.slot.memory_bytes);
        u32::try_from(cpu.max(memory)).unwrap_or(u32::MAX).clamp(1, max.max(1))
    }
}

/// Resource usage of the last runs of one job kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageSamples {
    /// Average CPU usage per run, in thousandths.
    pub cpu_milli: VecDeque<u32>,
    /// Peak memory per run, in KiB.
    pub memory_kib: VecDeque<u32>,
    /// Run times without neighbors, in milliseconds.
    pub solo_ms: VecDeque<u32>,
    /// Time of the last run, in seconds since 1970.
    pub last_run_at: i64,
}

impl UsageSamples {
    /// Returns the resources that the next run is expected to need. A field is `None` if too few runs are known.
    fn need(&self, density: &Density) -> ResourceRequest {
        let expected = |runs: &VecDeque<u32>| {
            let has_enough = runs.len() >= density.min_runs.max(1);
            let usage = has_enough.then(|| percentile(runs, 95)).flatten()?;
            Some(f64::from(usage) * density.usage_margin)
        };
        ResourceRequest {
            cpu_milli: expected(&self.cpu_milli).map(|milli| u32::try_from(round_up(milli)).unwrap_or(u32::MAX)),
            memory_bytes: expected(&self.memory_kib).map(|kib| round_up(kib).saturating_mul(1024)),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct UsageHistory {
    kinds: HashMap<JobKind, UsageSamples>,
    by_age: BTreeSet<(i64, JobKind)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct RecordedRun {
    /// Run time divided by the median run time without neighbors. `None` if the job ran alone or too few runs are
    /// known.
    pub(crate) slowdown: Option<f64>,
    pub(crate) forgotten: Option<JobKind>,
}

impl UsageHistory {
    pub(crate) fn record(&mut self, kind: JobKind, usage: &JobUsage, neighbors: f64, unix: i64) -> RecordedRun {
        let samples = self.kinds.entry(kind).or_default();
        self.by_age.remove(&(samples.last_run_at, kind));
        samples.last_run_at = unix;
        let wall_ms = u32::try_from(usage.wall.as_millis()).unwrap_or(u32::MAX);
        if let Some(cpu) = usage.cpu.filter(|_| wall_ms > 0) {
            let milli = cpu.as_millis().saturating_mul(1000) / u128::from(wall_ms);
            push_sample(&mut samples.cpu_milli, u32::try_from(milli).unwrap_or(u32::MAX));
        }
        if let Some(bytes) = usage.memory_bytes {
            push_sample(&mut samples.memory_kib, u32::try_from(bytes / 1024).unwrap_or(u32::MAX));
        }
        let slowdown = if neighbors < SOLO_NEIGHBOR_THRESHOLD {
            push_sample(&mut samples.solo_ms, wall_ms);
            None
        } else {
            let solo = (samples.solo_ms.len() >= MIN_SOLO_RUNS).then(|| percentile(&samples.solo_ms, 50)).flatten();
            solo.filter(|solo| *solo > 0).map(|solo| f64::from(wall_ms) / f64::from(solo))
        };
        self.by_age.insert((unix, kind));
        RecordedRun { slowdown, forgotten: self.forget() }
    }

    /// Forgets the job kind that ran longest ago if too many are known.
    fn forget(&mut self) -> Option<JobKind> {
        if self.kinds.len() <= MAX_JOB_KINDS {
            return None;
        }
        let (_, kind) = self.by_age.pop_first()?;
        self.kinds.remove(&kind);
        Some(kind)
    }

    pub(crate) fn restore(&mut self, kind: JobKind, usage: UsageSamples) {
        self.by_age.insert((usage.last_run_at, kind));
        self.kinds.insert(kind, usage);
        self.forget();
    }

    pub(crate) fn get(&self, kind: JobKind) -> Option<&UsageSamples> {
        self.kinds.get(&kind)
    }

    pub(crate) fn need(&self, kind: JobKind, density: &Density) -> ResourceRequest {
        self.kinds.get(&kind).map_or_else(ResourceRequest::default, |usage| usage.need(density))
    }
}

fn push_sample(runs: &mut VecDeque<u32>, value: u32) {
    if runs.len() >= MAX_RUNS {
        runs.pop_front();
    }
    runs.push_back(value);
}

/// Returns the smallest value that at least `percent` percent of all values do not exceed.
fn percentile(runs: &VecDeque<u32>, percent: usize) -> Option<u32> {
    let mut sorted: Vec<u32> = runs.iter().copied().collect();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is not below 0")]
fn round_up(value: f64) -> u64 {
    value.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(seconds: u64, cpu_seconds: u64, mib: u64) -> JobUsage {
        JobUsage {
            wall: Duration::from_secs(seconds),
            cpu: Some(Duration::from_secs(cpu_seconds)),
            memory_bytes: Some(mib << 20),
            ..JobUsage::default()
        }
    }

    #[test]
    fn parses_kubernetes_and_docker_quantities() {
        assert_eq!(["2", "0.5", "1500m", " 1 "].map(cpu_milli), [2000, 500, 1500, 1000].map(Some));
        assert_eq!(["", "x", "-1", "0", "NaN", "inf", "m"].map(cpu_milli), [None; 7]);
        let gib = 1 << 30;
        assert_eq!(["1g", "1G", "1Gi", "1GiB", "1024m", "1048576k"].map(memory_bytes), [Some(gib); 6]);
        assert_eq!(["4096", "1.5k", "2t"].map(memory_bytes), [Some(4096), Some(1536), Some(2 << 40)]);
        assert_eq!(["", "g", "-1g", "0", "1x", "1é", "NaNg"].map(memory_bytes), [None; 7]);
    }

    #[test]
    fn slots_follow_the_scarcest_resource() {
        let slot = ResourceRequest { cpu_milli: Some(1000), memory_bytes: Some(2 << 30) };
        let density = Density { slot, ..Density::default() };
        let need = |cpu_milli, gib: Option<u64>| ResourceRequest { cpu_milli, memory_bytes: gib.map(|gib| gib << 30) };
        assert_eq!(density.slots_for(need(None, None), 8), 1);
        assert_eq!(density.slots_for(need(Some(100), Some(1)), 8), 1);
        assert_eq!(density.slots_for(need(Some(2500), Some(2)), 8), 3);
        assert_eq!(density.slots_for(need(Some(1000), Some(9)), 8), 5);
        assert_eq!(density.slots_for(need(Some(64_000), None), 8), 8, "at most the slots of an instance");
        assert_eq!(Density::default().slots_for(need(Some(64_000), None), 8), 1, "no slot size is configured");
    }

    #[test]
    fn expected_usage_is_95th_percentile_with_margin() {
        let (mut usages, kind) = (UsageHistory::default(), JobKind(7));
        let density = Density { learn_from_usage: true, ..Density::default() };
        for run in 1..=4 {
            usages.record(kind, &usage(10, run, 100 * run), 0.0, 0);
        }
        assert_eq!(usages.need(kind, &density), ResourceRequest::default(), "the usage of few runs must be ignored");
        for run in 1..=20 {
            usages.record(kind, &usage(10, run, 100 * run), 0.0, 0);
        }
        let need = usages.need(kind, &density);
        assert_eq!(need, ResourceRequest { cpu_milli: Some(2280), memory_bytes: Some(1900 * 1024 * 1024 * 12 / 10) });
        assert_eq!(usages.need(JobKind(8), &density), ResourceRequest::default());
    }

    #[test]
    fn slowdown_compares_with_runs_without_neighbors() {
        let (mut usages, kind) = (UsageHistory::default(), JobKind(7));
        assert_eq!(usages.record(kind, &usage(20, 1, 1), 1.0, 0).slowdown, None, "nothing to compare with");
        for seconds in [10, 11, 30] {
            assert_eq!(usages.record(kind, &usage(seconds, 1, 1), 0.0, 0).slowdown, None);
        }
        assert_eq!(usages.record(kind, &usage(22, 1, 1), 2.5, 0).slowdown, Some(2.0));
    }

    #[test]
    fn job_kind_that_ran_longest_ago_is_forgotten_first() {
        let mut usages = UsageHistory::default();
        for kind in 0..MAX_JOB_KINDS as u64 {
            let unix = i64::try_from(kind).unwrap();
            assert_eq!(usages.record(JobKind(kind), &usage(1, 1, 1), 0.0, unix).forgotten, None);
        }
        usages.record(JobKind(0), &usage(1, 1, 1), 0.0, 1 << 40);
        assert_eq!(usages.record(JobKind(1 << 40), &usage(1, 1, 1), 0.0, 1 << 40).forgotten, Some(JobKind(1)));
        assert!(usages.get(JobKind(0)).is_some() && usages.get(JobKind(1)).is_none());
    }
}
