//! The job requests in flight.
//!
//! A runner sends its long-poll requests in lanes: each lane has at most one request in flight, and its own idempotency
//! key. A canceled request may still return a job, which is stored and run like any other job.

mod info;
#[cfg(test)]
mod tests;
mod unstored;

pub use info::info;

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use muster_config::settings::{ConnectionAge, RunnerKey, RunnerSettings, Settings};
use muster_runner_api::client::{Client, ClientError, Progress};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::wire::JobRequest;
use muster_telemetry::metrics::OpenRequest;
use parking_lot::Mutex;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::{Outcome, PollId};
use crate::observe::Observer;
use crate::store::{Insertion, Store, StoreError, StoreJobError, StoredJob};

pub(crate) enum PollResult {
    /// A job, which is already stored.
    Job {
        job: Box<StoredJob>,
        /// Client of the request.
        client: Client,
    },
    /// No job. `changed` means that the queue has another version than in the request.
    Empty { changed: bool },
    /// A job that already has an actor.
    Duplicate,
    /// A later assignment of a job whose earlier assignment still has an actor. A repeated request with the lane's key
    /// gets the later assignment again.
    Superseding,
    /// The request was canceled.
    Canceled,
    /// No usable answer.
    Failed(ClientError),
    /// The manager's state cannot be written. If the answer was a new job, it was reported as failed, if possible.
    Store(StoreError),
}

impl PollResult {
    /// Returns the outcome for admission.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Job { .. } => Outcome::Job,
            Self::Empty { changed } => Outcome::Empty { changed: *changed },
            Self::Duplicate | Self::Superseding => Outcome::Duplicate,
            Self::Canceled | Self::Store(_) => Outcome::Canceled,
            Self::Failed(ClientError::Forbidden { .. } | ClientError::Setup(_) | ClientError::Request { .. }) => {
                Outcome::Refused
            }
            Self::Failed(ClientError::Transient { code, retry_after, .. }) => Outcome::Failed {
                overloaded: code.is_some(),
                rate_limited: *code == Some(429),
                retry_after: *retry_after,
            },
            Self::Failed(_) => Outcome::Failed { overloaded: false, rate_limited: false, retry_after: None },
        }
    }
}

pub(crate) struct CompletedPoll {
    pub(crate) poll: PollId,
    /// Settings with which the request was sent.
    pub(crate) runner: Arc<RunnerSettings>,
    pub(crate) answer: PollResult,
    /// Whether the same idempotency key brings the same job.
    pub(crate) is_repeatable: bool,
}

struct InFlightPoll {
    poll: PollId,
    runner: Arc<RunnerSettings>,
    lane: u32,
    cancel: CancellationToken,
    /// Time after sending during which a cancellation could lose a job.
    cancelable_after: Duration,
    progress: Progress,
    is_repeatable: Arc<AtomicBool>,
    _open: OpenRequest,
}

/// State for all requests of one runner.
struct Lanes {
    runner: Arc<RunnerSettings>,
    /// False if the runner was removed from the settings while it had requests in flight.
    is_configured: bool,
    /// `None` until a client can be created.
    client: Option<Client>,
    /// Lanes with a request in flight.
    busy: BTreeSet<u32>,
    /// Lanes whose last answer was or may have been lost, including all lanes of an earlier process. If it was a job,
    /// only the same key returns that job.
    unconfirmed: BTreeSet<u32>,
    /// Whether each answer so far showed that the coordinator ignores idempotency keys. `None` before the first answer.
    ignores_keys: Option<bool>,
    /// Version of the coordinator's queue. Not stored.
    last_update: Arc<Mutex<String>>,
    /// Whether the coordinator announced that the same idempotency key brings the same job.
    is_repeatable: Arc<AtomicBool>,
}

impl Lanes {
    fn next_free(&self) -> u32 {
        let mut candidates = self.unconfirmed.iter().copied().chain(0..u32::MAX);
        candidates.find(|lane| !self.busy.contains(lane)).unwrap_or(u32::MAX)
    }

    /// Records the end of a request. `honors_key`: whether the coordinator honors idempotency keys.
    fn request_ended(&mut self, lane: u32, answer: &PollResult, honors_key: bool) {
        self.busy.remove(&lane);
        match answer {
            // Not sent, but the answer to an earlier request with this key may have been lost.
            PollResult::Failed(ClientError::Setup(_) | ClientError::Request { .. }) => {}
            PollResult::Failed(_) | PollResult::Canceled | PollResult::Store(_) | PollResult::Superseding => {
                self.unconfirmed.insert(lane);
            }
            PollResult::Job { .. } | PollResult::Empty { .. } | PollResult::Duplicate => {
                self.unconfirmed.remove(&lane);
                self.ignores_keys = Some(!honors_key && self.ignores_keys != Some(false));
            }
        }
    }

    /// Returns whether the lane's key may bring a job whose answer was lost.
    fn needs_key(&self, lane: u32) -> bool {
        self.ignores_keys != Some(true) && self.unconfirmed.contains(&lane)
    }

    /// Returns how many requests must be in flight so that each unconfirmed lane has one. 0 means that no further
    /// request is needed.
    ///
    /// 0 before the first answer, which may show that the coordinator ignores keys.
    fn needed_requests(&self) -> usize {
        match self.unconfirmed.difference(&self.busy).count() {
            0 => 0,
            _ if self.ignores_keys != Some(false) => 0,
            idle => self.busy.len() + idle,
        }
    }
}

pub(crate) struct Requests {
    store: Arc<Store>,
    observer: Arc<Observer>,
    runners: HashMap<RunnerKey, Lanes>,
    /// Maximum age of the connections of all clients.
    age: ConnectionAge,
    /// Minimum time from sending a request to its cancellation, from the settings.
    min_hold: Duration,
    answer_timeout: Duration,
    tasks: JoinSet<PollResult>,
    in_flight: HashMap<Id, InFlightPoll>,
    /// Its reference count, minus one, is the number of received jobs that cannot be stored.
    unstored_jobs: Arc<()>,
}

impl Requests {
    pub(crate) fn new(store: Arc<Store>, observer: Arc<Observer>) -> Self {
        let (tasks, in_flight) = (JoinSet::new(), HashMap::new());
        Self {
            store,
            observer,
            runners: HashMap::new(),
            age: ConnectionAge::default(),
            min_hold: Duration::default(),
            answer_timeout: Duration::default(),
            tasks,
            in_flight,
            unstored_jobs: Arc::default(),
        }
    }

    /// Requests in flight, and jobs that they bring, keep their own settings.
    pub(crate) fn configure(
        &mut self,
        Settings { runners, connection_max_age: age, min_hold, answer_timeout, .. }: &Settings,
    ) {
        (self.min_hold, self.answer_timeout) = (*min_hold, *answer_timeout);
        let (age, store) = (*age, &self.store);
        if std::mem::replace(&mut self.age, age) != age {
            self.runners.values_mut().for_each(|lanes| lanes.client = None);
        }
        self.runners.values_mut().for_each(|lanes| lanes.is_configured = false);
        for runner in runners {
            let lanes = self.runners.entry(runner.key.clone()).or_insert_with(|| Lanes {
                runner: Arc::clone(runner),
                is_configured: true,
                client: None,
                busy: BTreeSet::new(),
                unconfirmed: store.lanes_of(&runner.key),
                ignores_keys: None,
                last_update: Arc::default(),
                is_repeatable: Arc::default(),
            });
            lanes.is_configured = true;
            if *lanes.runner != **runner {
                let same_queue = lanes.runner.url == runner.url && lanes.runner.token == runner.token;
                if !same_queue {
                    lanes.last_update = Arc::default();
                    lanes.is_repeatable = Arc::default();
                }
                lanes.client = None;
                lanes.runner = Arc::clone(runner);
            }
        }
        self.forget_removed_runners();
    }

    /// Forgets removed runners without requests in flight, and deletes their lanes whose keys are not needed any more.
    fn forget_removed_runners(&mut self) {
        let store = &self.store;
        self.runners.retain(|key, lanes| {
            let is_kept = lanes.is_configured || !lanes.busy.is_empty();
            if !is_kept && let Err(error) = store.remove_lanes(key, |lane| lanes.needs_key(lane)) {
                tracing::warn!(
                    runner = %key,
                    error = &error as &dyn std::error::Error,
                    "failed to delete the request lanes of a removed runner, keeping them"
                );
            }
            is_kept
        });
    }

    pub(crate) fn start(&mut self, poll: PollId, runner: &RunnerKey) {
        let Some(lanes) = self.runners.get_mut(runner) else { return };
        let lane = lanes.next_free();
        lanes.busy.insert(lane);
        let client = match &lanes.client {
            Some(client) => Ok(client.clone()),
            None => crate::client::new(&lanes.runner, self.age)
                .map(|client| self.observer.counting_client(client, &lanes.runner)),
        };
        lanes.client = client.as_ref().ok().cloned();
        let cancel = CancellationToken::new();
        let known_version = lanes.last_update.lock().clone();
        let is_repeatable = lanes.is_repeatable.load(Ordering::Relaxed);
        let cancelable_after =
            if is_repeatable || !known_version.is_empty() { self.min_hold } else { self.answer_timeout };
        let progress = Progress::default();
        let request = Request {
            runner: Arc::clone(&lanes.runner),
            store: Arc::clone(&self.store),
            observer: Arc::clone(&self.observer),
            known_version,
            last_update: Arc::clone(&lanes.last_update),
            is_repeatable: Arc::clone(&lanes.is_repeatable),
            lane,
            cancel: cancel.clone(),
            wait: if is_repeatable { Duration::ZERO } else { cancelable_after },
            progress: progress.clone(),
            unstored_jobs: Arc::downgrade(&self.unstored_jobs),
        };
        let task = self.tasks.spawn(async move {
            match client {
                Ok(client) => request.send(&client).await,
                Err(error) => PollResult::Failed(error),
            }
        });
        let (runner, is_repeatable) = (Arc::clone(&lanes.runner), Arc::clone(&lanes.is_repeatable));
        let open = self.observer.open_request(&runner);
        let poll_task =
            InFlightPoll { poll, runner, lane, cancel, cancelable_after, progress, is_repeatable, _open: open };
        self.in_flight.insert(task.id(), poll_task);
    }

    /// Returns, for each sent request, the time from which it can be canceled without losing a job.
    pub(crate) fn cancelable_from(&self) -> impl Iterator<Item = (PollId, Instant)> {
        self.in_flight
            .values()
            .filter_map(|poll_task| Some((poll_task.poll, poll_task.progress.sent_at()? + poll_task.cancelable_after)))
    }

    /// Returns, for each runner, how many requests must be in flight to repeat all requests whose answers may have been
    /// lost. 0 means that no further request is needed.
    pub(crate) fn needed_requests(&self) -> impl Iterator<Item = (&RunnerKey, usize)> {
        self.runners.iter().map(|(key, lanes)| (key, lanes.needed_requests()))
    }

    /// Cancels a request. [`Self::next`] still returns its result.
    pub(crate) fn cancel(&self, poll: PollId) {
        self.in_flight
            .values()
            .filter(|poll_task| poll_task.poll == poll)
            .for_each(|poll_task| poll_task.cancel.cancel());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns whether a received job cannot be stored. Further jobs could not be stored either.
    pub(crate) fn is_store_blocked(&self) -> bool {
        Arc::strong_count(&self.unstored_jobs) > 1
    }

    /// Returns the next result of a request. Waits forever if no request is in flight. Cancel-safe.
    pub(crate) async fn next(&mut self) -> CompletedPoll {
        loop {
            let Some(ended) = self.tasks.join_next_with_id().await else { std::future::pending().await };
            let (id, answer) = match ended {
                Ok((id, answer)) => (id, answer),
                Err(error) => {
                    tracing::error!(%error, "job request task failed");
                    let failed = ClientError::unreachable("job request", "the task failed");
                    (error.id(), PollResult::Failed(failed))
                }
            };
            let Some(InFlightPoll { poll, runner, lane, is_repeatable, .. }) = self.in_flight.remove(&id) else {
                continue;
            };
            let is_repeatable = is_repeatable.load(Ordering::Relaxed);
            if let Some(lanes) = self.runners.get_mut(&runner.key) {
                lanes.request_ended(lane, &answer, is_repeatable);
                if !lanes.is_configured {
                    self.forget_removed_runners();
                }
            }
            return CompletedPoll { poll, runner, answer, is_repeatable };
        }
    }
}

struct Request {
    runner: Arc<RunnerSettings>,
    store: Arc<Store>,
    observer: Arc<Observer>,
    /// Version of the queue that the request sends.
    known_version: String,
    last_update: Arc<Mutex<String>>,
    is_repeatable: Arc<AtomicBool>,
    lane: u32,
    cancel: CancellationToken,
    /// Time after sending during which a canceled request waits for its answer.
    wait: Duration,
    progress: Progress,
    /// Upgraded while the received job cannot be stored. [`Requests::is_store_blocked`] counts the strong references.
    unstored_jobs: Weak<()>,
}

impl Request {
    /// A job is stored before anything uses it (R1). A cancellation never interrupts the write.
    async fn send(self, client: &Client) -> PollResult {
        let key = match self.store.lane_key(&self.runner.key, self.lane) {
            Ok(key) => key,
            Err(error) => return PollResult::Store(error),
        };
        let request = JobRequest {
            info: info(&self.runner),
            token: self.runner.token.expose().to_owned(),
            system_id: self.runner.system_id.clone(),
            last_update: self.known_version.clone(),
            idempotency_key: Some(key),
        };
        let mut offer = pin!(client.request_job(&request, &self.progress));
        let offer = tokio::select! {
            biased;
            offer = &mut offer => offer,
            () = self.wait_for_safe_cancellation() => return PollResult::Canceled,
        };
        let offer = match offer {
            Ok(offer) => offer,
            Err(error) => return PollResult::Failed(error),
        };
        self.is_repeatable.store(offer.honors_idempotency_key, Ordering::Relaxed);
        // If the queue changes while GitLab's front end holds the request, the front end answers without a version.
        let known_version = &self.known_version;
        let changed = offer.last_update.as_ref().map_or(!known_version.is_empty(), |version| version != known_version);
        if let Some(version) = offer.last_update {
            *self.last_update.lock() = version;
        }
        match offer.job {
            Some(mut payload) => {
                if self.runner.uses_driver() && !offer.text.is_empty() {
                    payload.muster.get_or_insert_default().answer = Some(offer.text);
                }
                self.store(client, *payload).await
            }
            None => PollResult::Empty { changed },
        }
    }

    /// Waits until the request is canceled and can be dropped without losing a job.
    ///
    /// An answer that has begun is read to its end. If the request is sent again, the wait restarts.
    async fn wait_for_safe_cancellation(&self) {
        self.cancel.cancelled().await;
        if !self.progress.cancel_unsent() {
            self.progress.wait_held(self.wait).await;
        }
    }

    async fn store(&self, client: &Client, payload: JobPayload) -> PollResult {
        let job = payload.id.0;
        let stored = match self.insert_job(payload) {
            Ok(stored) => Ok(stored),
            Err(failed) => self.retry_store(client, failed).await,
        };
        match stored {
            Ok(Insertion::New(job)) => PollResult::Job { job, client: client.clone() },
            Ok(Insertion::Duplicate) => PollResult::Duplicate,
            Ok(Insertion::Superseding) => {
                tracing::info!(job, "job was assigned again, waiting for the end of the earlier assignment");
                PollResult::Superseding
            }
            Err(error) => PollResult::Store(error),
        }
    }

    fn insert_job(&self, payload: JobPayload) -> Result<Insertion, Box<StoreJobError>> {
        let began = Instant::now();
        let stored = self.store.insert_job(&self.runner, self.lane, payload);
        self.observer.telemetry().metrics.state_written("insert", began.elapsed());
        stored
    }
}
