//! The port: what every place where jobs run can do (acquire, restore, connect, lost), and the capabilities that it may offer.

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

/// Time after which a job request without an answer is held by the coordinator. Requests and instances count with the same.
pub const REQUEST_HELD_AFTER: std::time::Duration = muster_taskscaler::time::HELD_AFTER;

/// Provides execution environments of one kind.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// The most jobs that are to be under way here, those that wait for a lease included, and its changes: a manager asks
    /// for no more.
    fn capacity(&self) -> watch::Receiver<Capacity>;

    /// A lease for `job`, which is one of `key`. Waits until there is one; cancel-safe.
    ///
    /// # Errors
    /// [`ExecutorError`] where the provider cannot make an environment at all.
    async fn acquire(&self, key: &SlotKey, job: &EnvironmentRequest) -> Result<Lease, ExecutorError>;

    /// The lease of an earlier start of the manager, by its record.
    ///
    /// # Errors
    /// [`ExecutorError::SlotTaken`] where the record does not fit what is there now; [`ExecutorError::Lost`] where
    /// the environment is gone.
    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError>;

    /// Returns the environment of a record without its slot, if environment and spool are kept without one: a job that has ended there can
    /// be reported after its slot was given back. Most environments end with their leases.
    fn environment_without_lease(&self, _record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        None
    }

    /// Returns the executor as an elastic one, if it is.
    fn elastic(&self) -> Option<&dyn Elastic> {
        None
    }
}

/// A job that asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRequest {
    /// ID of the job.
    pub id: JobId,
    /// Its name: jobs of one name in one project are expected to need about as much.
    pub name: String,
    /// Its ref is protected.
    pub protected: bool,
    /// CPUs that it says it needs, in thousandths.
    pub cpu_milli: Option<u32>,
    /// Memory that it says it needs, in bytes.
    pub memory_bytes: Option<u64>,
    /// It takes a sticky context where the environment has such.
    pub sticky: bool,
    /// The suspended environment that the job runs in. `None` means a new environment.
    pub resume: Option<ResumeRequest>,
    /// The image of the virtual machine that it is to run in, where it gets one of its own; or why it can have none.
    pub image: Result<VmImage, String>,
}

/// An environment that an earlier job left ([`Suspend::suspend`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeRequest {
    /// Task key of that job's lease.
    pub name: String,
    /// Whose jobs may go on in it.
    pub owner: String,
}

/// An image of virtual machines, at whatever makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmImage {
    /// Its name.
    pub name: String,
    /// The job chose it, and not the runner's configuration: a missing image is not the fault of the instance then.
    pub is_of_job: bool,
}

impl EnvironmentRequest {
    /// Returns CPUs in thousandths from a text as Kubernetes writes it: `500m`, `2`. `None` means that it is not valid.
    #[must_use]
    pub fn parse_cpu(text: &str) -> Option<u32> {
        muster_taskscaler::resources::cpu_milli(text)
    }

    /// Returns bytes from a text as Kubernetes writes it: `512Mi`, `2g`. `None` means that it is not valid.
    #[must_use]
    pub fn parse_memory(text: &str) -> Option<u64> {
        muster_taskscaler::resources::memory_bytes(text)
    }

    /// A job of which nothing more is known.
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
            image: Err("nobody said which image".to_owned()),
        }
    }
}

/// How many jobs a provider can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Jobs, those that wait for a lease included.
    pub jobs: usize,
    /// Reason why there are no more, human-readable. `None` means that it is the configuration's own limit.
    pub limit_reason: Option<Arc<str>>,
}

impl Capacity {
    /// A number that needs no reason.
    #[must_use]
    pub fn of(jobs: usize) -> Self {
        Self { jobs, limit_reason: None }
    }
}

/// A place with an agent.
#[async_trait]
pub trait ExecutionEnvironment: Send + Sync + 'static {
    /// A connection to the environment's agent; starts the agent where the environment has none.
    ///
    /// Safe to call repeatedly: that is how a lost connection is replaced. A connection that served is not checked each
    /// time. A caller that finds it broken calls [`AgentConnection::doubt`], and the next call replaces it.
    ///
    /// # Errors
    /// [`ExecutorError`]; it may heal.
    async fn connect(&self) -> Result<AgentConnection, ExecutorError>;

    /// Where jobs find their files in this environment. May have to reach it first.
    ///
    /// # Errors
    /// [`ExecutorError`]; it may heal.
    async fn directories(&self) -> Result<Directories, ExecutorError>;

    /// Returns what the trace shows of the connection to the environment, one line each. Complete once there was a connection.
    fn trace_lines(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the environment as one that jobs share, if they do.
    fn sharing(&self) -> Option<&dyn Sharing> {
        None
    }

    /// Returns the environment as one that can be suspended, if it can.
    fn suspendable(&self) -> Option<&dyn Suspend> {
        None
    }

    /// Returns the environment as one that another can replace, if one can.
    fn replaceable(&self) -> Option<&dyn Replaceable> {
        None
    }

    /// Waits until the environment is known to be gone for good; why. Cancel-safe. Most never are.
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
