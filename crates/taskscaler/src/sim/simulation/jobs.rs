//! Life of a job on its instance: start, end and loss.

use super::{CONNECTION_BREAK_DELAY, SimJobState, Simulation};
use crate::engine::Violation;
use crate::event::Event;
use crate::sim::event::SimEvent;
use crate::time::milliseconds;
use crate::types::{GroupId, SlotAssignment, TaskKey};
use muster_fleeting::model::InstanceId;

impl Simulation<'_> {
    pub(super) fn start_job(&mut self, lease: SlotAssignment) -> Result<(), Violation> {
        let Some(job) = self.keys.get(&lease.key).copied() else {
            return Err(Violation::new("J2", format!("{} got a slot without a request", lease.key)));
        };
        if self.sim_jobs[job].state != SimJobState::Waiting {
            let message = format!("{} got a slot while it was {:?}", lease.key, self.sim_jobs[job].state);
            return Err(Violation::new("J2", message));
        }
        let resumes = self.sim_jobs[job].resumes.take();
        self.checker.record_lease_start(
            &lease,
            resumes.as_ref().map(|environment| environment.name.as_str()),
            &self.scenario.config,
        )?;
        self.report.resumed += usize::from(resumes.is_some());
        let duration = self.jobs[job].duration;
        let sim_job = &mut self.sim_jobs[job];
        let attempt = sim_job.attempt;
        let waited = self.now.at.since(sim_job.waited_since);
        if sim_job.waited_since >= self.scenario.measured_from {
            self.report.waits_ms.push(milliseconds(waited));
        }
        sim_job.started = self.now.at;
        let (group, id) = (lease.group, lease.instance.clone());
        sim_job.state = SimJobState::Running(lease);
        self.running_count += 1;
        self.plan(self.now.at + duration, SimEvent::JobEnds { job, attempt });
        self.plan_connection_break(job, attempt, group, &id);
        Ok(())
    }

    /// Plans that a job's connection breaks after its machine ceases to exist. Does nothing if the machine has no
    /// planned end.
    pub(super) fn plan_connection_break(&mut self, job: usize, attempt: u32, group: GroupId, id: &InstanceId) {
        let deleted_at = self.clouds[group.0].machines.get(id).and_then(|machine| machine.deleted_at);
        if let Some(deleted_at) = deleted_at {
            let at = deleted_at.max(self.now.at) + CONNECTION_BREAK_DELAY;
            self.plan(at, SimEvent::ConnectionBreaks { job, attempt });
        }
    }

    pub(super) fn end_job(&mut self, job: usize, attempt: u32) -> Result<(), Violation> {
        let sim_job = &self.sim_jobs[job];
        let SimJobState::Running(lease) = sim_job.state.clone() else { return Ok(()) };
        if sim_job.attempt != attempt {
            return Ok(());
        }
        if !self.clouds[lease.group.0].is_running(self.now.at, &lease.instance) {
            self.engine.handle(self.now, Event::ConnectionLost { key: lease.key });
            return Ok(());
        }
        self.end_lease(&lease);
        let started = self.sim_jobs[job].started.max(self.scenario.measured_from);
        self.report.busy_slot_hours += self.now.at.since(started).as_secs_f64() / 3600.0;
        self.report.done += usize::from(self.sim_jobs[job].waited_since >= self.scenario.measured_from);
        self.unfinished -= 1;
        self.sim_jobs[job].state = SimJobState::Done;
        self.keys.remove(&lease.key);
        let usage = self.jobs[job].usage();
        self.engine.handle(self.now, Event::JobUsage { key: lease.key.clone(), usage });
        if !self.save_environment(job, &lease) {
            self.engine.handle(self.now, Event::Release { key: lease.key });
        }
        Ok(())
    }

    pub(super) fn end_lease(&mut self, lease: &SlotAssignment) {
        self.checker.record_lease_end(lease);
        self.running_count -= 1;
    }

    pub(super) fn lose_job(&mut self, key: &TaskKey) -> Result<(), Violation> {
        let Some(job) = self.keys.remove(key) else { return Ok(()) };
        let SimJobState::Running(lease) = self.sim_jobs[job].state.clone() else {
            return Err(Violation::new("J2", format!("{key} was lost while it was {:?}", self.sim_jobs[job].state)));
        };
        self.end_lease(&lease);
        self.report.rescheduled += 1;
        self.requeue(job);
        Ok(())
    }

    pub(super) fn requeue(&mut self, job: usize) {
        let sim_job = &mut self.sim_jobs[job];
        sim_job.attempt += 1;
        sim_job.state = SimJobState::AtCoordinator;
        sim_job.waited_since = self.now.at;
        self.queue.push_back(job);
    }
}
