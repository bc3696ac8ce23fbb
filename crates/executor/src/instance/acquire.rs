//! Acquires a slot of an instance for a job, and with `vm_isolation` a virtual machine there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_job::JobId;
use muster_taskscaler::driver::{AcquireError, LeaseHandle, Scaler};
use muster_taskscaler::types::{TaskKey, TriedInstance};
use tokio::time::Instant;

use super::isolation::VmError;
use super::lease::{HeldLease, into_lease};
use super::provider::{ExecutorContext, InstanceExecutor};
use super::share;
use crate::{EnvironmentRequest, ExecutorError, Lease, ResumeRequest, SlotKey};

/// Maximum number of times that a job moves to another slot, because its slot or instance was lost or unusable.
const MAX_RESCHEDULES: usize = 10;
/// Maximum number of virtual machines that are tried for one job, each on another instance if possible.
const MAX_VM_ATTEMPTS: usize = 3;
const VM_RETRY_DELAY: Duration = Duration::from_secs(1);

struct SlotSearch<'a> {
    key: &'a SlotKey,
    job: &'a EnvironmentRequest,
    reschedule_notes: Vec<String>,
    /// Instance on which creating a virtual machine failed last. The next slot should be on another instance.
    tried: Option<TriedInstance>,
}

impl InstanceExecutor {
    /// Acquires an environment for a job. Cancel-safe.
    ///
    /// Each wait for a slot takes at most `instance_acquire_timeout`.
    pub(super) async fn acquire_environment(
        &self,
        key: &SlotKey,
        job: &EnvironmentRequest,
    ) -> Result<Lease, ExecutorError> {
        let active_job = ActiveJobGuard::new(&self.shared);
        let (timeout, began) = (self.shared.settings().instance_acquire_timeout, Instant::now());
        let scaler =
            tokio::time::timeout(timeout, self.shared.scaler()).await.map_err(|_| self.acquire_timed_out(timeout))?;
        // The scaler runs, so these settings no longer change.
        let isolation = self.shared.settings().isolation.clone();
        let image = isolation.is_some().then(|| job.image.clone()).transpose().map_err(ExecutorError::NotAcquired)?;
        if let Some(resume) = &job.resume {
            let held = self.resume(&scaler, key, job, resume).await?;
            return Ok(into_lease(held, active_job));
        }
        let mut search = SlotSearch { key, job, reschedule_notes: Vec::new(), tried: None };
        let (mut remaining, mut failures) = (timeout.saturating_sub(began.elapsed()), Vec::new());
        let held = loop {
            let held = self.acquire_slot(&scaler, &mut search, remaining).await?;
            let (Some(settings), Some(image)) = (&isolation, &image) else { break held };
            search.tried = held.slot().map(|slot| TriedInstance::from_instance_id(slot.instance()));
            let reason = match self.shared.isolation.create_vm(held, settings.clone(), image.clone()).await {
                Ok(held) => break held,
                Err(VmError(reason)) => reason,
            };
            tracing::warn!(
                job = job.id.0,
                reason,
                tried = failures.len() + 1,
                "failed to create a virtual machine for a job"
            );
            search.reschedule_notes.push(reason.clone());
            failures.push(reason);
            if failures.len() >= MAX_VM_ATTEMPTS {
                return Err(ExecutorError::NotAcquired(failures.join("; then ")));
            }
            tokio::time::sleep(VM_RETRY_DELAY).await;
            // The timeout applies only to the wait for a slot.
            remaining = timeout;
        };
        let mut lease = into_lease(held, active_job);
        lease.reschedule_notes = search.reschedule_notes;
        Ok(lease)
    }

    /// Acquires the suspended instance that an earlier job left for this job.
    async fn resume(
        &self,
        scaler: &Scaler,
        key: &SlotKey,
        job: &EnvironmentRequest,
        resume: &ResumeRequest,
    ) -> Result<HeldLease, ExecutorError> {
        let resume_error =
            |reason: String| ExecutorError::NotAcquired(format!("failed to resume the job environment: {reason}"));
        if self.shared.settings().isolation.is_some() {
            return Err(resume_error("vm_isolation is set, so no environment outlives its job".to_owned()));
        }
        let reservation = self.shared.reservations.lock().pop();
        let reservation = match reservation {
            Some(reservation) => reservation.with_key(task_key(job.id)),
            None => scaler.admit(task_key(job.id)),
        };
        self.shared.reservations_changed.notify_one();
        let ResumeRequest { name, owner } = resume.clone();
        let lease = reservation.resume(name, owner).await.map_err(|failure| resume_error(failure.to_string()))?;
        let lost = |reason| resume_error(format!("{reason}; rerun the job that left the environment"));
        prepare(&lease, self.acquire_timeout()).await.map_err(lost)?;
        let held_slot = self.shared.slots.take(key).ok_or_else(|| self.slot_taken_error(0))?;
        Ok(HeldLease::new(lease, Arc::clone(&self.shared), held_slot))
    }

    /// Acquires an unused slot of an instance.
    async fn acquire_slot(
        &self,
        scaler: &Scaler,
        search: &mut SlotSearch<'_>,
        timeout: Duration,
    ) -> Result<HeldLease, ExecutorError> {
        let (began, job) = (Instant::now(), search.job);
        let reservation = self.shared.reservations.lock().pop();
        let mut reservation = match reservation {
            Some(reservation) => reservation.with_key(task_key(job.id)),
            None => scaler.admit(task_key(job.id)),
        };
        self.shared.reservations_changed.notify_one();
        let request = share::slot_request(search.key, job, &self.shared.settings(), search.tried);
        let lease = loop {
            let remaining = timeout.saturating_sub(began.elapsed());
            let lease = reservation.acquire(request, remaining).await.map_err(|failure| {
                let failure = match failure {
                    // The error contains the configured timeout, of which earlier steps may have used a part.
                    AcquireError::Timeout { reason, .. } => {
                        AcquireError::Timeout { timeout: self.acquire_timeout(), reason }
                    }
                    failure => failure,
                };
                ExecutorError::NotAcquired(failure.to_string())
            })?;
            let reason = match prepare(&lease, timeout.saturating_sub(began.elapsed())).await {
                Ok(()) => break lease,
                Err(reason) => reason,
            };
            if search.reschedule_notes.len() >= MAX_RESCHEDULES || began.elapsed() >= timeout {
                return Err(ExecutorError::NotAcquired(reason));
            }
            tracing::warn!(
                job = job.id.0,
                reason,
                "slot lost or unusable before anything was started, trying another one"
            );
            search.reschedule_notes.push(reason);
            reservation = scaler.admit(task_key(job.id));
        };
        let held_slot = self.shared.slots.take(search.key).ok_or_else(|| self.slot_taken_error(0))?;
        let instance = self.shared.instance(lease.group(), lease.instance());
        // Two references mean that no other job uses the instance: one in the list of all instances, and `instance`.
        if Arc::strong_count(&instance) <= 2 {
            instance.allow_agent_replacement();
        }
        Ok(HeldLease::new(lease, Arc::clone(&self.shared), held_slot))
    }

    fn acquire_timeout(&self) -> Duration {
        self.shared.settings().instance_acquire_timeout
    }

    fn acquire_timed_out(&self, timeout: Duration) -> ExecutorError {
        let reason = self.shared.capacity.borrow().limit_reason.clone().unwrap_or_default();
        let seconds = timeout.as_secs();
        ExecutorError::NotAcquired(format!(
            "unable to acquire instance within the configured timeout of {seconds}s: {reason}"
        ))
    }
}

/// Lets the plugin prepare the instance for the job. The error is the reason why the job cannot run on the instance.
async fn prepare(lease: &LeaseHandle, timeout: Duration) -> Result<(), String> {
    let instance = lease.instance();
    tokio::select! {
        prepared = lease.prepare_job(timeout) => {
            prepared.map_err(|error| format!("instance {instance}: its plugin failed to prepare it for the job: {error}"))
        }
        loss = lease.lost() => Err(format!("instance {instance} was lost: {loss}")),
    }
}

/// Counts a job that waits for a slot or has one.
pub(super) struct ActiveJobGuard(Arc<ExecutorContext>);

impl ActiveJobGuard {
    pub(super) fn new(shared: &Arc<ExecutorContext>) -> Self {
        shared.active_jobs.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for ActiveJobGuard {
    fn drop(&mut self) {
        self.0.active_jobs.fetch_sub(1, Ordering::Relaxed);
        self.0.reservations_changed.notify_one();
    }
}

/// Returns a key for the slot of a job.
///
/// The job's ID lets operators find the job. The suffix makes the key unique even if the same job arrives again.
fn task_key(job: JobId) -> TaskKey {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    TaskKey::new(format!("job-{}-{unique:.8}", job.0))
}
