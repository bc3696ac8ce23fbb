//! In-memory coordinator with fault injection, for tests.
//!
//! As strict as GitLab: rejects trace pieces at wrong positions, wrong tokens, and calls for finished jobs. A fault
//! applies to one call, before or after its effect.

mod gitlab;
mod relay;
mod runners;
mod service;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_job::{JobId, JobStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

use crate::payload::JobPayload;
use crate::service::ArtifactQuery;
use crate::wire::UpdateRequest;
pub use relay::{Http2, Relay};
pub use runners::{PERSONAL_TOKEN, REGISTRATION_TOKEN, Runner};

/// Token of the initial runner.
pub const RUNNER_TOKEN: &str = "glrt-memory-coordinator";

/// Kind of call into which a fault can be injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the service")]
pub enum Call {
    Register,
    Verify,
    Unregister,
    ResetToken,
    RequestJob,
    UpdateJob,
    AppendTrace,
    UploadArtifact,
}

/// Fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with 500, without effect.
    FailBefore,
    /// Takes effect, but fails with 500, as if the response was lost.
    FailAfter,
    /// Fails with 400, as an invalid call.
    Rejected,
    /// Fails with 404, as from a proxy.
    Missing,
    /// Never responds. Only for traces and token resets.
    Hung,
    /// Responds with 416 and a length of 0, as if the trace was lost. Only for traces.
    TraceReset,
}

/// Job of the coordinator.
#[derive(Debug, Clone)]
pub struct Job {
    /// Payload for managers.
    pub payload: JobPayload,
    /// Status of the job.
    pub status: JobStatus,
    /// Received trace.
    pub trace: Vec<u8>,
    /// Accepted updates in order.
    pub updates: Vec<UpdateRequest>,
    /// Uploaded files by name.
    pub artifacts: BTreeMap<String, Bytes>,
    /// Accepted uploads in order: file name and query parameters.
    pub uploads: Vec<(String, ArtifactQuery)>,
    /// Number of assignments, except repetitions for an idempotency key.
    pub assignments: u32,
}

impl Job {
    /// Returns the trace as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.trace).into_owned()
    }

    /// Returns the updates that ended the job, of which there should be one.
    pub fn reports(&self) -> impl Iterator<Item = &UpdateRequest> {
        self.updates.iter().filter(|update| matches!(&*update.state, "success" | "failed"))
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<JobId>,
    jobs: BTreeMap<JobId, Job>,
    keys: HashMap<String, JobId>,
    faults: HashMap<Call, VecDeque<Fault>>,
    requests: usize,
    waiting: usize,
    max_waiting: usize,
    refuses_runners: bool,
    /// Whether an assigned job waits for its manager's acceptance.
    two_phase: bool,
    runners: runners::Runners,
    front: gitlab::Front,
}

/// In-memory coordinator.
#[derive(Debug)]
pub struct MemoryCoordinator {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    long_poll: Duration,
    interval: Duration,
    wait_timeout: Duration,
    /// Set if the coordinator imitates GitLab. `None` means that it honors idempotency keys.
    gitlab: Option<gitlab::JobSearch>,
}

impl Default for MemoryCoordinator {
    fn default() -> Self {
        Self::new(Duration::from_secs(20))
    }
}

impl MemoryCoordinator {
    /// Creates a coordinator that holds job requests for `long_poll`.
    #[must_use]
    pub fn new(long_poll: Duration) -> Self {
        let state = Arc::default();
        let (interval, wait_timeout) = (Duration::from_secs(1), Duration::from_secs(30));
        Self { state, changed: watch::Sender::new(0), long_poll, interval, wait_timeout, gitlab: None }
    }

    /// Sets the timeout of the `wait_*` methods. Defaults to 30 s.
    #[must_use]
    pub fn with_wait_timeout(self, wait_timeout: Duration) -> Self {
        Self { wait_timeout, ..self }
    }

    /// Appends a job to the queue.
    pub fn enqueue(&self, payload: JobPayload) {
        self.change(|state| {
            state.queue.push_back(payload.id);
            state.front.version += 1;
            let job = Job {
                status: JobStatus::Pending,
                trace: Vec::new(),
                updates: Vec::new(),
                artifacts: BTreeMap::new(),
                uploads: Vec::new(),
                assignments: 0,
                payload,
            };
            state.jobs.insert(job.payload.id, job);
        });
    }

    /// Injects faults into the next calls of this kind, one by one.
    pub fn fail(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        self.change(|state| state.faults.entry(call).or_default().extend(faults));
    }

    /// Waits until at most `left` faults for this kind of call remain.
    ///
    /// # Panics
    /// After the wait timeout.
    pub async fn wait_for_faults_left(&self, call: Call, left: usize) {
        let mut changes = self.changed.subscribe();
        let now = || self.state.lock().faults.get(&call).map_or(0, VecDeque::len);
        let used = async { while now() > left && changes.changed().await.is_ok() {} };
        tokio::time::timeout(self.wait_timeout, used).await.unwrap_or_else(|_| panic!("{} faults remain", now()));
    }

    /// Waits for further events: calls, and changes by the test.
    ///
    /// # Panics
    /// After the wait timeout.
    pub async fn wait_for_events(&self, count: u64) {
        let mut changes = self.changed.subscribe();
        let wanted = *changes.borrow() + count;
        let result = tokio::time::timeout(self.wait_timeout, changes.wait_for(|version| *version >= wanted)).await;
        assert!(result.is_ok(), "fewer than {count} further events");
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.change(|state| state.faults.clear());
    }

    /// Rejects all later job requests, as if the runner tokens were invalid.
    pub fn refuse_runners(&self) {
        self.change(|state| state.refuses_runners = true);
    }

    /// Makes assigned jobs pending until `PUT` with `running`, and rejects other calls until then
    /// (docs/spec/runner-api.md, section 2.6).
    pub fn offer_in_two_phases(&self) {
        self.change(|state| state.two_phase = true);
    }

    /// Revokes the assignment and the token of a job that its manager has not accepted.
    pub fn take_back(&self, id: JobId) {
        self.change(|state| {
            state.keys.retain(|_, assigned| *assigned != id);
            if let Some(job) = state.jobs.get_mut(&id) {
                job.status = JobStatus::Pending;
                job.payload.token.push_str("-again");
            }
        });
    }

    /// Appends a job to the queue again after [`Self::take_back`].
    pub fn offer_again(&self, id: JobId) {
        self.change(|state| {
            state.queue.push_back(id);
            state.front.version += 1;
        });
    }

    /// Sets the status of a job, for example to cancel it.
    pub fn set_status(&self, id: JobId, status: JobStatus) {
        self.change(|state| {
            if let Some(job) = state.jobs.get_mut(&id) {
                job.status = status;
            }
        });
    }

    /// Returns a copy of a job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<Job> {
        self.state.lock().jobs.get(&id).cloned()
    }

    /// Returns the number of job requests so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.state.lock().requests
    }

    /// Returns the maximum number of job requests held at once.
    #[must_use]
    pub fn max_waiting(&self) -> usize {
        self.state.lock().max_waiting
    }

    /// Waits until this number of job requests is held.
    ///
    /// # Panics
    /// After the wait timeout.
    pub async fn wait_for_held_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.waiting == count)).await;
        assert!(waited.is_ok(), "{} requests instead of {count} are held", self.state.lock().waiting);
    }

    /// Waits until `wanted` returns true for a job.
    ///
    /// # Panics
    /// After the wait timeout, with the state of the job.
    #[expect(clippy::panic, reason = "a failed wait is a failed test")]
    pub async fn wait_for(&self, id: JobId, wanted: impl Fn(&Job) -> bool) -> Job {
        let mut changes = self.changed.subscribe();
        let found = async {
            loop {
                if let Some(job) = self.job(id).filter(|job| wanted(job)) {
                    return job;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let Ok(job) = tokio::time::timeout(self.wait_timeout, found).await else {
            panic!("the job did not reach the expected state: {:#?}", self.job(id));
        };
        job
    }

    /// Waits until the job has finished.
    pub async fn wait_for_end(&self, id: JobId) -> Job {
        self.wait_for(id, |job| job.status.is_complete()).await
    }

    fn change<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let value = with(&mut self.state.lock());
        self.changed.send_modify(|version| *version += 1);
        value
    }
}

/// Running server of a coordinator, until dropped.
#[derive(Debug)]
pub struct Served {
    /// Base URL.
    pub url: Url,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves the runner API on a free loopback port.
///
/// # Errors
/// The port cannot be opened.
pub async fn serve(service: Arc<dyn crate::service::RunnerService>) -> io::Result<Served> {
    serve_on(std::net::TcpListener::bind(("127.0.0.1", 0))?, service)
}

/// Serves the runner API on an open port.
///
/// # Errors
/// The listener cannot be used.
pub fn serve_on(
    listener: std::net::TcpListener,
    service: Arc<dyn crate::service::RunnerService>,
) -> io::Result<Served> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let url = Url::parse(&format!("http://{}", listener.local_addr()?)).map_err(io::Error::other)?;
    let app = crate::routes::router(service);
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "the test coordinator failed");
        }
    });
    Ok(Served { url, task })
}
