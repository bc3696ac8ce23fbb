//! Acquires a slot of an instance for a job, and with `vm_isolation` a virtual machine there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_job::JobId;
use muster_taskscaler::driver::{AcquireError, LeaseHandle as Slot, Scaler};
use muster_taskscaler::types::{TaskKey, TriedInstance};
use tokio::time::Instant;

use super::isolation::NotMade;
use super::lease::{HeldLease, leased};
use super::provider::{InstanceExecutor, Shared};
use super::share;
use crate::{EnvironmentRequest, ExecutorError, Lease, ResumeRequest, SlotKey};

/// Maximum number of slots that a job tries: a slot can be lost, or its instance can fail to prepare for the job.
const MOVES_MAX: usize = 10;
/// Maximum number of virtual machines that are tried for one job, each on another instance if possible.
const MACHINES_MAX: usize = 3;
/// Pause before the next virtual machine is tried.
const MACHINE_PAUSE: Duration = Duration::from_secs(1);

/// A job's search for a slot.
struct Search<'a> {
    key: &'a SlotKey,
    job: &'a EnvironmentRequest,
    moved: Vec<String>,
    /// Instance on which creating a virtual machine failed last. The next slot should be on another one.
    tried: Option<TriedInstance>,
}

impl InstanceExecutor {
    /// Acquires an environment for a job. Waits until one is available. Cancel-safe.
    pub(super) async fn place_for(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        let counted = UnderWay::count(&self.shared);
        let (limit, began) = (self.shared.settings().instance_acquire_timeout, Instant::now());
        let scaler = tokio::time::timeout(limit, self.shared.scaler()).await.map_err(|_| self.not_within(limit))?;
        // The scaler runs now, so these settings no longer change.
        let isolation = self.shared.settings().isolation.clone();
        let image = isolation.is_some().then(|| job.image.clone()).transpose().map_err(ExecutorError::NotAcquired)?;
        if let Some(resume) = &job.resume {
            let held = self.resumed(&scaler, key, job, resume).await?;
            return Ok(leased(held, counted));
        }
        let mut search = Search { key, job, moved: Vec::new(), tried: None };
        let (mut left, mut failures) = (limit.saturating_sub(began.elapsed()), Vec::new());
        let held = loop {
            let held = self.slot(&scaler, &mut search, left).await?;
            let (Some(settings), Some(image)) = (&isolation, &image) else { break held };
            search.tried = held.slot().map(|slot| TriedInstance::from_instance_id(slot.instance()));
            let why = match self.shared.isolation.machine(held, settings.clone(), image.clone()).await {
                Ok(held) => break held,
                Err(NotMade(why)) => why,
            };
            tracing::warn!(job = job.id.0, why, tried = failures.len() + 1, "a job has no virtual machine");
            search.moved.push(why.clone());
            failures.push(why);
            if failures.len() >= MACHINES_MAX {
                return Err(ExecutorError::NotAcquired(failures.join("; then ")));
            }
            tokio::time::sleep(MACHINE_PAUSE).await;
            // The timeout applies only to waiting for a slot.
            left = limit;
        };
        let mut lease = leased(held, counted);
        lease.reschedule_notes = search.moved;
        Ok(lease)
    }

    /// Acquires the instance that another job left suspended for this job.
    async fn resumed(
        &self,
        scaler: &Scaler,
        key: &SlotKey,
        job: &EnvironmentRequest,
        resume: &ResumeRequest,
    ) -> Result<HeldLease, ExecutorError> {
        let refused = |why: String| ExecutorError::NotAcquired(format!("the job environment is not resumed: {why}"));
        if self.shared.settings().isolation.is_some() {
            return Err(refused("with vm_isolation no environment outlives its job".to_owned()));
        }
        let promise = self.shared.promises.lock().pop();
        let promise = match promise {
            Some(promise) => promise.with_key(key_of(job.id)),
            None => scaler.admit(key_of(job.id)),
        };
        self.shared.again.notify_one();
        let ResumeRequest { name, owner } = resume.clone();
        let lease = promise.resume(name, owner).await.map_err(|failure| refused(failure.to_string()))?;
        let gone = |why| refused(format!("{why}; run the job again that leaves it"));
        prepared(&lease, self.limit()).await.map_err(gone)?;
        let taken = self.shared.slots.take(key).ok_or_else(|| self.slot_taken(0))?;
        Ok(HeldLease::new(lease, Arc::clone(&self.shared), taken))
    }

    /// Acquires an unused slot of an instance. Dropping it releases the slot.
    async fn slot(
        &self,
        scaler: &Scaler,
        search: &mut Search<'_>,
        limit: Duration,
    ) -> Result<HeldLease, ExecutorError> {
        let (began, job) = (Instant::now(), search.job);
        let promise = self.shared.promises.lock().pop();
        let mut promise = match promise {
            Some(promise) => promise.with_key(key_of(job.id)),
            None => scaler.admit(key_of(job.id)),
        };
        self.shared.again.notify_one();
        let request = share::request(search.key, job, &self.shared.settings(), search.tried);
        let lease = loop {
            let left = limit.saturating_sub(began.elapsed());
            let lease = promise.acquire(request, left).await.map_err(|failure| {
                let failure = match failure {
                    // The start of the scaler, or earlier slots, may have used up a part of the timeout.
                    AcquireError::Timeout { why, .. } => AcquireError::Timeout { limit: self.limit(), why },
                    failure => failure,
                };
                ExecutorError::NotAcquired(failure.to_string())
            })?;
            let why = match prepared(&lease, limit.saturating_sub(began.elapsed())).await {
                Ok(()) => break lease,
                Err(why) => why,
            };
            if search.moved.len() >= MOVES_MAX || began.elapsed() >= limit {
                return Err(ExecutorError::NotAcquired(why));
            }
            tracing::warn!(job = job.id.0, why, "another slot is looked for, nothing was started");
            search.moved.push(why);
            promise = scaler.admit(key_of(job.id));
        };
        let taken = self.shared.slots.take(search.key).ok_or_else(|| self.slot_taken(0))?;
        let instance = self.shared.instance(lease.group(), lease.instance());
        // One reference is in the list of all instances, the other one is this.
        if Arc::strong_count(&instance) <= 2 {
            instance.mark_exclusive();
        }
        Ok(HeldLease::new(lease, Arc::clone(&self.shared), taken))
    }

    fn limit(&self) -> Duration {
        self.shared.settings().instance_acquire_timeout
    }

    fn not_within(&self, limit: Duration) -> ExecutorError {
        let why = self.shared.capacity.borrow().limit_reason.clone().unwrap_or_default();
        let seconds = limit.as_secs();
        ExecutorError::NotAcquired(format!(
            "unable to acquire instance within the configured timeout of {seconds}s: {why}"
        ))
    }
}

/// Runs the plugin's preparation of the instance for a job. The error is the reason why the job cannot run there.
async fn prepared(lease: &Slot, limit: Duration) -> Result<(), String> {
    let instance = lease.instance();
    tokio::select! {
        prepared = lease.prepare_job(limit) => {
            prepared.map_err(|error| format!("instance {instance}: its plugin could not prepare it for the job: {error}"))
        }
        loss = lease.lost() => Err(format!("instance {instance} was lost: {loss}")),
    }
}

/// Counts a job that waits for a slot or has one, until the guard is dropped.
pub(super) struct UnderWay(Arc<Shared>);

impl UnderWay {
    pub(super) fn count(shared: &Arc<Shared>) -> Self {
        shared.under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        self.0.again.notify_one();
    }
}

/// Returns the key of a job in the ledger.
///
/// It contains the job's ID, so that operators find its slot and see why it waits. The random suffix makes it unique even if the same job
/// arrives again.
fn key_of(job: JobId) -> TaskKey {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    TaskKey::new(format!("job-{}-{unique:.8}", job.0))
}
