//! Leases: one job's right to one slot of one execution environment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ExecutionEnvironment;

/// Record of a lease, which the manager stores before it uses the lease (R2 in `docs/spec/life-of-a-job.md`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// ID of the environment. Unique within its executor, except for instances of different groups.
    pub environment: String,
    /// Slot of the job.
    pub slot: Slot,
    /// Location of the environment.
    #[serde(default, skip_serializing_if = "Locality::is_local")]
    pub locality: Locality,
}

/// Location of an execution environment, as seen from the manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locality {
    /// The environment is on the manager's host, or on the only machine of its runner.
    #[default]
    Local,
    /// The environment is one of several machines with an agent each. If the machine is lost, another machine can run
    /// its job.
    Remote {
        /// Key of the lease in the executor's ledger.
        task_key: String,
        /// Group of the instance.
        group: String,
        /// Virtual machine of the job. `None` means that the job runs in the environment itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<NestedVm>,
    },
}

impl Locality {
    /// Returns whether the environment is on the manager's host, or on the only machine of its runner.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local)
    }
}

/// Virtual machine of one job on an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedVm {
    /// ID that the daemon on the instance assigned.
    pub id: String,
    /// Network address, as seen from the instance.
    pub address: String,
}

impl LeaseRecord {
    /// Returns the record of a lease on the manager's host, or on the only machine of a runner.
    #[must_use]
    pub fn local(environment: impl Into<String>, slot: Slot) -> Self {
        Self { environment: environment.into(), slot, locality: Locality::Local }
    }

    /// Returns the record of a lease on an instance of a group.
    #[must_use]
    pub fn remote(
        group: impl Into<String>,
        environment: impl Into<String>,
        slot: Slot,
        task_key: impl Into<String>,
    ) -> Self {
        let locality = Locality::Remote { task_key: task_key.into(), group: group.into(), vm: None };
        Self { environment: environment.into(), slot, locality }
    }

    /// Returns the ID of the environment, with its group if it is an instance. Unique within the executor.
    #[must_use]
    pub fn unique_id(&self) -> String {
        match &self.locality {
            Locality::Remote { group, .. } => format!("{group}/{}", self.environment),
            Locality::Local => self.environment.clone(),
        }
    }

    /// Returns whether the environment is one of several machines with an agent each.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        !self.locality.is_local()
    }

    /// Returns the key of the lease in the executor's ledger. `None` means that the executor keeps no ledger.
    #[must_use]
    pub fn task_key(&self) -> Option<&str> {
        match &self.locality {
            Locality::Local => None,
            Locality::Remote { task_key, .. } => Some(task_key),
        }
    }

    /// Returns the virtual machine of the job, if any.
    #[must_use]
    pub fn vm(&self) -> Option<&NestedVm> {
        match &self.locality {
            Locality::Local => None,
            Locality::Remote { vm, .. } => vm.as_ref(),
        }
    }
}

/// One job's right to one slot of one environment. [`Lease::release`] returns the slot.
///
/// A lease that is dropped without this call may still have a running job: an executor whose environments outlive the
/// manager keeps the slot for the manager's next start.
pub struct Lease {
    /// Record to store before the lease is used.
    pub record: LeaseRecord,
    /// Environment that the job runs in.
    pub environment: Arc<dyn ExecutionEnvironment>,
    /// Notes for the trace: why earlier slots of the job were lost before the job started.
    pub reschedule_notes: Vec<String>,
    guard: SlotGuard,
}

/// Holds a slot for a job. [`Lease`] describes the effect of dropping the guard without releasing it.
pub trait Guard: Send + Sync {
    /// Announces that the job has ended, so that its slot will soon be released.
    fn announce_end(&self) {}

    /// Releases the slot.
    fn release(self: Box<Self>);
}

/// Guard of a lease.
pub type SlotGuard = Box<dyn Guard>;

impl Lease {
    /// Returns a lease with the slot of `guard`.
    #[must_use]
    pub fn new(record: LeaseRecord, environment: Arc<dyn ExecutionEnvironment>, guard: SlotGuard) -> Self {
        Self { record, environment, reschedule_notes: Vec::new(), guard }
    }

    /// Announces that the job has ended, so that the next job of the project can wait for this slot.
    pub fn announce_end(&self) {
        self.guard.announce_end();
    }

    /// Releases the slot.
    pub fn release(self) {
        self.guard.release();
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("record", &self.record).finish_non_exhaustive()
    }
}

/// Runner and project of a job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotKey {
    /// Short form of the runner's token, as it appears in the paths of its jobs.
    pub runner: String,
    /// ID of the project at the coordinator.
    pub project_id: i64,
}

/// Numbers of one slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// `CI_CONCURRENT_ID`: lowest number that no concurrent job of the runner has.
    pub id: u32,
    /// `CI_CONCURRENT_PROJECT_ID`: lowest number that no concurrent job of the runner in the project has.
    pub project_slot: u32,
    /// Runner and project of the job.
    pub key: SlotKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_instances_with_equal_ids_in_two_groups_are_distinguished() {
        let slot = || Slot { id: 0, project_slot: 0, key: SlotKey { runner: "r".to_owned(), project_id: 1 } };
        let record = |group: &str| LeaseRecord::remote(group, "i-1", slot(), "key");
        assert_ne!(record("a").unique_id(), record("b").unique_id());
        let text = serde_json::to_string(&record("a")).unwrap();
        assert_eq!(serde_json::from_str::<LeaseRecord>(&text).unwrap(), record("a"));
    }
}
