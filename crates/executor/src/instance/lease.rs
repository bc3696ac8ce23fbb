//! A job's slot on an instance, as an execution environment.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::client::{AgentConnection, REMOTE_KEEPALIVE};
use muster_agent_api::result::ResourceUsage;
use muster_taskscaler::driver::LeaseHandle;
use parking_lot::Mutex;

use super::acquire::ActiveJobGuard;
use super::isolation::NestedMachine;
use super::provider::ExecutorContext;
use super::share;
use crate::deploy::{DeployError, Dial, Dialed, RemoteMachine, directories};
use crate::{
    Directories, ExecutionEnvironment, ExecutorError, Guard, HeldSlot, Lease, LeaseRecord, Locality, Replaceable,
    Sharing, SlotShare, Suspend,
};

const SLOT_RELEASED: &str = "the slot was released";
pub(super) const SCALER_ENDED: &str = "the scaler has ended";

/// Time after which an instance counts as lost if it is silent after its connection broke, whatever its provider
/// reports.
///
/// The keepalive detects a broken connection within 6 s, so a job is rescheduled within 15 s.
pub const UNRESPONSIVE_TIMEOUT: Duration = Duration::from_secs(7);
const _: () = assert!(
    REMOTE_KEEPALIVE.interval.as_secs() + REMOTE_KEEPALIVE.timeout.as_secs() + UNRESPONSIVE_TIMEOUT.as_secs() < 15
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseUse {
    /// No job has the lease yet.
    Unused,
    /// A job has the lease and may still run.
    InUse,
    /// The job no longer needs the lease.
    Over,
}

/// A lease of a slot, with the job's virtual machine if there is one. Dropping the lease releases the slot.
///
/// If a job may still run on the instance, the slot is left to the next start of the manager, because the instance must
/// not be deleted.
pub(super) struct HeldLease {
    /// Lease of the slot at the scaler. `None` after it was given back.
    slot: Option<LeaseHandle>,
    lease_use: Mutex<LeaseUse>,
    /// Guard of the slot's numbers. Dropped after `slot`, which is therefore free when the next job is requested.
    _held_slot: HeldSlot,
    /// Dropped after `slot`, for the same reason.
    active_job: Option<ActiveJobGuard>,
    record: LeaseRecord,
    nested: Option<Arc<NestedMachine>>,
    shared: Arc<ExecutorContext>,
}

impl HeldLease {
    pub(super) fn new(slot: LeaseHandle, shared: Arc<ExecutorContext>, held_slot: HeldSlot) -> Self {
        let (instance, key) = (slot.instance().as_str(), slot.key().as_str());
        let record = LeaseRecord::remote(slot.group(), instance, held_slot.slot.clone(), key);
        let lease_use = Mutex::new(LeaseUse::Unused);
        Self { slot: Some(slot), lease_use, _held_slot: held_slot, active_job: None, record, nested: None, shared }
    }

    /// Adds the job's virtual machine. It will be deleted before the slot is released.
    pub(super) fn with_vm(mut self, nested: Arc<NestedMachine>) -> Self {
        if let Locality::Remote { vm, .. } = &mut self.record.locality {
            *vm = Some(nested.machine().clone());
        }
        self.nested = Some(nested);
        self
    }

    /// Waits until the instance is lost, and returns the reason. Cancel-safe.
    pub(super) async fn lost(&self) -> String {
        let Some(slot) = &self.slot else { return std::future::pending().await };
        let loss = slot.lost().await;
        format!("instance {} was lost: {loss}", slot.instance())
    }

    pub(super) fn slot(&self) -> Option<&LeaseHandle> {
        self.slot.as_ref()
    }

    pub(super) fn shared(&self) -> &Arc<ExecutorContext> {
        &self.shared
    }

    /// The job's virtual machine, or the instance.
    pub(super) fn remote_machine(&self) -> Arc<RemoteMachine> {
        match (&self.nested, &self.slot) {
            (Some(nested), _) => Arc::clone(nested.remote_machine()),
            (None, Some(slot)) => self.shared.instance(slot.group(), slot.instance()),
            (None, None) => self.shared.new_machine(&self.record.environment),
        }
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if *self.lease_use.lock() == LeaseUse::InUse {
            return slot.leave_to_next_start();
        }
        match self.nested.take() {
            Some(nested) => nested.remove(slot, Arc::clone(&self.shared)),
            None => slot.finish_job(),
        }
    }
}

#[async_trait]
impl Dial for HeldLease {
    async fn dial(&self) -> Result<Dialed, DeployError> {
        let slot = self.slot.as_ref().ok_or_else(|| DeployError::NoSession(SLOT_RELEASED.to_owned()))?;
        match &self.nested {
            Some(nested) => nested.dial(&self.shared, slot).await,
            None => {
                let id = (slot.group(), slot.instance());
                let (session, addresses) = self.shared.dial(id, || slot.connect_info(), false).await?;
                Ok(self.shared.with_trace_lines(id, session, &addresses))
            }
        }
    }

    fn report_unreachable(&self) {
        if let Some(slot) = &self.slot {
            slot.report_connection_lost();
        }
    }
}

struct InstanceEnvironment {
    /// Dropped before the slot, because the next owner of the slot counts the references to the machine.
    machine: Arc<RemoteMachine>,
    held: Arc<HeldLease>,
}

impl InstanceEnvironment {
    fn suspendable_slot(&self) -> Result<&LeaseHandle, String> {
        if self.held.nested.is_some() {
            return Err("vm_isolation is set, so the virtual machine is deleted with its job".to_owned());
        }
        self.held.slot.as_ref().ok_or_else(|| SLOT_RELEASED.to_owned())
    }
}

struct HeldLeaseGuard(Arc<HeldLease>);

impl Guard for HeldLeaseGuard {
    fn release(self: Box<Self>) {
        *self.0.lease_use.lock() = LeaseUse::Over;
    }
}

/// Gives the lease to a job. `active_job` counts the job until the job releases its lease.
pub(super) fn into_lease(mut held: HeldLease, active_job: ActiveJobGuard) -> Lease {
    *held.lease_use.get_mut() = LeaseUse::InUse;
    held.active_job = Some(active_job);
    let (record, machine) = (held.record.clone(), held.remote_machine());
    let held = Arc::new(held);
    let environment = InstanceEnvironment { machine, held: Arc::clone(&held) };
    Lease::new(record, Arc::new(environment), Box::new(HeldLeaseGuard(held)))
}

#[async_trait]
impl ExecutionEnvironment for InstanceEnvironment {
    async fn connect(&self) -> Result<AgentConnection, ExecutorError> {
        Ok(self.machine.connect(self.held.as_ref()).await?.0)
    }

    async fn directories(&self) -> Result<Directories, ExecutorError> {
        Ok(directories(&self.machine.connect(self.held.as_ref()).await?.1))
    }

    fn trace_lines(&self) -> Vec<String> {
        self.machine.trace_lines()
    }

    fn sharing(&self) -> Option<&dyn Sharing> {
        Some(self)
    }

    fn suspendable(&self) -> Option<&dyn Suspend> {
        Some(self)
    }

    fn replaceable(&self) -> Option<&dyn Replaceable> {
        Some(self)
    }

    async fn lost(&self) -> String {
        let nested = async {
            match &self.held.nested {
                Some(nested) => nested.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            reason = self.held.lost() => reason,
            reason = nested => reason,
        }
    }
}

impl Sharing for InstanceEnvironment {
    fn slot_share(&self) -> Option<SlotShare> {
        let slot = self.held.slot.as_ref()?;
        let (shared, nested) = (&self.held.shared, self.held.nested.is_some());
        let shares_host = !nested && self.machine.is_on_this_host();
        Some(share::slot_share(slot, &shared.settings(), self.machine.home().as_deref(), nested, shares_host))
    }

    fn report_usage(&self, used: &ResourceUsage) {
        let Some(slot) = &self.held.slot else { return };
        slot.report_usage(share::job_usage(used));
        if used.share_error.is_empty() {
            return;
        }
        // Logged once per runner, because its instances usually have the same image.
        self.held.shared.warned_no_cgroup.call_once(|| {
            tracing::warn!(
                runner = self.held.shared.options.name,
                instance = %slot.instance(),
                reason = used.share_error,
                "use_slot_cgroups has no effect, because jobs cannot use the cgroups of their slots: resources are not limited per job; \
                 see the reason"
            );
        });
    }
}

#[async_trait]
impl Suspend for InstanceEnvironment {
    async fn can_suspend(&self) -> Result<(), String> {
        let slot = self.suspendable_slot()?;
        slot.can_suspend().await.ok_or(SCALER_ENDED)?.map_err(|reason| reason.to_string())
    }

    async fn suspend(&self, owner: &str) -> Result<(), String> {
        let slot = self.suspendable_slot()?;
        slot.suspend(owner.to_owned()).await.ok_or(SCALER_ENDED)?.map_err(|reason| reason.to_string())?;
        // The connection is forgotten, because a job that resumes the instance needs new connection details.
        let name = self.held.shared.name(slot.group(), slot.instance().as_str());
        self.held.shared.instances.lock().remove(&name);
        Ok(())
    }
}

impl Replaceable for InstanceEnvironment {
    fn unresponsive_timeout(&self) -> Duration {
        UNRESPONSIVE_TIMEOUT
    }

    fn retire(&self, reason: &str) {
        match (&self.held.slot, &self.held.nested) {
            (Some(slot), None) => slot.retire_instance(reason.to_owned()),
            // The instance may work although its virtual machine is silent.
            (Some(slot), Some(_)) => {
                slot.report_health(Err(reason.to_owned()));
                slot.report_connection_lost();
            }
            (None, _) => {}
        }
    }
}
