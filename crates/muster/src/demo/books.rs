//! What the demo has seen of its jobs: where each stands, and how long each waited for its first line.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_coordinator::views::Event;
use muster_job::{JobId, JobStatus};
use tokio::time::Instant;

/// One job.
#[derive(Debug, Clone, Copy)]
struct Seen {
    status: JobStatus,
    /// Since when a runner could take it.
    queued: Option<Instant>,
    /// When its log began.
    began: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Jobs(BTreeMap<JobId, Seen>);

/// How many stand where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) created: usize,
    pub(super) succeeded: usize,
    /// Ended otherwise.
    pub(super) failed: usize,
    /// With a first line, and without an end.
    pub(super) running: usize,
    /// In the queue, or taken and without a first line.
    pub(super) waiting: usize,
}

/// How long jobs waited, from the queue to their first line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Waits {
    pub(super) half: Duration,
    pub(super) p95: Duration,
    pub(super) most: Duration,
}

impl Jobs {
    pub(super) fn take(&mut self, event: &Event, now: Instant) {
        match event {
            Event::JobChanged(job) => {
                let new = Seen { status: job.status, queued: None, began: None };
                let seen = self.0.entry(job.id).or_insert(new);
                seen.status = job.status;
                if seen.queued.is_none() && job.queued_at.is_some() {
                    seen.queued = Some(now);
                }
            }
            Event::TraceGrew { job, size: 1.. } => {
                if let Some(seen) = self.0.get_mut(job) {
                    seen.began.get_or_insert(now);
                }
            }
            _ => {}
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts { created: self.0.len(), ..Counts::default() };
        for seen in self.0.values() {
            match seen.status {
                JobStatus::Success => counts.succeeded += 1,
                status if status.is_complete() => counts.failed += 1,
                _ if seen.began.is_some() => counts.running += 1,
                _ => counts.waiting += 1,
            }
        }
        counts
    }

    /// All jobs that there are have ended.
    pub(super) fn have_ended(&self) -> bool {
        self.0.values().all(|seen| seen.status.is_complete())
    }

    pub(super) fn waits(&self) -> Waits {
        let waits = self.0.values().filter_map(|seen| Some(seen.began?.duration_since(seen.queued?)));
        let mut waits: Vec<Duration> = waits.collect();
        waits.sort_unstable();
        let at = |percent: usize| {
            let index = (waits.len() * percent).div_ceil(100).saturating_sub(1);
            waits.get(index).copied().unwrap_or_default()
        };
        Waits { half: at(50), p95: at(95), most: at(100) }
    }
}

/// What instances cost and how many there were, by looking at them again and again.
#[derive(Debug, Default)]
pub(super) struct Meter {
    looked: Option<Instant>,
    pub(super) now: usize,
    pub(super) most: usize,
    names: std::collections::BTreeSet<String>,
    time: Duration,
}

impl Meter {
    /// These instances are there.
    pub(super) fn look<'a>(&mut self, instances: impl Iterator<Item = &'a str>, now: Instant) {
        if let Some(looked) = self.looked.replace(now) {
            self.time += now.duration_since(looked) * u32::try_from(self.now).unwrap_or(u32::MAX);
        }
        let names: Vec<&str> = instances.collect();
        self.now = names.len();
        self.most = self.most.max(self.now);
        self.names.extend(names.into_iter().map(str::to_owned));
    }

    /// Instances that were seen.
    pub(super) fn seen(&self) -> usize {
        self.names.len()
    }

    /// What they cost so far, at a price per hour.
    pub(super) fn cost(&self, per_hour: f64) -> f64 {
        self.time.as_secs_f64() / 3600.0 * per_hour
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_the_time_of_all_instances() {
        let begin = Instant::now();
        let mut meter = Meter::default();
        meter.look(["a", "b"].into_iter(), begin);
        meter.look(["b"].into_iter(), begin + Duration::from_secs(3600));
        meter.look([].into_iter(), begin + Duration::from_secs(5400));
        assert_eq!((meter.seen(), meter.most, meter.now), (2, 2, 0));
        assert!((meter.cost(0.1) - 0.25).abs() < 1e-9);
    }
}
