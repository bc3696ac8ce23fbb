//! What came of a simulation.

use std::time::Duration;

use serde::Serialize;

use crate::time::Time;

/// The fleet at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Point {
    /// When, in seconds since the beginning.
    pub at_s: u64,
    /// Jobs that wait.
    pub waiting: u32,
    /// Jobs that run.
    pub running: u32,
    /// Machines, from request to end.
    pub machines: u32,
}

/// See the module.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// How long each job waited for its slot, in milliseconds, in the order of their starts; of those that never had one, to
    /// the end.
    #[serde(skip)]
    pub waits_ms: Vec<u64>,
    /// Jobs that ended well.
    pub done: usize,
    /// Jobs that had not ended when the simulation did.
    pub unfinished: usize,
    /// Jobs that were lost with their instance, and started again elsewhere.
    pub moved: usize,
    /// Jobs that went on in what another one had left.
    #[serde(skip)]
    pub resumed: usize,
    /// Jobs that were requested while slots were reserved ahead of free ones.
    #[serde(skip)]
    pub ahead: usize,
    /// Jobs that were canceled while they waited, and came again.
    #[serde(skip)]
    pub canceled: usize,
    /// Those of them that waited for an environment.
    #[serde(skip)]
    pub canceled_wakes: usize,
    /// Machines that were made.
    pub machines: usize,
    /// Hours that are paid for.
    pub machine_hours: f64,
    /// What they cost.
    pub cost: f64,
    /// Slot hours with a job.
    pub busy_slot_hours: f64,
    /// Slot hours there were.
    pub slot_hours: f64,
    /// Events of the engine.
    pub events: u64,
    /// Lists that were asked for.
    pub lists: u64,
    /// The fleet, at equal distances.
    #[serde(skip)]
    pub timeline: Vec<Point>,
}

impl Report {
    /// How long jobs waited at the quantile (0.5 is the median).
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

    /// The mean wait.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of jobs")]
    pub fn mean_wait(&self) -> Duration {
        if self.waits_ms.is_empty() {
            return Duration::ZERO;
        }
        let sum: u64 = self.waits_ms.iter().sum();
        Duration::from_secs_f64(sum as f64 / 1000.0 / self.waits_ms.len() as f64)
    }

    /// The part of the slot hours without a job.
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
