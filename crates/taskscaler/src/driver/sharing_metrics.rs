//! Metrics about jobs that share an instance: how densely they are placed, and how much they slow each other down.

use std::collections::BTreeMap;
use std::time::Duration;

use super::family::{Family, Histogram, Kind, Sample};
use crate::decision::DecisionKind;
use crate::resources::JobUsage;

const COUNTS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0];
const RATIOS: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const TIMES: [f64; 10] = [0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0];
const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];
/// Ranges of the average number of neighbors: the upper bound of each, and its label.
const NEIGHBOURS: [(f64, &str); 5] = [(0.5, "0"), (1.5, "1"), (3.5, "2-3"), (7.5, "4-7"), (f64::INFINITY, "8+")];

/// State of the metrics.
#[derive(Debug)]
pub(super) struct SharingMetrics {
    /// Number of jobs on the instance when one starts, including that one.
    jobs: Histogram,
    /// Number of slots per job.
    slots: Histogram,
    pressure: BTreeMap<&'static str, Histogram>,
    slowdown: BTreeMap<&'static str, Histogram>,
    sticky: [u64; 2],
}

impl SharingMetrics {
    pub(super) fn new() -> Self {
        let all = |names: &[&'static str], bounds: &[f64]| {
            names.iter().map(|name| (*name, Histogram::new(&[bounds]))).collect()
        };
        Self {
            jobs: Histogram::new(&[&COUNTS]),
            slots: Histogram::new(&[&COUNTS]),
            pressure: all(&RESOURCES, &RATIOS),
            slowdown: all(&NEIGHBOURS.map(|(_, name)| name), &TIMES),
            sticky: [0, 0],
        }
    }

    pub(super) fn record(&mut self, what: &DecisionKind) {
        match what {
            DecisionKind::Leased { slots, jobs, sticky, .. } => {
                self.jobs.observe_number(f64::from(*jobs));
                self.slots.observe_number(f64::from(*slots));
                if let (Some(found), [misses, hits]) = (sticky, &mut self.sticky) {
                    *if *found { hits } else { misses } += 1;
                }
            }
            DecisionKind::JobUsage { usage: used, neighbors: neighbours, slowdown: slow_down, .. } => {
                self.waited(used);
                let name = NEIGHBOURS.iter().find(|(most, _)| neighbours <= most).map(|(_, name)| *name);
                let of = name.and_then(|name| self.slowdown.get_mut(name));
                if let (Some(histogram), Some(times)) = (of, slow_down) {
                    histogram.observe_number(*times);
                }
            }
            _ => {}
        }
    }

    fn waited(&mut self, used: &JobUsage) {
        if used.wall.is_zero() {
            return;
        }
        let stalled = used.stalled;
        for (name, time) in RESOURCES.into_iter().zip([stalled.cpu, stalled.memory, stalled.io]) {
            let part = time.map(|time: Duration| time.as_secs_f64() / used.wall.as_secs_f64());
            if let (Some(part), Some(histogram)) = (part, self.pressure.get_mut(name)) {
                histogram.observe_number(part);
            }
        }
    }

    pub(super) fn families(&self) -> Vec<Family> {
        let one = |name, help, histogram: &Histogram| Family {
            name,
            help,
            kind: Kind::Histogram,
            samples: vec![histogram.sample()],
        };
        let labelled = |name, help, label, all: &BTreeMap<&'static str, Histogram>| Family {
            name,
            help,
            kind: Kind::Histogram,
            samples: all
                .iter()
                .map(|(value, histogram)| Sample { labels: vec![(label, (*value).to_owned())], ..histogram.sample() })
                .collect(),
        };
        let [misses, hits] = self.sticky;
        #[expect(clippy::cast_precision_loss, reason = "a counter beyond 2^52 is none that anyone reads")]
        let sticky = [("hit", hits), ("miss", misses)].map(|(value, count)| Sample {
            labels: vec![("result", value.to_owned())],
            value: count as f64,
            buckets: Vec::new(),
        });
        vec![
            one(
                "muster_taskscaler_instance_jobs",
                "Jobs on an instance when one starts there, with that one.",
                &self.jobs,
            ),
            one("muster_taskscaler_job_slots", "Slots that a job takes.", &self.slots),
            labelled(
                "muster_taskscaler_job_pressure_ratio",
                "Part of a job's time in which something of it waited for a resource.",
                "resource",
                &self.pressure,
            ),
            labelled(
                "muster_taskscaler_job_slowdown_ratio",
                "Run time of a job divided by the usual run time alone, by its average number of neighbors.",
                "neighbors",
                &self.slowdown,
            ),
            Family {
                name: "muster_taskscaler_sticky_context_lookups_total",
                help: "Jobs that found their sticky context on the instance (`hit`), or did not (`miss`).",
                kind: Kind::Counter,
                samples: sticky.into(),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::PressureStall;
    use crate::types::{GroupId, TaskKey};
    use muster_fleeting::model::InstanceId;

    #[test]
    fn density_contention_and_slow_down_are_numbers() {
        let mut density = SharingMetrics::new();
        for (jobs, sticky) in [(1, None), (4, Some(true)), (4, Some(false))] {
            density.record(&DecisionKind::Leased {
                key: TaskKey::new("a"),
                group: GroupId(0),
                id: InstanceId::new("i"),
                slot: 0,
                slots: 2,
                jobs,
                sticky,
                waited: Duration::ZERO,
            });
        }
        let stalled = PressureStall { cpu: Some(Duration::from_secs(5)), memory: None, io: Some(Duration::ZERO) };
        let used = JobUsage { wall: Duration::from_secs(10), stalled, ..JobUsage::default() };
        density.record(&DecisionKind::JobUsage {
            key: TaskKey::new("a"),
            usage: used,
            neighbors: 2.6,
            slowdown: Some(1.4),
        });
        let families = density.families();
        let family = |name: &str| families.iter().find(|family| family.name.ends_with(name)).unwrap();
        let sum = |name: &str, label: &str| {
            let samples = &family(name).samples;
            let of = |sample: &&Sample| sample.labels.first().map_or("", |(_, value)| value) == label;
            samples.iter().find(of).map(|sample| (sample.value, sample.buckets.last().map_or(0, |(_, count)| *count)))
        };
        assert_eq!(sum("instance_jobs", ""), Some((9.0, 3)));
        assert_eq!(sum("job_slots", ""), Some((6.0, 3)));
        assert_eq!(sum("job_pressure_ratio", "cpu"), Some((0.5, 1)));
        assert_eq!(sum("job_pressure_ratio", "memory"), Some((0.0, 0)), "the kernel does not count it");
        assert_eq!(sum("job_slowdown_ratio", "2-3"), Some((1.4, 1)));
        assert_eq!(sum("job_slowdown_ratio", "1"), Some((0.0, 0)));
        assert_eq!(
            [sum("sticky_context_lookups_total", "hit"), sum("sticky_context_lookups_total", "miss")],
            [Some((1.0, 0)); 2]
        );
    }
}
