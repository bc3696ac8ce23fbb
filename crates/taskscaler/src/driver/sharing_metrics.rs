//! Metrics about jobs that share an instance.

use prometheus::{Histogram, HistogramVec, IntCounterVec};

use super::metric_set::MetricSet;
use crate::decision::DecisionKind;
use crate::resources::JobUsage;

const COUNT_BUCKETS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0];
const RATIO_BUCKETS: [f64; 8] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const SLOWDOWN_BUCKETS: [f64; 10] = [0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0];
const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];
/// Ranges of the average number of neighbors: upper bound and label.
const NEIGHBORS: [(f64, &str); 5] = [(0.5, "0"), (1.5, "1"), (3.5, "2-3"), (7.5, "4-7"), (f64::INFINITY, "8+")];

#[derive(Debug)]
pub(super) struct SharingMetrics {
    /// Number of jobs on the instance when a job starts there, including that job.
    jobs: Histogram,
    /// Number of slots per job.
    slots: Histogram,
    pressure: HistogramVec,
    slowdown: HistogramVec,
    sticky: IntCounterVec,
}

impl SharingMetrics {
    pub(super) fn new(set: &mut MetricSet) -> Self {
        let metrics = Self {
            jobs: set.histogram(
                "muster_taskscaler_instance_jobs",
                "Number of jobs on an instance when a job starts there, including that job.",
                &COUNT_BUCKETS,
            ),
            slots: set.histogram("muster_taskscaler_job_slots", "Number of slots per job.", &COUNT_BUCKETS),
            pressure: set.histograms(
                "muster_taskscaler_job_pressure_ratio",
                "Fraction of a job's run time in which some of its processes waited for a resource.",
                &RATIO_BUCKETS,
                "resource",
                &RESOURCES,
            ),
            slowdown: set.histograms(
                "muster_taskscaler_job_slowdown_ratio",
                "Ratio of a job's run time to the usual run time of such jobs without neighbors, by the job's average number of neighbors.",
                &SLOWDOWN_BUCKETS,
                "neighbors",
                &NEIGHBORS.map(|(_, label)| label),
            ),
            sticky: set.counters(
                "muster_taskscaler_sticky_context_lookups_total",
                "Jobs that found their sticky context on the instance (hit) or did not (miss).",
                &["result"],
            ),
        };
        for result in ["hit", "miss"] {
            metrics.sticky.with_label_values(&[result]);
        }
        metrics
    }

    pub(super) fn record(&self, decision: &DecisionKind) {
        match decision {
            DecisionKind::Leased { slots, jobs, sticky, .. } => {
                self.jobs.observe(f64::from(*jobs));
                self.slots.observe(f64::from(*slots));
                if let Some(found) = sticky {
                    self.sticky.with_label_values(&[if *found { "hit" } else { "miss" }]).inc();
                }
            }
            DecisionKind::JobUsage { usage, neighbors, slowdown, .. } => {
                self.record_pressure(usage);
                let range = NEIGHBORS.iter().find(|(max, _)| neighbors <= max);
                if let (Some((_, label)), Some(slowdown)) = (range, slowdown) {
                    self.slowdown.with_label_values(&[label]).observe(*slowdown);
                }
            }
            _ => {}
        }
    }

    fn record_pressure(&self, usage: &JobUsage) {
        if usage.wall.is_zero() {
            return;
        }
        let stalled = usage.stalled;
        for (resource, time) in RESOURCES.into_iter().zip([stalled.cpu, stalled.memory, stalled.io]) {
            if let Some(time) = time {
                let ratio = time.as_secs_f64() / usage.wall.as_secs_f64();
                self.pressure.with_label_values(&[resource]).observe(ratio);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::proto::LabelPair;

    use super::*;
    use crate::resources::PressureStall;
    use crate::types::{GroupId, TaskKey};
    use muster_fleeting::model::InstanceId;

    #[test]
    fn records_density_pressure_and_slowdown() {
        let mut set = MetricSet::default();
        let metrics = SharingMetrics::new(&mut set);
        for (jobs, sticky) in [(1, None), (4, Some(true)), (4, Some(false))] {
            metrics.record(&DecisionKind::Leased {
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
        let usage = JobUsage { wall: Duration::from_secs(10), stalled, ..JobUsage::default() };
        metrics.record(&DecisionKind::JobUsage { key: TaskKey::new("a"), usage, neighbors: 2.6, slowdown: Some(1.4) });
        let families = set.collect();
        let series = |name: &str, label: &str| {
            let family = families.iter().find(|family| family.name().ends_with(name)).unwrap();
            let mut series = family.get_metric().iter();
            series.find(|metric| metric.get_label().first().map_or("", LabelPair::value) == label).unwrap().clone()
        };
        let sum = |name: &str, label: &str| {
            let histogram = series(name, label).get_histogram().clone();
            (histogram.get_sample_sum(), histogram.get_sample_count())
        };
        let count = |result: &str| series("sticky_context_lookups_total", result).get_counter().get_value();
        assert_eq!(sum("instance_jobs", ""), (9.0, 3));
        assert_eq!(sum("job_slots", ""), (6.0, 3));
        assert_eq!(sum("job_pressure_ratio", "cpu"), (0.5, 1));
        assert_eq!(sum("job_pressure_ratio", "memory"), (0.0, 0), "no memory pressure was measured");
        assert_eq!(sum("job_slowdown_ratio", "2-3"), (1.4, 1));
        assert_eq!(sum("job_slowdown_ratio", "1"), (0.0, 0));
        assert_eq!(["hit", "miss"].map(count), [1.0, 1.0]);
    }
}
