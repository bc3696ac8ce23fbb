//! Leases: one job's right to one slot of one execution environment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ExecutionEnvironment;

/// Record of a lease, which is stored before the lease is used (R2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// ID of the environment at its executor.
    pub environment: String,
    /// The slot.
    pub slot: Slot,
    /// Location of the environment.
    #[serde(default, skip_serializing_if = "Locality::is_local")]
    pub locality: Locality,
}

/// Location of an execution environment, from the manager's view.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locality {
    /// On the manager's host: the environment and the manager are lost together.
    #[default]
    Local,
    /// On a machine of its own, one of several with an agent each: it can be lost while the manager lives, and a job that has not started can
    /// have another one.
    Remote {
        /// Key of the lease in the executor's own ledger.
        task_key: String,
        /// Virtual machine on the environment that was created for the job. `None` means that the job runs on the environment itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<NestedVm>,
    },
}

impl Locality {
    /// Returns whether the environment is on the manager's host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local)
    }
}

/// Virtual machine on an instance, which one job has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedVm {
    /// ID at the daemon that created it.
    pub id: String,
    /// Address, as the instance sees it.
    pub address: String,
}

impl LeaseRecord {
    /// Returns the record of a lease on the manager's host.
    #[must_use]
    pub fn local(environment: impl Into<String>, slot: Slot) -> Self {
        Self { environment: environment.into(), slot, locality: Locality::Local }
    }

    /// Returns the record of a lease on another machine.
    #[must_use]
    pub fn remote(environment: impl Into<String>, slot: Slot, task_key: impl Into<String>) -> Self {
        let locality = Locality::Remote { task_key: task_key.into(), vm: None };
        Self { environment: environment.into(), slot, locality }
    }

    /// Returns whether the environment is one of several machines with an agent each.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !self.locality.is_local()
    }

    /// Returns the key of the lease in the executor's ledger. `None` means that the executor has no ledger.
    #[must_use]
    pub fn task_key(&self) -> Option<&str> {
        match &self.locality {
            Locality::Local => None,
            Locality::Remote { task_key, .. } => Some(task_key),
        }
    }

    /// Returns the virtual machine that was created for the job, if any.
    #[must_use]
    pub fn vm(&self) -> Option<&NestedVm> {
        match &self.locality {
            Locality::Local => None,
            Locality::Remote { vm, .. } => vm.as_ref(),
        }
    }
}

/// One job's right to one slot of one environment.
///
/// Given up with [`Lease::release`]. Dropped without it, the job is not over as far as anyone knows: a provider whose
/// environments outlive the manager keeps the slot for the manager's next start.
pub struct Lease {
    /// What to store.
    pub record: LeaseRecord,
    /// The place.
    pub environment: Arc<dyn ExecutionEnvironment>,
    /// What became of the slots that the job got before this one, and that nothing was started in.
    pub reschedule_notes: Vec<String>,
    guard: SlotGuard,
}

/// Holds a slot.
pub trait Guard: Send + Sync {
    /// The job no longer needs the slot.
    fn release(self: Box<Self>);
}

/// A slot that is held.
pub type SlotGuard = Box<dyn Guard>;

impl Lease {
    /// A lease that holds `guard`.
    #[must_use]
    pub fn new(record: LeaseRecord, environment: Arc<dyn ExecutionEnvironment>, guard: SlotGuard) -> Self {
        Self { record, environment, reschedule_notes: Vec::new(), guard }
    }

    /// Gives the slot back.
    pub fn release(self) {
        self.guard.release();
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("record", &self.record).finish_non_exhaustive()
    }
}

/// Whose jobs are counted together: those of a runner for `CI_CONCURRENT_ID`, those of one of its projects for
/// `CI_CONCURRENT_PROJECT_ID`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotKey {
    /// The runner, as the paths of its jobs name it: the short form of its token.
    pub runner: String,
    /// The project's id at the coordinator.
    pub project_id: i64,
}

/// One slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// `CI_CONCURRENT_ID`: the lowest number that no other job of the runner has.
    pub id: u32,
    /// `CI_CONCURRENT_PROJECT_ID`: the same among the runner's jobs of one project.
    pub project_slot: u32,
    /// Runner and project.
    pub key: SlotKey,
}
