//! The engine's methods for jobs: reservations, queued requests, leases, and suspended environments.

use muster_fleeting::model::{InstanceId, InstanceState};

use super::inventory::ScaleUpLimits;
use super::pool::Index;
use super::queue::QueuedRequest;
use super::suspend::{self, MAX_LIST_AGE, Resumed, SuspendConditions};
use super::{Engine, EnqueueError, NoCapacity};
use crate::decision::DecisionKind;
use crate::event::Action;
use crate::ledger::RowKey;
use crate::resources::JobUsage;
use crate::suspend::{ResumeError, SuspendError, SuspendEvent, SuspendedEnvironment};
use crate::time::Now;
use crate::types::{GroupId, LossReason, RemovalReason, SlotAssignment, SlotRequest, TaskKey};

/// Maximum number of sticky contexts of an instance. The least recently used one is forgotten first.
const MAX_CONTEXTS: usize = 32;

impl Engine {
    /// Reserves a slot before a job is requested. Succeeds if the key is already reserved.
    ///
    /// # Errors
    /// Returns [`NoCapacity`] if no job should be requested now.
    pub fn reserve(&mut self, now: Now, key: TaskKey) -> Result<(), NoCapacity> {
        if self.reservations.contains(&key) {
            return Ok(());
        }
        if let Some(refusal) = self.refusal(now) {
            return Err(refusal);
        }
        self.reservations.add_for_request(now, key, &self.queue);
        Ok(())
    }

    /// Returns why no further slot can be reserved now. `None` means that a slot can be reserved.
    pub fn refusal(&mut self, now: Now) -> Option<NoCapacity> {
        self.look_up_policy(now);
        let reserved = self.reservations.len();
        if self.inventory.pool.totals().free > reserved {
            return None;
        }
        let blocks = self.inventory.scale_up_blocks(now, self.scale_up_limits());
        let slots_per_instance = u64::from(self.config.slots_per_new_instance());
        let is_possible = !self.is_stopping && self.inventory.future_slots(&blocks, slots_per_instance) > reserved;
        let is_preemptive = self.plan.target().idle_count > 0 && self.plan.target().preemptive;
        if is_possible && (!is_preemptive || self.may_reserve_ahead(now)) {
            self.reservations.record_refusal(None);
            return None;
        }
        self.reservations.record_refusal(Some(now.at));
        let blocked = blocks.into_iter().filter_map(|(group, block)| Some((group, block?)));
        let (slots, blocks) = (self.slot_summary(), self.inventory.groups.with_names(blocked));
        Some(if is_possible {
            NoCapacity::NoneAvailable { slots, blocks }
        } else {
            NoCapacity::NoneAvailableOrPending { slots, blocks }
        })
    }

    pub(super) fn scale_up_limits(&self) -> ScaleUpLimits {
        ScaleUpLimits { is_stopping: self.is_stopping, max_cost_per_hour: self.config.max_cost_per_hour }
    }

    fn may_reserve_ahead(&mut self, now: Now) -> bool {
        let max_ahead = self.max_ahead(now);
        self.reservations.may_reserve_ahead(&self.queue, self.inventory.pool.totals().free, max_ahead)
    }

    /// Returns how many slots may be reserved in addition to the free ones, so that jobs arrive while instances boot.
    pub(super) fn max_ahead(&mut self, now: Now) -> u64 {
        let max = self.reservations.max_ahead(now, &self.queue);
        if !self.plan.target().reserve_ahead || max == 0 {
            return 0;
        }
        let slots_per_instance = self.config.slots_per_new_instance();
        let instances = self.inventory.instances_soon(now, self.scale_up_limits());
        let slots_soon = instances.saturating_mul(u64::from(slots_per_instance));
        slots_soon.saturating_sub(self.queue.slots(slots_per_instance)).min(max)
    }

    /// Whether more slots are reserved than are free. This is allowed while job requests immediately return jobs.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.reservations.are_ahead(&self.queue, self.inventory.pool.totals().free)
    }

    fn slot_summary(&self) -> String {
        let totals = self.inventory.pool.totals();
        let slots = totals.supply * u64::from(self.config.capacity.get());
        format!(
            "idle:{},acquired:{},unavailable:{},unready:{},reserved:{},coming:{}",
            totals.free,
            totals.assigned,
            totals.unavailable,
            slots.saturating_sub(totals.acquired + totals.unavailable + totals.free),
            self.reservations.len(),
            self.inventory.groups.expected_usable(),
        )
    }

    /// Reserves a slot for a job that has already arrived, even without capacity.
    pub fn admit(&mut self, key: TaskKey) {
        self.reservations.add(key);
    }

    /// Renames a reservation after its job request returned a job.
    ///
    /// Reserves a slot even if the reservation was revoked, because the job has arrived.
    pub fn rename(&mut self, from: &TaskKey, to: TaskKey) {
        self.reservations.remove(from);
        self.reservations.add(to);
    }

    /// Queues a request for slots. [`Action::Assign`] assigns them, possibly immediately.
    ///
    /// # Errors
    /// Returns [`EnqueueError`] if the request is not queued.
    pub fn acquire(&mut self, now: Now, key: TaskKey, request: &SlotRequest) -> Result<(), EnqueueError> {
        if self.is_stopping {
            return Err(EnqueueError::Stopping { key });
        }
        if !self.reservations.contains(&key) {
            return Err(EnqueueError::NotReserved { key });
        }
        let queued = QueuedRequest {
            key: key.clone(),
            since: now.at,
            slots: self.slots_for(request),
            job_kind: request.job_kind,
            context: request.sticky_context,
            avoid: request.avoid,
        };
        if self.leases.contains(&key) || !self.queue.push(queued) {
            return Err(EnqueueError::AlreadyQueued { key });
        }
        self.advance(now);
        Ok(())
    }

    /// Returns the number of slots that a request gets: at most those of a new instance.
    fn slots_for(&self, request: &SlotRequest) -> u32 {
        let density = &self.config.density;
        let learned = request.job_kind.filter(|_| density.learn_from_usage);
        let need = learned.map_or(request.resources, |kind| request.resources.or(self.usages.need(kind, density)));
        density.slots_for(need, self.config.slots_per_new_instance())
    }

    /// Returns the lease that a task got before a restart, and marks it as claimed.
    pub fn claim(&mut self, key: &TaskKey) -> Option<SlotAssignment> {
        self.leases.claim(&self.inventory.pool, key)
    }

    /// Assigns free slots to the oldest requests that fit (I5).
    pub(super) fn assign_slots(&mut self, now: Now) {
        if self.is_stopping {
            return;
        }
        if let Some((request, index)) = self.hold.update(&mut self.inventory.pool, &self.queue) {
            self.assign(now, &request, index);
        }
        while let Some((request, index)) = self.next_assignment() {
            self.assign(now, &request, index);
        }
        self.hold.hold_for_starved(&mut self.inventory, now, &self.queue);
    }

    fn next_assignment(&self) -> Option<(QueuedRequest, Index)> {
        if self.queue.is_empty() {
            return None;
        }
        let request = self.queue.oldest_fitting(self.inventory.pool.max_fit())?;
        let index = self.inventory.pool.best(request.slots, request.context, request.avoid)?;
        Some((request.clone(), index))
    }

    fn assign(&mut self, now: Now, request: &QueuedRequest, index: Index) {
        let (key, slots, pool) = (&request.key, request.slots, &mut self.inventory.pool);
        self.queue.remove(key);
        pool.change(index, |instance| instance.job_count += 1);
        let Some(lease) = self.leases.assign(pool, now.at, key, (index, slots), request.job_kind) else { return };
        let jobs = pool.get(index).map_or(0, |instance| instance.jobs);
        let sticky = request.context.map(|context| pool.has_context(index, context));
        if let Some(context) = request.context {
            pool.add_context(index, context, MAX_CONTEXTS);
        }
        self.reservations.remove(key);
        self.inventory.mark_dirty(index);
        let (group, id, slot) = (lease.group, lease.instance.clone(), lease.slot);
        let waited = now.at.since(request.since);
        self.inventory.record_decision(
            now,
            DecisionKind::Leased { key: key.clone(), group, id, slot, slots, jobs, sticky, waited },
        );
        self.inventory.push_action(Action::Assign(lease));
    }

    pub(super) fn record_usage(&mut self, now: Now, key: TaskKey, usage: JobUsage) {
        let Some(run) = self.leases.run_conditions(&self.inventory.pool, now.at, &key) else { return };
        let mut slowdown = None;
        if let Some(kind) = run.job_kind {
            let recorded = self.usages.record(kind, &usage, run.neighbors, now.unix);
            let changed = [Some(kind), recorded.forgotten].into_iter().flatten();
            self.inventory.outbox.mark_dirty(changed.map(RowKey::JobKind));
            slowdown = recorded.slowdown;
        }
        self.inventory.record_decision(now, DecisionKind::JobUsage { key, usage, neighbors: run.neighbors, slowdown });
    }

    pub(super) fn release(&mut self, now: Now, key: &TaskKey) {
        let Some(index) = self.leases.remove(&mut self.inventory, now, key) else { return };
        self.inventory.record_decision(now, DecisionKind::Released { key: key.clone() });
        self.on_release(now, index);
    }

    fn on_release(&mut self, now: Now, index: Index) {
        let pool = &self.inventory.pool;
        let Some(instance) = pool.get(index).filter(|instance| instance.assigned_slots == 0) else { return };
        if let Some(reason) = instance.removal_after_last_job(pool.limits()) {
            self.delete(now, index, reason);
        }
    }

    /// Ends the leases from before a restart that no job has claimed.
    ///
    /// Unless jobs are isolated, their instances are drained, because an unclaimed job may have changed anything there.
    pub(super) fn claims_complete(&mut self, now: Now) {
        for key in self.leases.take_unclaimed() {
            let Some(index) = self.leases.remove(&mut self.inventory, now, &key) else { continue };
            self.inventory.push_action(Action::Lost { key, reason: LossReason::Unclaimed });
            if self.config.jobs_are_isolated {
                self.on_release(now, index);
            } else {
                self.drain_or_delete(now, index, RemovalReason::Unclaimed);
            }
        }
    }

    /// Ends the lease of a job and suspends its instance for a later job.
    ///
    /// The environment is named after the lease's key. [`Action::EnvironmentSaved`] confirms that it is in the ledger.
    ///
    /// # Errors
    /// Returns [`SuspendError`] if the instance cannot be suspended. The lease then continues.
    pub fn suspend(&mut self, now: Now, key: &TaskKey, owner: &str) -> Result<(), SuspendError> {
        let index = self.find_suspendable(key)?;
        let until_unix = now.unix.saturating_add_unsigned(self.config.suspended_ttl.as_secs());
        let environment = SuspendedEnvironment { name: key.to_string(), owner: owner.to_owned(), until_unix };
        self.leases.remove(&mut self.inventory, now, key);
        self.suspend_instance(now, index, environment, SuspendEvent::Saved);
        self.inventory.push_action(Action::EnvironmentSaved { key: key.clone() });
        self.advance(now);
        Ok(())
    }

    /// Checks whether the instance of a lease can be suspended after its job.
    ///
    /// # Errors
    /// Returns [`SuspendError`] if it cannot.
    pub fn may_suspend(&self, key: &TaskKey) -> Result<(), SuspendError> {
        self.find_suspendable(key).map(drop)
    }

    fn find_suspendable(&self, key: &TaskKey) -> Result<Index, SuspendError> {
        if !self.has_single_use_instances() {
            return Err(SuspendError::Shared);
        }
        let index = self.leases.instance(key).ok_or(SuspendError::InstanceLost)?;
        let conditions = SuspendConditions {
            deletes_all: self.is_stopping && self.config.delete_on_shutdown,
            max_cost_per_hour: self.config.max_cost_per_hour,
        };
        suspend::check_suspendable(&self.inventory, index, conditions)?;
        Ok(index)
    }

    /// Whether each instance runs only one job before it is deleted.
    pub(super) fn has_single_use_instances(&self) -> bool {
        self.config.capacity.get() == 1 && self.config.max_uses.is_some_and(|uses| uses.get() == 1)
    }

    fn suspend_instance(&mut self, now: Now, index: Index, environment: SuspendedEnvironment, event: SuspendEvent) {
        self.inventory.pool.change(index, |instance| instance.saved_environment = Some(environment));
        let removal = self.suspensions.begin(&mut self.inventory, now, index, Some(InstanceState::Running));
        self.delete_if(now, index, removal);
        suspend::record(&mut self.inventory, now, index, event);
    }

    /// Requests an environment for `key`, and releases the reservation of `key`.
    ///
    /// [`Action::Assign`] or [`Action::ResumeFailed`] follows.
    ///
    /// # Errors
    /// Returns [`ResumeError`] if the environment cannot be resumed.
    pub fn resume(&mut self, now: Now, key: TaskKey, name: &str, owner: &str) -> Result<(), ResumeError> {
        self.reservations.remove(&key);
        if self.is_stopping {
            return Err(ResumeError::Stopping);
        }
        let index = suspend::find_resumable(&self.inventory, now, name, owner)?;
        let removal = self.suspensions.add_waiter(&mut self.inventory, now, index, key);
        self.delete_if(now, index, removal);
        self.advance(now);
        Ok(())
    }

    /// Returns whether an environment with this name is available to be resumed.
    #[must_use]
    pub fn has_environment(&self, name: &str) -> bool {
        suspend::has_environment(&self.inventory.pool, name)
    }

    /// Handles the answer to a suspend or resume call. A later list shows the effect of an accepted call.
    pub(super) fn handle_suspend_answer(
        &mut self,
        now: Now,
        group: GroupId,
        ids: &[InstanceId],
        result: Result<Vec<InstanceId>, String>,
    ) {
        for (index, error) in suspend::rejected(&self.inventory.pool, group, ids, result) {
            let removal = self.suspensions.call_failed(&mut self.inventory, now, index, error);
            self.delete_if(now, index, removal);
        }
        self.inventory.list_now(now, group);
    }

    pub(super) fn handle_resume_prepared(&mut self, now: Now, index: Index, result: Result<(), String>) {
        match self.suspensions.finish_preparation(&self.inventory.pool, now, index, result) {
            Resumed::NoWaiter => {
                let removal = self.suspensions.suspend_again(&mut self.inventory, now, index);
                self.delete_if(now, index, removal);
            }
            Resumed::Failed(reason) => self.delete(now, index, reason),
            Resumed::Ready { key, waited } => {
                let first_check = self.inventory.next_health_check(now, &self.config);
                self.inventory.pool.change(index, |instance| {
                    instance.become_ready(now.at, first_check);
                    instance.ignore_lists_before = now.at + MAX_LIST_AGE;
                });
                let lease = self.leases.assign(&mut self.inventory.pool, now.at, &key, (index, 1), None);
                suspend::record(&mut self.inventory, now, index, SuspendEvent::Resumed(key, waited));
                let take = |instance: &mut super::instance::Instance| {
                    instance.resumed_environment = instance.saved_environment.take();
                };
                self.inventory.pool.change(index, take);
                self.inventory.mark_dirty(index);
                if let Some(lease) = lease {
                    self.inventory.push_action(Action::Assign(lease));
                }
            }
        }
    }

    /// Ends the lease of a job that no longer waits for it. A resumed environment is suspended again.
    pub(super) fn assignment_abandoned(&mut self, now: Now, key: &TaskKey) {
        let resumed = self.leases.instance(key).and_then(|index| {
            let environment = self.inventory.pool.change(index, |instance| instance.take_resumed_environment());
            Some((index, environment.flatten()?))
        });
        let Some((index, environment)) = resumed else { return self.release(now, key) };
        self.leases.remove(&mut self.inventory, now, key);
        self.suspend_instance(now, index, environment, SuspendEvent::ResumeCanceled);
    }

    pub(super) fn cancel_resume(&mut self, now: Now, key: &TaskKey) {
        if let Some((index, reason)) = self.suspensions.cancel(&mut self.inventory, now, key) {
            self.delete(now, index, reason);
        }
    }
}
