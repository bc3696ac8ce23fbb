//! Capabilities that only some executors and execution environments have. Each is a separate trait.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::result::Used;

use super::LeaseRecord;

/// Capability of an executor that creates and deletes environments as jobs need them, and has a ledger of their leases.
#[async_trait]
pub trait Elastic: Send + Sync {
    /// The coordinator answered a job request that the capacity allowed. `at_once` means: with a job, and sooner than a request is held
    /// for which there is no job.
    fn request_answered(&self, at_once: bool);

    /// Announces a lease of an earlier start that will be restored. It is kept until then.
    fn announce_lease(&self, record: &LeaseRecord);

    /// All leases of an earlier start that are still in use have been announced.
    fn leases_announced(&self);

    /// Returns whether a job left a suspended environment for a later job. `task_key` is that of the job's lease.
    async fn has_suspended(&self, task_key: &str) -> bool;
}

/// Capability of an environment that several jobs share.
pub trait Sharing: Send + Sync {
    /// Returns the job's share, once there was a connection. `None` means that the slot was given back.
    fn slot_share(&self) -> Option<SlotShare>;

    /// Reports what the job used of its share.
    fn report_usage(&self, used: &Used);
}

/// Capability of an environment that can be suspended when its job has ended, for a later job.
#[async_trait]
pub trait Suspend: Send + Sync {
    /// Checks whether the environment could be suspended now.
    ///
    /// # Errors
    /// A message that says why not.
    async fn can_suspend(&self) -> Result<(), String>;

    /// Suspends the environment for a later job of `owner`, and ends the lease. The suspension is stored.
    ///
    /// # Errors
    /// Reason why not, as a message. The lease continues.
    async fn suspend(&self, owner: &str) -> Result<(), String>;
}

/// Capability of an environment that another one can replace.
pub trait Replaceable: Send + Sync {
    /// Returns how long the environment may answer nothing, from when that was noticed, before its job is given up.
    fn unresponsive_timeout(&self) -> Duration;

    /// Retires an environment that answers nothing, for this reason: no other job gets it.
    fn retire(&self, reason: &str);
}

/// A job's part of an environment that it shares with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotShare {
    /// Its slot there, from 0: no other job of the environment has it meanwhile.
    pub slot: u32,
    /// How many slots it has, that one included.
    pub slots: u32,
    /// Memory of these slots, in bytes. 0 means unknown.
    pub memory_bytes: u64,
    /// What it uses says how many slots later jobs of its kind get.
    pub measured: bool,
    /// Storage of sticky contexts. `None` means that they are off.
    pub sticky: Option<StickyContextSettings>,
    /// The machine is the job's alone: no other one is there before, beside or after it.
    pub is_alone: bool,
}

/// Storage for what jobs of one project and protection level leave for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StickyContextSettings {
    /// The directory of all contexts.
    pub root: PathBuf,
    /// All together are brought below this, in bytes.
    pub size_max_bytes: u64,
    /// Time without use after which a sticky context is deleted.
    pub age_max: Duration,
}
