//! Results of a simulation.

use std::time::Duration;

use serde::Serialize;

use crate::time::Time;

/// State of the fleet at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Point {
    /// Seconds since the start of the simulation.
    pub at_s: u64,
    /// Number of queued jobs.
    pub waiting: u32,
    /// Number of running jobs.
    pub running: u32,
    /// Number of existing machines, including booting ones.
    pub machines: u32,
}

/// Results of a simulation.
///
/// Wait times, jobs, machines and costs count only from [`super::scenario::Scenario::measured_from`] on.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Wait times in milliseconds of all attempts of jobs, including attempts that still waited at the end.
    #[serde(skip)]
    pub waits_ms: Vec<u64>,
    /// Number of jobs that completed.
    pub done: usize,
    /// Number of jobs that did not complete.
    pub unfinished: usize,
    /// Number of times that a job lost its instance and was rescheduled.
    pub rescheduled: usize,
    /// Number of jobs that resumed the environment of another job.
    #[serde(skip)]
    pub resumed: usize,
    /// Number of jobs that were requested while more slots were reserved than free
    /// ([`crate::policy::IdleTarget::reserve_ahead`]).
    #[serde(skip)]
    pub requested_ahead: usize,
    /// Number of times that a queued job was canceled.
    #[serde(skip)]
    pub canceled: usize,
    /// Number of cancellations while the job waited for an environment.
    #[serde(skip)]
    pub canceled_resumes: usize,
    /// Number of created machines.
    pub machines: usize,
    /// Billed machine hours.
    pub machine_hours: f64,
    /// Cost of the billed hours.
    pub cost: f64,
    /// Run time of the completed jobs, in hours. Jobs with several slots count as jobs with one slot.
    pub busy_slot_hours: f64,
    /// Slot hours of all machines.
    pub slot_hours: f64,
    /// Number of events that the engine handled.
    pub events: u64,
    /// Number of list calls.
    pub lists: u64,
    /// State of the fleet at regular intervals.
    #[serde(skip)]
    pub timeline: Vec<Point>,
}

impl Report {
    /// Returns a quantile of the wait times. 0.5 is the median.
    #[must_use]
    pub fn wait(&self, quantile: f64) -> Duration {
        let mut sorted = self.waits_ms.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index between 0 and the length"
        )]
        let index = ((last as f64) * quantile.clamp(0.0, 1.0)).round() as usize;
        Duration::from_millis(sorted.get(index).copied().unwrap_or(0))
    }

    /// Returns the mean wait time.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of jobs")]
    pub fn mean_wait(&self) -> Duration {
        if self.waits_ms.is_empty() {
            return Duration::ZERO;
        }
        let sum: u64 = self.waits_ms.iter().sum();
        Duration::from_secs_f64(sum as f64 / 1000.0 / self.waits_ms.len() as f64)
    }

    /// Returns the fraction of the slot hours in which no job ran.
    #[must_use]
    pub fn idle_share(&self) -> f64 {
        if self.slot_hours > 0.0 { (1.0 - self.busy_slot_hours / self.slot_hours).max(0.0) } else { 0.0 }
    }

    pub(super) fn sample(&mut self, at: Time, waiting: usize, running: usize, machines: usize) {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let at_s = at.as_millis() / 1000;
        self.timeline.push(Point { at_s, waiting: count(waiting), running: count(running), machines: count(machines) });
    }
}
