//! Leases: one job's right to one slot of one execution environment.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ExecutionEnvironment;

/// Record of a lease. The manager stores it before it uses the lease (R2 in `docs/spec/life-of-a-job.md`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// ID of the environment. Unique within its executor, except for instances, whose IDs are unique only within their group.
    pub environment: String,
    /// Slot of the job in the environment.
    pub slot: Slot,
    /// Location of the environment.
    #[serde(default, skip_serializing_if = "Locality::is_local")]
    pub locality: Locality,
}

/// Location of an execution environment, as seen from the manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locality {
    /// The environment is on the manager's host, or on the only machine of its runner, so no other environment can take its jobs.
    #[default]
    Local,
    /// The environment is one of several machines with an agent each.
    ///
    /// Such a machine can be lost while the manager keeps running, and a job that has not started can be rescheduled to another machine.
    Remote {
        /// Key of the lease in the executor's ledger.
        task_key: String,
        /// Group of the instance.
        group: String,
        /// Virtual machine that was created for the job in the environment. `None` means that the job runs in the environment itself.
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

/// Virtual machine on an instance, used by one job.
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

    /// Returns the ID of the environment, with its group if it has one. Unique within the executor.
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
/// [`Lease::release`] returns the slot. If the lease is dropped without this call, the job may still be running: an executor whose environments
/// outlive the manager reserves the slot for the manager's next start.
pub struct Lease {
    /// Record to store before the lease is used.
    pub record: LeaseRecord,
    /// Environment that the job runs in.
    pub environment: Arc<dyn ExecutionEnvironment>,
    /// Notes for the trace: why earlier slots of the job were lost before anything was started in them.
    pub reschedule_notes: Vec<String>,
    guard: SlotGuard,
}

/// Holds a slot for a job. [`Lease`] describes the effect of dropping the guard without releasing it.
pub trait Guard: Send + Sync {
    /// Announces that the job has ended, and that its slot will be released soon.
    fn announce_end(&self) {}

    /// Releases the slot: the job no longer needs it.
    fn release(self: Box<Self>);
}

/// Guard of a held slot.
pub type SlotGuard = Box<dyn Guard>;

impl Lease {
    /// Returns a lease that holds `guard`.
    #[must_use]
    pub fn new(record: LeaseRecord, environment: Arc<dyn ExecutionEnvironment>, guard: SlotGuard) -> Self {
        Self { record, environment, reschedule_notes: Vec::new(), guard }
    }

    /// Announces that the job has ended, and that its slot will be released soon. The next job of the project can then wait for
    /// this slot instead of taking another one.
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

/// Runner and project of a job. `CI_CONCURRENT_ID` numbers the concurrent jobs of the runner, and `CI_CONCURRENT_PROJECT_ID` the
/// concurrent jobs of the runner in the project.
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
    /// `CI_CONCURRENT_PROJECT_ID`: lowest number that no concurrent job of the runner in the same project has.
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
