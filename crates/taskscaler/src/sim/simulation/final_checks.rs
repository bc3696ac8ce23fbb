//! Checks at the end of a simulation, and its report.

use super::{SimJob, SimJobState, Simulation};
use crate::config::UnmanagedPolicy;
use crate::engine::Violation;
use crate::sim::report::Report;
use crate::time::{Time, milliseconds};

impl Simulation<'_> {
    /// Ends the simulation and returns its report.
    ///
    /// Checks that every job is done (J1 in ARCHITECTURE.md), and that no machines remain except those that policies
    /// retain or the configuration ignores (I3 in the crate's documentation).
    pub(super) fn finish(mut self, end: Time) -> Result<Report, Violation> {
        if self.scenario.checks_invariants {
            if self.unfinished > 0 {
                let status = self.engine.status(self.now);
                let stuck = self.sim_jobs.iter().position(|sim_job| sim_job.state != SimJobState::Done);
                let message =
                    format!("{} jobs are not done, the first has the index {stuck:?}; {status:?}", self.unfinished);
                return Err(Violation::new("J1", message));
            }
            let remaining: usize = self.clouds.iter().map(|cloud| cloud.live(end).count()).sum();
            let by_policy = if self.is_draining { 0 } else { self.scenario.retained_instances(&self.config) };
            let unmanaged = if self.config.unmanaged == UnmanagedPolicy::Ignore {
                self.scenario.unmanaged_instances.len()
            } else {
                0
            };
            let allowed = usize::try_from(by_policy).unwrap_or(usize::MAX) + unmanaged;
            if remaining > allowed {
                let status = self.engine.status(self.now);
                let message = format!("{remaining} machines remain, but at most {allowed} may remain; {status:?}");
                return Err(Violation::new("I3", message));
            }
        }
        let from = self.scenario.measured_from;
        let counted = |sim_job: &&SimJob| sim_job.state != SimJobState::Done && sim_job.waited_since >= from;
        for sim_job in self.sim_jobs.iter().filter(counted) {
            self.report.unfinished += 1;
            if !matches!(sim_job.state, SimJobState::Running(_)) {
                self.report.waits_ms.push(milliseconds(end.since(sim_job.waited_since)));
            }
        }
        let is_measured = |machine: &&crate::sim::cloud::Machine| machine.created_at >= from;
        self.report.machines =
            self.clouds.iter().map(|cloud| cloud.machines.values().filter(is_measured).count()).sum();
        for (cloud, group) in self.clouds.iter().zip(&self.scenario.config.groups) {
            let hours = cloud.billed_s(self.scenario.measured_from, end) / 3600.0;
            self.report.machine_hours += hours;
            self.report.cost += hours * group.price_per_hour;
        }
        self.report.slot_hours = self.report.machine_hours * f64::from(self.scenario.config.capacity.get());
        Ok(self.report)
    }
}
