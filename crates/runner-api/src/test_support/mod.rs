//! A coordinator in memory, with faults on demand: for tests of the rooms that talk to a coordinator.
//!
//! It is strict where GitLab is strict: a trace piece that does not fit is refused, a wrong token is refused, a job that
//! has ended takes nothing more. A fault hits one call: before it takes effect, or after, so that its answer is lost.

mod gitlab;
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
pub use runners::{PERSONAL_TOKEN, REGISTRATION_TOKEN, Runner};

/// The runner token that the coordinator knows.
pub const RUNNER_TOKEN: &str = "glrt-memory-coordinator";

/// A call that a fault can hit.
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

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with 500 and has no effect.
    Before,
    /// It takes effect, and its answer is lost: the caller sees 500.
    After,
    /// It is refused with 400: the coordinator takes it for wrong.
    Refused,
    /// It is refused with 404, as by something in front of the coordinator that does not know it.
    Missing,
    /// It is never answered. Of traces and resets only.
    Hung,
    /// It is refused, and the length of the trace is said to be 0. Of traces only.
    Emptied,
}

/// What the coordinator knows of one job.
#[derive(Debug, Clone)]
pub struct Job {
    /// As it is handed out.
    pub payload: JobPayload,
    /// Its state.
    pub status: JobStatus,
    /// The bytes received.
    pub trace: Vec<u8>,
    /// Every update, in order.
    pub updates: Vec<UpdateRequest>,
    /// Uploaded files by name.
    pub artifacts: BTreeMap<String, Bytes>,
    /// Every upload that was taken, in order: the file's name, and what it was said to be.
    pub uploads: Vec<(String, ArtifactQuery)>,
    /// Times that the job was handed out, repetitions of the same request not counted.
    pub handouts: u32,
}

impl Job {
    /// The trace as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.trace).into_owned()
    }

    /// The updates that ended the job: one, if all is well.
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
    waiting_max: usize,
    refuses_runners: bool,
    two_phase: bool,
    runners: runners::Runners,
    front: gitlab::Front,
}

/// The coordinator. Share it in an [`Arc`].
#[derive(Debug)]
pub struct MemoryCoordinator {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
    long_poll: Duration,
    interval: Duration,
    patience: Duration,
    /// How GitLab looks for a job; `None` for a coordinator that knows idempotency keys.
    gitlab: Option<gitlab::Looks>,
}

impl Default for MemoryCoordinator {
    fn default() -> Self {
        Self::new(Duration::from_secs(20))
    }
}

impl MemoryCoordinator {
    /// A coordinator that holds job requests for `long_poll`.
    #[must_use]
    pub fn new(long_poll: Duration) -> Self {
        let state = Arc::default();
        let (interval, patience) = (Duration::from_secs(1), Duration::from_secs(30));
        Self { state, changed: watch::Sender::new(0), long_poll, interval, patience, gitlab: None }
    }

    /// For how long a test waits for what it wants to see; 30 s otherwise.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Puts a job at the end of the queue.
    pub fn push(&self, payload: JobPayload) {
        self.change(|state| {
            state.queue.push_back(payload.id);
            state.front.version += 1;
            let job = Job {
                status: JobStatus::Pending,
                trace: Vec::new(),
                updates: Vec::new(),
                artifacts: BTreeMap::new(),
                uploads: Vec::new(),
                handouts: 0,
                payload,
            };
            state.jobs.insert(job.payload.id, job);
        });
    }

    /// The next calls of this kind meet these faults, one each.
    pub fn fail(&self, call: Call, faults: impl IntoIterator<Item = Fault>) {
        self.change(|state| state.faults.entry(call).or_default().extend(faults));
    }

    /// Waits until only so many faults of this kind are left, for as long as it has patience.
    ///
    /// # Panics
    /// After that time.
    pub async fn faults_left(&self, call: Call, left: usize) {
        let mut changes = self.changed.subscribe();
        let now = || self.state.lock().faults.get(&call).map_or(0, VecDeque::len);
        let used = async { while now() > left && changes.changed().await.is_ok() {} };
        tokio::time::timeout(self.patience, used).await.unwrap_or_else(|_| panic!("{} faults are left", now()));
    }

    /// Waits until so many more things have happened here: a call is at least one, a change by the test is one.
    ///
    /// # Panics
    /// After as long as it has patience.
    pub async fn events(&self, count: u64) {
        let mut changes = self.changed.subscribe();
        let wanted = *changes.borrow() + count;
        let come = tokio::time::timeout(self.patience, changes.wait_for(|version| *version >= wanted)).await;
        assert!(come.is_ok(), "there were no {count} more events");
    }

    /// Calls meet no more faults.
    pub fn heal(&self) {
        self.change(|state| state.faults.clear());
    }

    /// From now on no runner token is valid.
    pub fn refuse_runners(&self) {
        self.change(|state| state.refuses_runners = true);
    }

    /// From now on a job that is handed out waits for its acceptance: `PUT` with `running`. Until then it is pending, and
    /// takes nothing else (runner-api 2.6).
    pub fn offer_in_two_phases(&self) {
        self.change(|state| state.two_phase = true);
    }

    /// Takes back a job that was not accepted: the token of its hand-out is refused from now on.
    pub fn take_back(&self, id: JobId) {
        self.change(|state| {
            state.keys.retain(|_, given| *given != id);
            if let Some(job) = state.jobs.get_mut(&id) {
                job.status = JobStatus::Pending;
                job.payload.token.push_str("-again");
            }
        });
    }

    /// Puts a job that was taken back into the queue.
    pub fn offer_again(&self, id: JobId) {
        self.change(|state| {
            state.queue.push_back(id);
            state.front.version += 1;
        });
    }

    /// Sets a job's state, as a person's cancel does.
    pub fn set_status(&self, id: JobId, status: JobStatus) {
        self.change(|state| {
            if let Some(job) = state.jobs.get_mut(&id) {
                job.status = status;
            }
        });
    }

    /// A copy of what is known of a job.
    #[must_use]
    pub fn job(&self, id: JobId) -> Option<Job> {
        self.state.lock().jobs.get(&id).cloned()
    }

    /// Job requests received so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.state.lock().requests
    }

    /// The most job requests that were held at one time.
    #[must_use]
    pub fn waiting_max(&self) -> usize {
        self.state.lock().waiting_max
    }

    /// Waits until the job is as `wanted`, for as long as it has patience.
    ///
    /// # Panics
    /// After that time, with what the coordinator knows of the job.
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
        match tokio::time::timeout(self.patience, found).await {
            Ok(job) => job,
            Err(_) => panic!("the job did not become as expected: {:#?}", self.job(id)),
        }
    }

    /// Waits until the job has ended.
    pub async fn wait_for_end(&self, id: JobId) -> Job {
        self.wait_for(id, |job| job.status.is_complete()).await
    }

    fn change<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        let value = with(&mut self.state.lock());
        self.changed.send_modify(|version| *version += 1);
        value
    }
}

/// A coordinator that listens. Dropped, it stops.
#[derive(Debug)]
pub struct Served {
    /// Its base URL.
    pub url: Url,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves the runner API on a free port of the loopback interface.
///
/// # Errors
/// Where no socket can be had.
pub async fn serve(service: Arc<dyn crate::service::RunnerService>) -> io::Result<Served> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = Url::parse(&format!("http://{}", listener.local_addr()?)).map_err(io::Error::other)?;
    let app = crate::routes::router(service);
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!(%error, "the test coordinator ended");
        }
    });
    Ok(Served { url, task })
}
