//! From a job to a slot of an instance, and to a virtual machine there, where each job has one.

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

/// Slots that may be lost, or be refused by the plugin, before a job gets one.
const MOVES_MAX: usize = 10;
/// Virtual machines that are tried for one job, each on another instance where that is possible, and the pause before the
/// next one.
const MACHINES_MAX: usize = 3;
const MACHINE_PAUSE: Duration = Duration::from_secs(1);

/// What a job wants, and what became of its tries to get it.
struct Search<'a> {
    key: &'a SlotKey,
    job: &'a EnvironmentRequest,
    moved: Vec<String>,
    /// The instance that was tried last.
    tried: Option<TriedInstance>,
}

impl InstanceExecutor {
    /// A place for a job. Waits until there is one; cancel-safe.
    pub(super) async fn place_for(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        let counted = UnderWay::count(&self.shared);
        let (limit, began) = (self.shared.settings().instance_acquire_timeout, Instant::now());
        let scaler = tokio::time::timeout(limit, self.shared.scaler()).await.map_err(|_| self.not_within(limit))?;
        // From now on they do not change.
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
            // Only the wait for a slot is limited by it.
            left = limit;
        };
        let mut lease = leased(held, counted);
        lease.reschedule_notes = search.moved;
        Ok(lease)
    }

    /// The instance that another job left for this one, and no other.
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

    /// A slot of an instance, which nobody has used yet. Dropped, it is free again.
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
                    // The scaler's start, or other slots, may have taken a part of it.
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
        // The list of all has one, and this is the other.
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

/// What the plugin does before a job, as long as there is the instance; why the job cannot run there.
async fn prepared(lease: &Slot, limit: Duration) -> Result<(), String> {
    let instance = lease.instance();
    tokio::select! {
        prepared = lease.prepare_job(limit) => {
            prepared.map_err(|error| format!("instance {instance}: its plugin could not prepare it for the job: {error}"))
        }
        loss = lease.lost() => Err(format!("instance {instance} was lost: {loss}")),
    }
}

/// One more job that waits or has a slot, until this is dropped.
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

/// A job's name in the books: by it operators find the job's slot, and why it waits ([`Key`]s are unique, and a job may come
/// more than once).
fn key_of(job: JobId) -> TaskKey {
    let unique = uuid::Uuid::new_v4().simple().to_string();
    TaskKey::new(format!("job-{}-{unique:.8}", job.0))
}
