//! Checks at the end of a simulation, and its report.

use super::{Running, SimJobState, Simulation};
use crate::config::UnmanagedPolicy;
use crate::engine::Violation;
use crate::sim::report::Report;
use crate::time::Time;

impl Simulation<'_> {
    /// Ends the simulation and returns its report.
    ///
    /// Checks that every job is done (J1), and that only machines remain that the policy retains or that are unmanaged (I3).
    pub(super) fn finish(mut self, end: Time) -> Result<Report, Violation> {
        if self.scenario.checked {
            if self.unfinished > 0 {
                let status = self.engine.status(self.now);
                let stuck = self.running.iter().position(|running| running.place != SimJobState::Done);
                let what = format!("{} jobs are not done, as {stuck:?}; {status:?}", self.unfinished);
                return Err(Violation::new("J1", what));
            }
            let left: usize = self.clouds.iter().map(|cloud| cloud.live(end).count()).sum();
            let by_policy = if self.is_draining { 0 } else { self.scenario.retained_instances(&self.config) };
            // Unmanaged machines remain only if the configuration ignores them.
            let foreign = if self.config.unmanaged == UnmanagedPolicy::Ignore {
                self.scenario.unmanaged_instances.len()
            } else {
                0
            };
            let kept = usize::try_from(by_policy).unwrap_or(usize::MAX) + foreign;
            if left > kept {
                let what = format!("{left} machines are left, and {kept} may be; {:?}", self.engine.status(self.now));
                return Err(Violation::new("I3", what));
            }
        }
        let from = self.scenario.measured_from;
        let counted = |running: &&Running| running.place != SimJobState::Done && running.waited_since >= from;
        for running in self.running.iter().filter(counted) {
            self.report.unfinished += 1;
            if !matches!(running.place, SimJobState::On(_)) {
                let waited = end.since(running.waited_since).as_millis();
                self.report.waits_ms.push(u64::try_from(waited).unwrap_or(u64::MAX));
            }
        }
        let counts = |machine: &&crate::sim::cloud::Machine| machine.created_at >= from;
        self.report.machines = self.clouds.iter().map(|cloud| cloud.machines.values().filter(counts).count()).sum();
        for (cloud, group) in self.clouds.iter().zip(&self.scenario.config.groups) {
            let hours = cloud.billed_s(self.scenario.measured_from, end) / 3600.0;
            self.report.machine_hours += hours;
            self.report.cost += hours * group.price_per_hour;
        }
        self.report.slot_hours = self.report.machine_hours * f64::from(self.scenario.config.capacity.get());
        Ok(self.report)
    }
}
