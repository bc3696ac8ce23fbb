//! Capabilities that only some executors and execution environments have.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::result::ResourceUsage;

use super::LeaseRecord;

/// Capability of an executor that creates and deletes environments on demand and keeps a ledger of their leases.
#[async_trait]
pub trait Elastic: Send + Sync {
    /// Reports that the coordinator answered a job request for which a slot was reserved.
    ///
    /// `is_immediate_job` means that the coordinator returned a job without delay.
    fn request_answered(&self, is_immediate_job: bool);

    /// Announces a lease of an earlier manager process, whose environment must be kept until the lease is restored.
    fn announce_lease(&self, record: &LeaseRecord);

    /// Reports that all leases of an earlier manager process have been announced.
    fn leases_announced(&self);

    /// Returns whether the job whose lease had this `task_key` left a suspended environment.
    async fn has_suspended_environment(&self, task_key: &str) -> bool;
}

/// Capability of an environment that several jobs share.
pub trait Sharing: Send + Sync {
    /// Returns the job's share. `None` after the slot was released.
    fn slot_share(&self) -> Option<SlotShare>;

    /// Reports the resources that the job used.
    fn report_usage(&self, used: &ResourceUsage);
}

/// Capability of an environment that can be suspended after its job, for a later job.
#[async_trait]
pub trait Suspend: Send + Sync {
    /// Checks whether the environment can be suspended now.
    ///
    /// # Errors
    /// Reason, as a message.
    async fn can_suspend(&self) -> Result<(), String>;

    /// Suspends the environment for a later job of `owner` and ends the lease. The suspension is durable.
    ///
    /// # Errors
    /// Reason, as a message. The lease continues.
    async fn suspend(&self, owner: &str) -> Result<(), String>;
}

/// Capability of an environment that the executor can replace by another one.
pub trait Replaceable: Send + Sync {
    /// Returns the time for which a job waits if the environment stops responding.
    fn unresponsive_timeout(&self) -> Duration;

    /// Retires an environment that does not respond, so that no other job gets it. `reason` is shown to operators.
    fn retire(&self, reason: &str);
}

/// A job's part of an environment that it shares with other jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotShare {
    /// First slot in the environment, from 0. No other job of the environment has this slot at the same time.
    pub slot: u32,
    /// Number of slots, including `slot`.
    pub slots: u32,
    /// Memory of these slots, in bytes. 0 means unknown.
    pub memory_bytes: u64,
    /// Whether the measured usage decides how many slots later jobs of this kind get.
    pub measured: bool,
    /// `None` means that sticky contexts are disabled, or that the environment has not been reached yet.
    pub sticky: Option<StickyContextSettings>,
    /// Whether no other job ever runs on the machine.
    pub is_exclusive: bool,
    /// Whether the environment is on the manager's host, whose other environments may use the same slot numbers and the
    /// same container engine.
    pub shares_host: bool,
}

/// Storage for the files that jobs of one project and protection level leave for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StickyContextSettings {
    /// Directory of all contexts.
    pub root: PathBuf,
    /// Maximum size of all contexts together, in bytes.
    pub max_size_bytes: u64,
    /// Time without use after which a context is deleted.
    pub max_age: Duration,
}
