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
use crate::types::{RemovalReason, SlotAssignment, TaskKey};

/// Size of a group of jobs in which the first saves an environment for the second.
const OF: usize = 3;
/// Maximum time after which a queued job is canceled, in milliseconds.
const CANCELED_WITHIN_MS: u64 = 60_000;

/// A saved environment, as the next job requests it.
#[derive(Debug, Clone)]
pub(super) struct Left {
    pub(super) name: String,
    owner: String,
    /// Whether the environment belongs to another owner than the job.
    foreign: bool,
}

impl Scenario {
    /// Returns true if a job arrives only after the one before it, which may save an environment for it.
    pub(super) fn follows(&self, job: usize) -> bool {
        self.suspended_jobs.is_some() && job % OF == 1
    }
}

impl Simulation<'_> {
    pub(super) fn arrives(&mut self, job: usize) {
        self.running[job].waited_since = self.now.at;
        self.queue.push_back(job);
    }

    /// Lets a completed job save its environment if it is the first of its group. Returns true if this ended the lease.
    pub(super) fn leaves_environment(&mut self, job: usize, lease: &SlotAssignment) -> bool {
        let (Some(most), next) = (self.scenario.suspended_jobs, job + 1) else { return false };
        if !job.is_multiple_of(OF) || next >= self.jobs.len() {
            return false;
        }
        let owner = format!("owner-{}", job % 2);
        let is_left = self.engine.suspend(self.now, &lease.key, &owner).is_ok();
        let mut after = Duration::ZERO;
        if is_left {
            self.watch.left(lease, lease.key.to_string());
            let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX).max(1);
            after = Duration::from_millis(self.random.random_range(0..most));
            // Some jobs do not request the environment, and some request it with a wrong owner.
            let foreign = chance(&mut self.random, 0.1);
            let owner = if foreign { "nobody".to_owned() } else { owner };
            let left = Left { name: lease.key.to_string(), owner, foreign };
            self.running[next].resumes = Some(left).filter(|_| !chance(&mut self.random, 0.2));
        }
        self.plan(self.now.at + after, SimEvent::Arrives(next));
        is_left
    }

    /// Requests the environment that the job wants to resume, or any slot.
    pub(super) fn ask_for(&mut self, job: usize, key: TaskKey) -> Result<(), Violation> {
        if let Some(left) = self.running[job].resumes.clone() {
            match self.engine.resume(self.now, key.clone(), &left.name, &left.owner) {
                Ok(()) if left.foreign => {
                    return Err(Violation::new("environment", format!("{key} is given what is not its own")));
                }
                Ok(()) => return Ok(()),
                Err(ResumeError::NotOwner) if !left.foreign => {
                    return Err(Violation::new("environment", format!("{key} is not given what is its own")));
                }
                // The manager would fail the job. Here it runs without the environment.
                Err(_) => self.running[job].resumes = None,
            }
        }
        self.engine.admit(key.clone());
        let _ = self.engine.acquire(self.now, key, &self.jobs[job].request);
        Ok(())
    }

    /// Plans the cancellation of some queued jobs, mostly of those that wait for an environment.
    pub(super) fn plan_cancel(&mut self, job: usize) {
        if self.scenario.suspended_jobs.is_none() {
            return;
        }
        let running = &self.running[job];
        let (attempt, share) = (running.attempt, if running.resumes.is_some() { 0.3 } else { 0.05 });
        if self.now.at < self.scenario.faults_end && chance(&mut self.random, share) {
            let after = Duration::from_millis(self.random.random_range(0..CANCELED_WITHIN_MS));
            self.plan(self.now.at + after, SimEvent::Canceled { job, attempt });
        }
    }

    /// Cancels a queued job. Its author runs it again with the same request.
    pub(super) fn canceled(&mut self, job: usize, attempt: u32) -> Result<(), Violation> {
        let running = &self.running[job];
        if running.attempt != attempt || running.place != SimJobState::Waiting {
            return Ok(());
        }
        let key = self.key(job);
        self.engine.handle(self.now, Event::Unreserve { key: key.clone() });
        self.gives_up(job, Event::Cancel { key })
    }

    /// Returns the job if it is randomly canceled after its slots were assigned, before it is notified.
    pub(super) fn is_canceled_at_its_grant(&mut self, lease: &SlotAssignment) -> Option<usize> {
        let job = self.keys.get(&lease.key).copied()?;
        let may = self.now.at < self.scenario.faults_end && self.waits_for_environment(job);
        (may && chance(&mut self.random, 0.1)).then_some(job)
    }

    /// Cancels a request and checks that the environment that it waited for still exists.
    pub(super) fn gives_up(&mut self, job: usize, event: Event) -> Result<(), Violation> {
        let left = self.running[job].resumes.clone();
        let is_granted = matches!(event, Event::GrantAbandoned { .. });
        let had = left.filter(|left| is_granted || self.engine.has_environment(&left.name));
        self.keys.remove(&self.key(job));
        let _ = self.engine.decisions();
        self.engine.handle(self.now, event);
        self.report.canceled += 1;
        if let Some(Left { name, .. }) = had {
            self.report.canceled_wakes += 1;
            // The environment may have been deleted for one of these reasons as soon as no job waited for it.
            let is_over = |told: &Decision| match &told.kind {
                DecisionKind::Delete { reason: why, .. } => {
                    matches!(
                        why,
                        RemovalReason::Expired | RemovalReason::NoSpareInstance | RemovalReason::GroupDrained { .. }
                    )
                }
                _ => false,
            };
            if !self.engine.has_environment(&name) && !self.engine.decisions().iter().any(is_over) {
                let what = format!("{name} is gone with the job that waited for it");
                return Err(Violation::new("environment", what));
            }
        }
        self.again(job);
        Ok(())
    }

    /// Lets a job whose environment could not be resumed run without it.
    pub(super) fn not_resumed(&mut self, key: &TaskKey) {
        let Some(job) = self.keys.remove(key) else { return };
        self.running[job].resumes = None;
        self.again(job);
    }

    /// After a restart, requests the environment again under a new key, as the manager does.
    pub(super) fn asks_again(&mut self, job: usize) -> Result<(), Violation> {
        let key = self.key(job);
        self.keys.remove(&key);
        self.running[job].attempt += 1;
        let key = self.key(job);
        self.keys.insert(key.clone(), job);
        self.ask_for(job, key)
    }

    /// Reports to a new engine that the plugins can suspend instances.
    pub(super) fn can_suspend(&mut self) {
        if self.scenario.suspended_jobs.is_none() {
            return;
        }
        for group in (0..self.clouds.len()).map(crate::types::GroupId) {
            let event = Event::CanSuspend { group, can: true };
            self.plan(self.now.at, SimEvent::Delivered { life: self.life, event });
        }
    }

    /// Returns true if a job waits for an environment.
    pub(super) fn waits_for_environment(&self, job: usize) -> bool {
        self.running[job].place == SimJobState::Waiting && self.running[job].resumes.is_some()
    }
}
