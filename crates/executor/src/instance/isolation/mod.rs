//! A virtual machine on the instance for each job (`vm_isolation`), as specified in `docs/spec/fleeting.md`, section
//! 8.4.
//!
//! The nesting daemon on the instance creates the machine, the job's agent runs in the machine, and the machine is
//! deleted with the job.
//!
//! ```text
//! slot --session with the instance--> daemon: Create --> session with the machine through the first session --> agent --> lease
//! end of the job: Delete, then the slot is released        next start of the manager: the machine in the lease's record is used again
//! ```
//!
//! Each start of the manager deletes orphaned machines, which belong to no job. An orphaned machine is also deleted
//! when its slot is used again, because the daemon has one machine per slot.

mod metrics;
mod nested;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_config::settings::IsolationSettings;
use muster_fleeting::model::InstanceId;
use muster_fleeting::nesting::{Nesting, NestingError, NestingTimeouts};
use muster_job::error_chain;
use muster_remote::{KnownHosts, Session};
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::lease::HeldLease;
use crate::deploy::{DeployError, Dial};
use crate::{LeaseRecord, VmImage};
use metrics::{Operation, VmMetrics};
pub(super) use nested::NestedMachine;

/// Reason why a virtual machine could not be created or deleted, or why its instance could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct VmError(pub(super) String);

impl From<DeployError> for VmError {
    fn from(error: DeployError) -> Self {
        Self(error_chain(&error))
    }
}

#[derive(Default)]
pub(super) struct Isolation {
    /// Machines that belong to jobs: name of the instance, and ID of the machine.
    owned: Mutex<BTreeSet<(String, String)>>,
    /// Machines of jobs from an earlier manager process: ID of the instance, and ID of the machine.
    ///
    /// The group is not recorded, because it may have been renamed. Such a machine counts as in use in all groups until
    /// its job ends or the manager restarts.
    owned_before: Mutex<BTreeSet<(String, String)>>,
    /// Whether all machines of an earlier manager process are known.
    announced: watch::Sender<bool>,
    /// Number of machines that are being created or deleted.
    busy: watch::Sender<usize>,
    /// Host keys of machines. Not stored in a file, because a machine is reached through its instance, whose key is
    /// verified.
    hosts: KnownHosts,
    metrics: VmMetrics,
}

impl Isolation {
    /// Records that the machine of a lease from an earlier manager process belongs to a job.
    pub(super) fn track_lease(&self, record: &LeaseRecord) {
        if let Some(machine) = record.vm() {
            self.owned_before.lock().insert((record.environment.clone(), machine.id.clone()));
        }
    }

    /// Records that no job owns the machine of a lease, because the lease was not restored.
    pub(super) fn untrack_lease(&self, record: &LeaseRecord) {
        if let Some(machine) = record.vm() {
            self.owned_before.lock().remove(&(record.environment.clone(), machine.id.clone()));
        }
    }

    pub(super) fn mark_all_tracked(&self) {
        self.announced.send_replace(true);
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        self.metrics.families()
    }

    fn track(&self, instance: &str, machine: &str) {
        self.owned.lock().insert((instance.to_owned(), machine.to_owned()));
    }

    /// Records that the machine on the instance with this name and ID no longer belongs to a job.
    fn untrack(&self, (instance, id): (&str, &InstanceId), machine: &str) {
        self.owned.lock().remove(&(instance.to_owned(), machine.to_owned()));
        self.owned_before.lock().remove(&(id.as_str().to_owned(), machine.to_owned()));
    }

    /// Returns whether a machine on the instance with this name and ID belongs to a job.
    fn is_owned(&self, (instance, id): (&str, &InstanceId), machine: &str) -> bool {
        let contains = |machines: &Mutex<BTreeSet<(String, String)>>, instance: &str| {
            machines.lock().contains(&(instance.to_owned(), machine.to_owned()))
        };
        contains(&self.owned, instance) || contains(&self.owned_before, id.as_str())
    }

    /// Checks that the instance's daemon answers, and deletes machines without jobs.
    ///
    /// # Errors
    /// [`VmError`] if the instance is not ready.
    pub(super) async fn prepare(
        &self,
        settings: &IsolationSettings,
        dialer: &dyn Dial,
        instance: (&str, &InstanceId),
    ) -> Result<(), VmError> {
        let mut announced = self.announced.subscribe();
        // Cannot fail, because the sender is a field of `self`.
        let _ = announced.wait_for(|all| *all).await;
        let host: Arc<dyn Session> = Arc::from(dialer.dial().await?.session);
        let cleared = self.delete_orphans(settings, &host, instance).await;
        host.close().await;
        cleared.map_err(|error| VmError(format!("vm_isolation: {}", error_chain(&error))))
    }

    async fn delete_orphans(
        &self,
        settings: &IsolationSettings,
        host: &Arc<dyn Session>,
        (instance, id): (&str, &InstanceId),
    ) -> Result<(), NestingError> {
        let owned = |machine: &str| self.is_owned((instance, id), machine);
        for (machine, removed) in connect_daemon(settings, host).await?.clear(owned).await? {
            let machine = machine.id;
            match removed {
                Ok(()) => {
                    self.metrics.count(Operation::Orphan);
                    tracing::info!(instance, machine, "orphaned virtual machine deleted");
                }
                // The machine remains until its slot is used again.
                Err(error) => tracing::warn!(instance, machine, %error, "failed to delete an orphaned virtual machine"),
            }
        }
        Ok(())
    }

    /// Creates a machine with an agent for a job, on the instance of its slot.
    ///
    /// If the caller stops waiting, the machine is deleted and the slot is released.
    ///
    /// # Errors
    /// [`VmError`]. The slot has been released, or will be.
    pub(super) async fn create_vm(
        self: &Arc<Self>,
        held: HeldLease,
        settings: IsolationSettings,
        image: VmImage,
    ) -> Result<HeldLease, VmError> {
        let (mut reply, answer) = oneshot::channel();
        let (busy, isolation) = (VmOperationGuard::new(&self.busy), Arc::clone(self));
        tokio::spawn(async move {
            let _busy = busy;
            let began = Instant::now();
            let created = tokio::select! {
                nested = NestedMachine::create(&isolation, &held, settings, &image) => nested,
                reason = held.lost() => Err(VmError(reason)),
            };
            let created = match created {
                Ok(nested) => {
                    let held = held.with_vm(nested);
                    // Only this step ends early if the caller stops waiting, because a machine can be deleted only
                    // after its creation is complete.
                    tokio::select! {
                        reached = reach(&held) => reached.map(|()| held),
                        reason = held.lost() => Err(VmError(reason)),
                        () = reply.closed() => return,
                    }
                }
                Err(error) => Err(error),
            };
            match &created {
                Ok(_) => isolation.metrics.record_creation(began.elapsed()),
                Err(_) => isolation.metrics.count(Operation::CreateFailed),
            }
            // If the caller stopped waiting, dropping the lease deletes the machine.
            let _ = reply.send(created);
        });
        answer.await.unwrap_or_else(|_| Err(VmError("the manager is shutting down".to_owned())))
    }

    /// Waits for at most `timeout` until no machine is being created or deleted.
    pub(super) async fn wait_idle(&self, timeout: Duration) {
        let mut busy = self.busy.subscribe();
        // Cannot fail, because the sender is a field of `self`.
        if tokio::time::timeout(timeout, busy.wait_for(|busy| *busy == 0)).await.is_err() {
            let remaining = *self.busy.borrow();
            tracing::warn!(
                remaining,
                "virtual machines are still being created or deleted; the next start deletes them"
            );
        }
    }
}

async fn connect_daemon(settings: &IsolationSettings, host: &Arc<dyn Session>) -> Result<Nesting, NestingError> {
    let IsolationSettings { nesting_host, nesting_config, .. } = settings;
    let none = serde_json::json!({});
    let config = if nesting_config.is_null() { &none } else { nesting_config };
    Nesting::connect(Arc::clone(host), nesting_host, config, NestingTimeouts::default()).await
}

async fn reach(held: &HeldLease) -> Result<(), VmError> {
    let reached = held.remote_machine().connect(held).await;
    let Some(slot) = held.slot() else { return Ok(()) };
    match reached {
        Ok(_) => {
            slot.report_health(Ok(()));
            Ok(())
        }
        Err(error) => {
            let error = error.to_string();
            slot.report_health(Err(error.clone()));
            Err(VmError(error))
        }
    }
}

struct VmOperationGuard(watch::Sender<usize>);

impl VmOperationGuard {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for VmOperationGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::Executable;
    use crate::instance::{InstanceExecutor, InstanceOptions};
    use crate::{Elastic as _, Executor as _, Locality, NestedVm, Slot, SlotKey};

    fn lease_with_vm(group: &str, instance: &str, id: &str) -> LeaseRecord {
        let key = SlotKey { runner: String::new(), project_id: 1 };
        let mut record = LeaseRecord::remote(group, instance, Slot { id: 0, project_slot: 0, key }, "key");
        if let Locality::Remote { vm, .. } = &mut record.locality {
            *vm = Some(NestedVm { id: id.to_owned(), address: String::new() });
        }
        record
    }

    #[tokio::test]
    async fn machine_of_a_lease_whose_restore_is_abandoned_belongs_to_no_job() {
        let executor = InstanceExecutor::start(
            InstanceOptions {
                name: "short".to_owned(),
                settings: Arc::default(),
                find_plugin: |_| Err("no plugin".to_owned()),
                requests: 1,
                ledger: "/nonexistent".into(),
                ledger_lock: Arc::default(),
                executable: Arc::new(Executable::new("/nonexistent/muster")),
            },
            std::future::pending(),
        );
        let (record, id) = (lease_with_vm("a", "i-1", "vm-1"), InstanceId::new("i-1"));
        executor.announce_lease(&record);
        let is_owned = || executor.shared.isolation.is_owned(("a/i-1", &id), "vm-1");
        assert!(is_owned());
        // The plugin does not start, so the manager stops waiting.
        let restored = tokio::time::timeout(Duration::ZERO, executor.restore(&record)).await;
        assert!(restored.is_err() && !is_owned());
    }

    #[test]
    fn machines_of_instances_with_equal_ids_in_two_groups_are_distinguished() {
        let (isolation, id) = (Isolation::default(), InstanceId::new("i-1"));
        let is_owned = |group: &str, machine: &str| isolation.is_owned((&format!("{group}/i-1"), &id), machine);
        isolation.track("a/i-1", "vm-1");
        assert!(is_owned("a", "vm-1") && !is_owned("b", "vm-1"));
        isolation.track("b/i-1", "vm-1");
        isolation.untrack(("b/i-1", &id), "vm-1");
        assert!(is_owned("a", "vm-1") && !is_owned("b", "vm-1"));

        isolation.track_lease(&lease_with_vm("b", "i-1", "vm-2"));
        assert!(is_owned("a", "vm-2") && is_owned("renamed", "vm-2"));
        isolation.untrack(("renamed/i-1", &id), "vm-2");
        assert!(!is_owned("a", "vm-2") && !is_owned("renamed", "vm-2"));
    }
}
