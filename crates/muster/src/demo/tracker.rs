use std::collections::BTreeMap;
use std::time::Duration;

use muster_coordinator::views::Event;
use muster_job::{JobId, JobStatus};
use tokio::time::Instant;

#[derive(Debug, Clone, Copy)]
struct TrackedJob {
    status: JobStatus,
    queued_at: Option<Instant>,
    log_started_at: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct JobTracker(BTreeMap<JobId, TrackedJob>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) created: usize,
    pub(super) succeeded: usize,
    /// Failed, canceled or skipped jobs.
    pub(super) failed: usize,
    /// Unfinished jobs with a first log line.
    pub(super) running: usize,
    /// Unfinished jobs without a first log line.
    pub(super) waiting: usize,
}

/// Waiting times of jobs, from the queue to the first log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Waits {
    pub(super) p50: Duration,
    pub(super) p95: Duration,
    pub(super) max: Duration,
}

impl JobTracker {
    pub(super) fn record(&mut self, event: &Event, now: Instant) {
        match event {
            Event::JobChanged(job) => {
                let new = TrackedJob { status: job.status, queued_at: None, log_started_at: None };
                let tracked = self.0.entry(job.id).or_insert(new);
                tracked.status = job.status;
                if tracked.queued_at.is_none() && job.queued_at.is_some() {
                    tracked.queued_at = Some(now);
                }
            }
            Event::TraceGrew { job, size: 1.. } => {
                if let Some(tracked) = self.0.get_mut(job) {
                    tracked.log_started_at.get_or_insert(now);
                }
            }
            _ => {}
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts { created: self.0.len(), ..Counts::default() };
        for tracked in self.0.values() {
            match tracked.status {
                JobStatus::Success => counts.succeeded += 1,
                status if status.is_complete() => counts.failed += 1,
                _ if tracked.log_started_at.is_some() => counts.running += 1,
                _ => counts.waiting += 1,
            }
        }
        counts
    }

    pub(super) fn all_finished(&self) -> bool {
        self.0.values().all(|tracked| tracked.status.is_complete())
    }

    pub(super) fn waits(&self) -> Waits {
        let waits =
            self.0.values().filter_map(|tracked| Some(tracked.log_started_at?.duration_since(tracked.queued_at?)));
        let mut waits: Vec<Duration> = waits.collect();
        waits.sort_unstable();
        let percentile = |percent: usize| {
            let index = (waits.len() * percent).div_ceil(100).saturating_sub(1);
            waits.get(index).copied().unwrap_or_default()
        };
        Waits { p50: percentile(50), p95: percentile(95), max: percentile(100) }
    }
}

/// Number and cost of instances, from repeated samples.
#[derive(Debug, Default)]
pub(super) struct CostMeter {
    /// `None` before the first sample.
    sampled_at: Option<Instant>,
    pub(super) current: usize,
    pub(super) max: usize,
    /// All instances so far.
    names: std::collections::BTreeSet<String>,
    /// Total time for which instances existed.
    instance_time: Duration,
}

impl CostMeter {
    pub(super) fn record<'a>(&mut self, instances: impl Iterator<Item = &'a str>, now: Instant) {
        if let Some(sampled_at) = self.sampled_at.replace(now) {
            self.instance_time += now.duration_since(sampled_at) * u32::try_from(self.current).unwrap_or(u32::MAX);
        }
        let names: Vec<&str> = instances.collect();
        self.current = names.len();
        self.max = self.max.max(self.current);
        self.names.extend(names.into_iter().map(str::to_owned));
    }

    pub(super) fn total(&self) -> usize {
        self.names.len()
    }

    pub(super) fn cost(&self, per_hour: f64) -> f64 {
        self.instance_time.as_secs_f64() / 3600.0 * per_hour
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_the_total_time_of_all_instances() {
        let start = Instant::now();
        let mut meter = CostMeter::default();
        meter.record(["a", "b"].into_iter(), start);
        meter.record(["b"].into_iter(), start + Duration::from_secs(3600));
        meter.record([].into_iter(), start + Duration::from_secs(5400));
        assert_eq!((meter.total(), meter.max, meter.current), (2, 2, 0));
        assert!((meter.cost(0.1) - 0.25).abs() < 1e-9);
    }
}
