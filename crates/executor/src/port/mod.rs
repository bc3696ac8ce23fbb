//! The port: what every executor and every execution environment can do, and the capabilities that some of them offer.

mod capability;
mod directories;
mod lease;

use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::client::{AgentConnection, AgentError, Reach};
use muster_job::JobId;
use tokio::sync::watch;

use crate::ExecutorError;

pub use capability::{Elastic, Replaceable, Sharing, SlotShare, StickyContextSettings, Suspend};
pub use directories::Directories;
pub use lease::{Guard, Lease, LeaseRecord, Locality, NestedVm, Slot, SlotGuard, SlotKey};

/// Time after which the coordinator is known to hold an unanswered job request.
///
/// The manager's requests and the scaler's demand use the same value.
pub const REQUEST_HELD_AFTER: std::time::Duration = muster_taskscaler::time::HELD_AFTER;

/// Provides execution environments of one kind.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Returns a receiver for the maximum number of jobs. The receiver is notified when the number changes.
    ///
    /// The number includes jobs that wait for a lease. The manager requests no more jobs than this.
    fn capacity(&self) -> watch::Receiver<Capacity>;

    /// Acquires a lease for `job`. Waits until a slot is free. Cancel-safe. `key` has the runner and the project of the job.
    ///
    /// # Errors
    /// [`ExecutorError`] if the executor cannot provide an environment at all.
    async fn acquire(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError>;

    /// Restores the lease of an earlier manager process from its record.
    ///
    /// # Errors
    /// [`ExecutorError::SlotTaken`] if the slot is in use. If the environment no longer exists, [`ExecutorError::Lost`], or
    /// [`ExecutorError::SlotTaken`] on the manager's host.
    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError>;

    /// Returns the environment of a record without acquiring its slot.
    ///
    /// The agent of a returned environment stores the result of a job that has ended, so that the result can be reported after the slot
    /// was released. `None` means that the environment ends with its lease, or no longer exists.
    fn environment_without_lease(&self, _record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        None
    }

    /// Returns the capability to create environments on demand, if the executor has it.
    fn elastic(&self) -> Option<&dyn Elastic> {
        None
    }
}

/// A job's request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRequest {
    /// ID of the job.
    pub id: JobId,
    /// Name of the job. Jobs of the same name in one project are expected to use similar resources.
    pub name: String,
    /// Whether the job's ref is protected.
    pub protected: bool,
    /// CPU request in thousandths of a CPU. `None` means that the job requests nothing.
    pub cpu_milli: Option<u32>,
    /// Memory request in bytes. `None` means that the job requests nothing.
    pub memory_bytes: Option<u64>,
    /// Whether the job uses a sticky context if the environment offers one: files that jobs of a project leave for each other.
    pub sticky: bool,
    /// Suspended environment to resume. `None` requests a new environment.
    pub resume: Option<ResumeRequest>,
    /// Image of the job's virtual machine, for executors that create one per job, or the reason why the job has no usable image.
    pub image: Result<VmImage, String>,
}

/// A suspended environment that an earlier job left ([`Suspend::suspend`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeRequest {
    /// Task key of the earlier job's lease.
    pub name: String,
    /// Owner of the environment. Only jobs of the same owner may resume it.
    pub owner: String,
}

/// Image of virtual machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmImage {
    /// Name of the image at the daemon that creates the machines.
    pub name: String,
    /// Whether the job chose the image. If the image does not exist, the job is then at fault. Otherwise the configuration of the
    /// runner or the instance is at fault.
    pub is_of_job: bool,
}

impl EnvironmentRequest {
    /// Parses a CPU quantity in Kubernetes notation (`500m`, `2`) to thousandths. `None` means that it is not valid.
    #[must_use]
    pub fn parse_cpu(text: &str) -> Option<u32> {
        muster_taskscaler::resources::cpu_milli(text)
    }

    /// Parses a memory quantity in Kubernetes notation (`512Mi`, `2g`) to bytes. `None` means that it is not valid.
    #[must_use]
    pub fn parse_memory(text: &str) -> Option<u64> {
        muster_taskscaler::resources::memory_bytes(text)
    }

    /// Returns the request of a job with default values.
    #[must_use]
    pub fn new(id: JobId) -> Self {
        Self {
            id,
            name: String::new(),
            protected: false,
            cpu_milli: None,
            memory_bytes: None,
            sticky: false,
            resume: None,
            image: Err("the request has no image".to_owned()),
        }
    }
}

/// Number of jobs that an executor accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum number of jobs, including those that wait for a lease.
    pub jobs: usize,
    /// Reason why the executor accepts no more jobs, human-readable. `None` means that the configured limit applies.
    pub limit_reason: Option<Arc<str>>,
}

impl Capacity {
    /// Returns the capacity of an executor that has a configured limit only.
    #[must_use]
    pub fn of(jobs: usize) -> Self {
        Self { jobs, limit_reason: None }
    }
}

/// An execution environment: a machine, or part of one, on which an agent runs jobs.
#[async_trait]
pub trait ExecutionEnvironment: Send + Sync + 'static {
    /// Returns a connection to the environment's agent, and starts the agent if none runs.
    ///
    /// Calling this again replaces a lost connection. A connection that worked before is not checked on each call: a caller that finds it
    /// broken calls [`AgentConnection::mark_suspect`], and the next call replaces it.
    ///
    /// # Errors
    /// [`ExecutorError`]. The next call may succeed.
    async fn connect(&self) -> Result<AgentConnection, ExecutorError>;

    /// Returns the directories of jobs in this environment. May need to reach the environment first.
    ///
    /// # Errors
    /// [`ExecutorError`]. The next call may succeed.
    async fn directories(&self) -> Result<Directories, ExecutorError>;

    /// Returns the trace lines that describe the connection to the environment. Complete after the first connection.
    fn trace_lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the capability to be shared by several jobs, if the environment has it.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }

    /// Returns the capability to be suspended, if the environment has it.
    fn suspendable(&self) -> Option<&dyn Suspend> {
        None
    }

    /// Returns the capability to be replaced, if the environment has it.
    fn replaceable(&self) -> Option<&dyn Replaceable> {
        None
    }

    /// Waits until the environment is known to be lost, and returns the reason. Cancel-safe.
    ///
    /// The default implementation never returns.
    async fn lost(&self) -> String {
        std::future::pending().await
    }
}

#[async_trait]
impl Reach for dyn ExecutionEnvironment {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        Ok(self.connect().await?)
    }
}
