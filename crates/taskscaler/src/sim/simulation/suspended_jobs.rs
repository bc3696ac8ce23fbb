//! Jobs that save their environments, jobs that resume them, and cancellations.

use std::time::Duration;

use rand::Rng;

use super::{SimJobState, Simulation};
use crate::decision::{Decision, DecisionKind};
use crate::engine::Violation;
use crate::event::Event;
use crate::sim::cloud::chance;
use crate::sim::event::SimEvent;
use crate::sim::scenario::Scenario;
use crate::suspend::ResumeError;
use crate::time::milliseconds;
use crate::types::{RemovalReason, SlotAssignment, TaskKey};

/// Number of jobs in a job group, which is a group of consecutive jobs (not an instance group). The first job saves an
/// environment for the second, and the third is independent.
const JOB_GROUP_SIZE: usize = 3;
const MAX_CANCEL_DELAY_MS: u64 = 60_000;

#[derive(Debug, Clone)]
pub(super) struct SavedEnvironment {
    pub(super) name: String,
    owner: String,
    /// Whether `owner`, with which the job requests the environment, is not the owner that saved it.
    has_wrong_owner: bool,
}

impl Scenario {
    /// Returns whether a job arrives only after the end of the previous job.
    pub(super) fn arrives_after_previous(&self, job: usize) -> bool {
        self.max_resume_delay.is_some() && job % JOB_GROUP_SIZE == 1
    }
}

impl Simulation<'_> {
    pub(super) fn job_arrives(&mut self, job: usize) {
        self.sim_jobs[job].waited_since = self.now.at;
        self.queue.push_back(job);
    }

    /// Saves the environment of a job if it is the first of its job group. Returns whether the environment was saved,
    /// which ends the lease.
    pub(super) fn save_environment(&mut self, job: usize, lease: &SlotAssignment) -> bool {
        let (Some(max_delay), next) = (self.scenario.max_resume_delay, job + 1) else { return false };
        if !job.is_multiple_of(JOB_GROUP_SIZE) || next >= self.jobs.len() {
            return false;
        }
        let owner = format!("owner-{}", job % 2);
        let is_saved = self.engine.suspend(self.now, &lease.key, &owner).is_ok();
        let mut delay = Duration::ZERO;
        if is_saved {
            self.checker.record_saved_environment(lease, lease.key.to_string());
            delay = Duration::from_millis(self.random.random_range(0..milliseconds(max_delay).max(1)));
            // Some jobs do not request the environment, or request it with a wrong owner.
            let has_wrong_owner = chance(&mut self.random, 0.1);
            let owner = if has_wrong_owner { "other-owner".to_owned() } else { owner };
            let environment = SavedEnvironment { name: lease.key.to_string(), owner, has_wrong_owner };
            self.sim_jobs[next].resumes = Some(environment).filter(|_| !chance(&mut self.random, 0.2));
        }
        self.plan(self.now.at + delay, SimEvent::JobArrives(next));
        is_saved
    }

    pub(super) fn request_slots(&mut self, job: usize, key: TaskKey) -> Result<(), Violation> {
        if let Some(environment) = self.sim_jobs[job].resumes.clone() {
            match self.engine.resume(self.now, key.clone(), &environment.name, &environment.owner) {
                Ok(()) if environment.has_wrong_owner => {
                    return Err(Violation::new(
                        "environment",
                        format!("{key} can resume an environment of another owner"),
                    ));
                }
                Ok(()) => return Ok(()),
                Err(ResumeError::NotOwner) if !environment.has_wrong_owner => {
                    return Err(Violation::new("environment", format!("{key} cannot resume its own environment")));
                }
                // A real manager fails the job. In the simulation, the job runs without the environment.
                Err(_) => self.sim_jobs[job].resumes = None,
            }
        }
        self.engine.admit(key.clone());
        let _ = self.engine.acquire(self.now, key, &self.jobs[job].request);
        Ok(())
    }

    /// Plans the cancellation of a job with a certain probability, which is higher for a job that wants to resume an
    /// environment.
    pub(super) fn plan_cancel(&mut self, job: usize) {
        if self.scenario.max_resume_delay.is_none() {
            return;
        }
        let sim_job = &self.sim_jobs[job];
        let (attempt, probability) = (sim_job.attempt, if sim_job.resumes.is_some() { 0.3 } else { 0.05 });
        if self.now.at < self.scenario.faults_end && chance(&mut self.random, probability) {
            let delay = Duration::from_millis(self.random.random_range(0..MAX_CANCEL_DELAY_MS));
            self.plan(self.now.at + delay, SimEvent::JobCanceled { job, attempt });
        }
    }

    pub(super) fn cancel_job(&mut self, job: usize, attempt: u32) -> Result<(), Violation> {
        let sim_job = &self.sim_jobs[job];
        if sim_job.attempt != attempt || sim_job.state != SimJobState::Waiting {
            return Ok(());
        }
        let key = self.key(job);
        self.engine.handle(self.now, Event::Unreserve { key: key.clone() });
        self.cancel_request(job, Event::Cancel { key })
    }

    /// Decides at random whether a job that waits for an environment is canceled between its assignment and its start.
    /// Returns the job if it is canceled.
    pub(super) fn canceled_after_assignment(&mut self, lease: &SlotAssignment) -> Option<usize> {
        let job = self.keys.get(&lease.key).copied()?;
        let is_possible = self.now.at < self.scenario.faults_end && self.waits_for_environment(job);
        (is_possible && chance(&mut self.random, 0.1)).then_some(job)
    }

    /// Cancels a job's request, and checks that the environment for which the job waited still exists.
    pub(super) fn cancel_request(&mut self, job: usize, event: Event) -> Result<(), Violation> {
        let environment = self.sim_jobs[job].resumes.clone();
        let is_assigned = matches!(event, Event::AssignmentAbandoned { .. });
        let existing = environment.filter(|environment| is_assigned || self.engine.has_environment(&environment.name));
        self.keys.remove(&self.key(job));
        let _ = self.engine.decisions();
        self.engine.handle(self.now, event);
        self.report.canceled += 1;
        if let Some(SavedEnvironment { name, .. }) = existing {
            self.report.canceled_resumes += 1;
            // The environment may be deleted for these reasons once no job waits for it.
            let is_deletion = |decision: &Decision| match &decision.kind {
                DecisionKind::Delete { reason, .. } => {
                    matches!(
                        reason,
                        RemovalReason::Expired | RemovalReason::NoSpareInstance | RemovalReason::GroupDrained { .. }
                    )
                }
                _ => false,
            };
            if !self.engine.has_environment(&name) && !self.engine.decisions().iter().any(is_deletion) {
                let message = format!("{name} disappeared when the job that waited for it was canceled");
                return Err(Violation::new("environment", message));
            }
        }
        self.requeue(job);
        Ok(())
    }

    pub(super) fn requeue_without_environment(&mut self, key: &TaskKey) {
        let Some(job) = self.keys.remove(key) else { return };
        self.sim_jobs[job].resumes = None;
        self.requeue(job);
    }

    /// Requests slots for a job again, with a new key, as the manager does after a restart.
    pub(super) fn request_after_restart(&mut self, job: usize) -> Result<(), Violation> {
        let key = self.key(job);
        self.keys.remove(&key);
        self.sim_jobs[job].attempt += 1;
        let key = self.key(job);
        self.keys.insert(key.clone(), job);
        self.request_slots(job, key)
    }

    pub(super) fn report_suspend_support(&mut self) {
        if self.scenario.max_resume_delay.is_none() {
            return;
        }
        for group in (0..self.clouds.len()).map(crate::types::GroupId) {
            let event = Event::CanSuspend { group, can: true };
            self.plan(self.now.at, SimEvent::Delivered { manager_run: self.manager_run, event });
        }
    }

    pub(super) fn waits_for_environment(&self, job: usize) -> bool {
        self.sim_jobs[job].state == SimJobState::Waiting && self.sim_jobs[job].resumes.is_some()
    }
}
