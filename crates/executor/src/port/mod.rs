//! The port: what executors and execution environments can do, and optional capabilities.

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

/// Time after which an unanswered job request counts as held by the coordinator.
pub const REQUEST_HELD_AFTER: std::time::Duration = muster_taskscaler::time::HELD_AFTER;

/// Provides execution environments of one kind.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Returns a receiver of the maximum number of jobs, including jobs that wait for a lease.
    fn capacity(&self) -> watch::Receiver<Capacity>;

    /// Acquires a lease for `job`. Waits until a slot is free. Cancel-safe.
    ///
    /// # Errors
    /// [`ExecutorError`] if the executor cannot provide an environment.
    async fn acquire(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError>;

    /// Restores the lease of an earlier manager process.
    ///
    /// # Errors
    /// [`ExecutorError::SlotTaken`] if the slot is in use. [`ExecutorError::Lost`] if the environment no longer exists;
    /// the executor of the manager's host returns [`ExecutorError::SlotTaken`] in this case, too.
    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError>;

    /// Returns the environment that the record of a lease names, without acquiring the slot.
    ///
    /// The manager uses it to get the result of a job that has ended, and to close the job. `None` means that the
    /// environment ends with its lease, or no longer exists.
    fn environment_without_lease(&self, _record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        None
    }

    /// Returns the capability to create environments on demand, if any.
    fn elastic(&self) -> Option<&dyn Elastic> {
        None
    }
}

/// A job's request for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRequest {
    /// ID of the job.
    pub id: JobId,
    /// Name of the job. Jobs of the same name in one project probably use similar resources.
    pub name: String,
    /// Whether the job's ref is protected.
    pub protected: bool,
    /// CPU request in thousandths of a CPU. `None` means no request.
    pub cpu_milli: Option<u32>,
    /// Memory request in bytes. `None` means no request.
    pub memory_bytes: Option<u64>,
    /// Whether the job uses a sticky context: files that jobs of a project leave for each other.
    pub sticky: bool,
    /// Suspended environment to resume. `None` means a new environment.
    pub resume: Option<ResumeRequest>,
    /// Image of the job's virtual machine, or the reason why the job has no usable image.
    pub image: Result<VmImage, String>,
}

/// A suspended environment that an earlier job left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeRequest {
    /// Task key of the earlier job's lease.
    pub name: String,
    /// Only jobs of the same owner may resume the environment.
    pub owner: String,
}

/// Image of virtual machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmImage {
    /// Name of the image at the daemon that creates the machines.
    pub name: String,
    /// Whether the job chose the image, instead of the configuration. If so, a missing image is the job's fault.
    pub is_of_job: bool,
}

impl EnvironmentRequest {
    /// Parses a CPU quantity in Kubernetes notation (`500m`, `2`) to thousandths. `None` means invalid.
    #[must_use]
    pub fn parse_cpu(text: &str) -> Option<u32> {
        muster_taskscaler::resources::cpu_milli(text)
    }

    /// Parses a memory quantity in Kubernetes notation (`512Mi`, `2g`) to bytes. `None` means invalid.
    #[must_use]
    pub fn parse_memory(text: &str) -> Option<u64> {
        muster_taskscaler::resources::memory_bytes(text)
    }

    /// Returns a request with default values.
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
    /// Human-readable reason why the executor accepts no more jobs. `None` means that the configured limit applies.
    pub limit_reason: Option<Arc<str>>,
}

impl Capacity {
    /// Returns the capacity of an executor with a fixed limit.
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
    /// A lost connection is replaced once a caller has called [`AgentConnection::mark_suspect`].
    ///
    /// # Errors
    /// [`ExecutorError`]. The next call may succeed.
    async fn connect(&self) -> Result<AgentConnection, ExecutorError>;

    /// Returns the directories of jobs. May need to reach the environment first.
    ///
    /// # Errors
    /// [`ExecutorError`]. The next call may succeed.
    async fn directories(&self) -> Result<Directories, ExecutorError>;

    /// Returns the trace lines about the connection to the environment. Complete after the first connection.
    fn trace_lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the capability to be shared by several jobs, if any.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }

    /// Returns the capability to be suspended, if any.
    fn suspendable(&self) -> Option<&dyn Suspend> {
        None
    }

    /// Returns the capability to be replaced, if any.
    fn replaceable(&self) -> Option<&dyn Replaceable> {
        None
    }

    /// Waits until the environment is lost, and returns the reason. Cancel-safe.
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
