//! The port: what a manager needs from a place where jobs run.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::client::{AgentConnection, AgentError, Reach};
use muster_agent_api::result::Used;
use muster_job::JobId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::ExecutorError;

/// Time after which a job request without an answer is held by the coordinator. Requests and instances count with the same.
pub const REQUEST_HELD_AFTER: std::time::Duration = muster_taskscaler::time::HELD_AFTER;

/// Makes environments of one kind.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// The most jobs that are to be under way here, those that wait for a lease included, and its changes: a manager asks
    /// for no more.
    fn capacity(&self) -> watch::Receiver<Capacity>;

    /// The coordinator answered a job request that the capacity allowed. `at_once`: with a job, and sooner than a request is
    /// held that has no job to wait for.
    fn answered(&self, _at_once: bool) {}

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

    /// The environment of a record without its slot, where environment and spool stay without one: a job that has ended
    /// there can be reported after its slot was given back. Most environments end with their leases: none.
    fn without_lease(&self, _record: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        None
    }

    /// Whether a job left an environment here by this name, that of its claim, for a later job.
    async fn has_left(&self, _claim: &str) -> bool {
        false
    }

    /// This lease of an earlier start will be restored: until then it is held.
    fn expect(&self, _record: &LeaseRecord) {}

    /// All leases of an earlier start that are still wanted have been expected.
    fn expected_all(&self) {}
}

/// A job that asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentRequest {
    /// Which.
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
    /// What another job left, and what it is to run in; none: a place of its own.
    pub resume: Option<ResumeRequest>,
    /// The image of the virtual machine that it is to run in, where it gets one of its own; or why it can have none.
    pub image: Result<VmImage, String>,
}

/// An environment that an earlier job left ([`ExecutionEnvironment::suspend`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeRequest {
    /// The claim of that job's lease.
    pub name: String,
    /// Whose jobs may go on in it.
    pub owner: String,
}

/// An image of virtual machines, at whatever makes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmImage {
    /// Its name.
    pub name: String,
    /// The job chose it, and not the runner's configuration: that there is none of that name is no fault of the instance.
    pub is_of_job: bool,
}

impl EnvironmentRequest {
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

/// A job's part of an environment that it shares with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotShare {
    /// Its slot there, from 0: no other job of the environment has it meanwhile.
    pub slot: u32,
    /// How many slots it has, that one included.
    pub slots: u32,
    /// The memory that these stand for, in bytes; 0: nobody said.
    pub memory_bytes: u64,
    /// What it uses says how many slots later jobs of its kind get.
    pub measured: bool,
    /// Where sticky contexts are kept; none: nowhere.
    pub sticky: Option<StickyContextSettings>,
    /// The machine is the job's alone: no other one is there before, beside or after it.
    pub is_alone: bool,
}

/// Where an environment keeps what jobs of one project and protection level leave for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StickyContextSettings {
    /// The directory of all contexts.
    pub root: PathBuf,
    /// All together are brought below this, in bytes.
    pub size_max_bytes: u64,
    /// One that was not used for so long goes.
    pub age_max: Duration,
}

/// How many jobs a provider can have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Jobs, those that wait for a lease included.
    pub jobs: usize,
    /// Why there are no more, for people; none where that is the configuration's own number.
    pub why: Option<Arc<str>>,
}

impl Capacity {
    /// A number that needs no reason.
    #[must_use]
    pub fn of(jobs: usize) -> Self {
        Self { jobs, why: None }
    }
}

/// A place with an agent.
#[async_trait]
pub trait ExecutionEnvironment: Send + Sync + 'static {
    /// A connection to the environment's agent; starts the agent where the environment has none.
    ///
    /// Safe to call again and again: that is how a lost connection is mended. One that served is not checked each
    /// time; whoever finds it broken says so with [`AgentConnection::doubt`], and the next call mends it.
    ///
    /// # Errors
    /// [`ExecutorError`]; it may heal.
    async fn connect(&self) -> Result<AgentConnection, ExecutorError>;

    /// Where jobs find their files in this environment. May have to reach it first.
    ///
    /// # Errors
    /// [`ExecutorError`]; it may heal.
    async fn directories(&self) -> Result<Directories, ExecutorError>;

    /// What the trace tells of the way here, one line each; complete once there was a connection.
    fn words(&self) -> Vec<String> {
        Vec::new()
    }

    /// The job's part, where others run there too; complete once there was a connection.
    fn share(&self) -> Option<SlotShare> {
        None
    }

    /// What the job used of its part.
    fn used(&self, _used: &Used) {}

    /// Whether it could be suspended when the job has ended, for a later job.
    ///
    /// # Errors
    /// Why not, for people.
    async fn may_suspend(&self) -> Result<(), String> {
        Err("jobs do not run on instances of their own".to_owned())
    }

    /// The job has ended: the environment is suspended for a later job of `owner`, and the lease is over. It is stored.
    ///
    /// # Errors
    /// Why not, for people; the lease goes on.
    async fn suspend(&self, _owner: &str) -> Result<(), String> {
        self.may_suspend().await
    }

    /// How long the environment may answer nothing, from when that was noticed, before its job is given up, where others can
    /// take its place. None: it is hoped for as long as the manager says.
    fn silence_max(&self) -> Option<Duration> {
        None
    }

    /// It answers nothing, for this reason, and nobody knows what goes on there: no other job is to get it.
    fn give_up(&self, _why: &str) {}

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

/// The directories of an environment. Absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Below it jobs are checked out.
    pub builds: PathBuf,
    /// Below it caches are kept.
    pub cache: PathBuf,
    /// Jobs of different projects share the environment: `CI_SHARED_ENVIRONMENT`, and the layout of job-execution 2.9.
    pub shared: bool,
}

impl Directories {
    /// With those that a runner's configuration names instead. A relative one starts where the environment's own are.
    #[must_use]
    pub fn with(self, builds: Option<&Path>, cache: Option<&Path>) -> Self {
        let instead = |own: PathBuf, named: Option<&Path>| match named {
            None => own,
            Some(named) => resolved(&own.parent().unwrap_or(Path::new("/")).join(named)),
        };
        Self { builds: instead(self.builds, builds), cache: instead(self.cache, cache), shared: self.shared }
    }
}

/// The path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
    }
    whole
}

/// What is stored of a lease, before it is used (life-of-a-job R2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// The environment's id at its provider.
    pub environment: String,
    /// The slot.
    pub slot: Slot,
    /// The name under which the provider has the lease in books of its own; empty where it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// The virtual machine on the environment that was made for the job; none: it runs on the environment itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<NestedVm>,
}

/// A virtual machine on an instance, which one job has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedVm {
    /// Its name at what made it.
    pub id: String,
    /// Its address, as the instance sees it.
    pub address: String,
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
    /// What became of the slots that the job got before this one, where nothing was started.
    pub moved: Vec<String>,
    guard: SlotGuard,
}

/// Holds a slot.
pub trait Guard: Send + Sync {
    /// The job has no more use for the slot.
    fn release(self: Box<Self>);
}

/// A slot that is held.
pub type SlotGuard = Box<dyn Guard>;

impl Lease {
    /// A lease that holds `guard`.
    #[must_use]
    pub fn new(record: LeaseRecord, environment: Arc<dyn ExecutionEnvironment>, guard: SlotGuard) -> Self {
        Self { record, environment, moved: Vec::new(), guard }
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
