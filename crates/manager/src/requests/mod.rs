//! The job requests in flight.
//!
//! Each request is a long poll on a lane of a runner. A lane is one long-poll slot of a runner, with its own idempotency key.
//! [`crate::admission`] decides when a request is sent and when it may be canceled. This module carries out the decisions. A canceled
//! request does not end at once. If it still returns a job, the job is stored and takes a slot.

mod info;
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
use crate::store::{Store, StoreError, StoreJobError, StoredJob};

pub(crate) enum PollResult {
    /// A job, which is already stored.
    Job(Box<StoredJob>),
    /// No job. `changed` is true if the queue has another version than the request sent.
    Empty { changed: bool },
    /// A job that already has an actor.
    Duplicate,
    /// The request was canceled.
    Canceled,
    /// No usable answer.
    Failed(ClientError),
    /// The manager's own state cannot be written.
    /// If the request brought a new job, the manager tried to report it as failed.
    Store(StoreError),
}

impl PollResult {
    /// Returns the outcome that admission records for the result.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Job(_) => Outcome::Job,
            Self::Empty { changed } => Outcome::Empty { changed: *changed },
            Self::Duplicate => Outcome::Duplicate,
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
    /// Client with which the request was sent.
    pub(crate) client: Option<Client>,
    pub(crate) answer: PollResult,
    /// Whether the coordinator answers the same idempotency key with the same job.
    pub(crate) is_repeatable: bool,
}

struct InFlightPoll {
    poll: PollId,
    runner: Arc<RunnerSettings>,
    client: Option<Client>,
    lane: u32,
    cancel: CancellationToken,
    /// Time after which canceling an unanswered request loses no job.
    /// By then, GitLab's front end (Workhorse) holds the request, or the coordinator has abandoned it.
    held_after: Duration,
    progress: Progress,
    is_repeatable: Arc<AtomicBool>,
    _open: OpenRequest,
}

/// State that the requests of one runner share.
struct Lanes {
    runner: Arc<RunnerSettings>,
    /// `None` until a client can be created.
    client: Option<Client>,
    /// Lanes with a request in flight.
    busy: BTreeSet<u32>,
    /// Lanes whose last answer was lost.
    /// The answer may have been a job, which only a request with the same key returns. These lanes are used first. If lanes were used in
    /// numerical order, these might have to wait until the held requests of lower lanes end.
    unconfirmed: BTreeSet<u32>,
    /// Version of the coordinator's queue. It is not stored.
    last_update: Arc<Mutex<String>>,
    /// Whether the coordinator announced that it answers the same idempotency key with the same job.
    is_repeatable: Arc<AtomicBool>,
}

impl Lanes {
    fn next(&self) -> u32 {
        let mut candidates = self.unconfirmed.iter().copied().chain(0..u32::MAX);
        candidates.find(|lane| !self.busy.contains(lane)).unwrap_or(u32::MAX)
    }
}

pub(crate) struct Requests {
    store: Arc<Store>,
    observer: Arc<Observer>,
    runners: HashMap<RunnerKey, Lanes>,
    /// Maximum age of the connections of all clients.
    age: ConnectionAge,
    /// Minimum time that a request is held before it may be canceled, from the settings.
    min_hold: Duration,
    answer_timeout: Duration,
    tasks: JoinSet<PollResult>,
    in_flight: HashMap<Id, InFlightPoll>,
    /// Reference count of the requests whose jobs cannot be stored at the moment.
    /// Each of them holds a clone.
    waiting: Arc<()>,
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
            waiting: Arc::default(),
        }
    }

    /// Applies settings.
    /// Requests in flight continue with their own settings, and so does a job that one of them brings.
    pub(crate) fn configure(
        &mut self,
        Settings { runners, connection_max_age: age, min_hold, answer_timeout, .. }: &Settings,
    ) {
        (self.min_hold, self.answer_timeout) = (*min_hold, *answer_timeout);
        let age = *age;
        if std::mem::replace(&mut self.age, age) != age {
            self.runners.values_mut().for_each(|lanes| lanes.client = None);
        }
        self.runners.retain(|key, lanes| !lanes.busy.is_empty() || runners.iter().any(|runner| runner.key == *key));
        for runner in runners {
            let lanes = self.runners.entry(runner.key.clone()).or_insert_with(|| Lanes {
                runner: Arc::clone(runner),
                client: None,
                busy: BTreeSet::new(),
                unconfirmed: BTreeSet::new(),
                last_update: Arc::default(),
                is_repeatable: Arc::default(),
            });
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
    }

    pub(crate) fn start(&mut self, poll: PollId, runner: &RunnerKey) {
        let Some(lanes) = self.runners.get_mut(runner) else { return };
        let lane = lanes.next();
        lanes.busy.insert(lane);
        let client = match &lanes.client {
            Some(client) => Ok(client.clone()),
            None => {
                crate::client::new(&lanes.runner, self.age).map(|client| self.observer.counted(client, &lanes.runner))
            }
        };
        lanes.client = client.as_ref().ok().cloned();
        let cancel = CancellationToken::new();
        let known = lanes.last_update.lock().clone();
        let is_repeatable = lanes.is_repeatable.load(Ordering::Relaxed);
        let held_after = if is_repeatable || !known.is_empty() { self.min_hold } else { self.answer_timeout };
        let progress = Progress::default();
        let request = Request {
            runner: Arc::clone(&lanes.runner),
            store: Arc::clone(&self.store),
            observer: Arc::clone(&self.observer),
            known,
            last_update: Arc::clone(&lanes.last_update),
            is_repeatable: Arc::clone(&lanes.is_repeatable),
            lane,
            cancel: cancel.clone(),
            wait: if is_repeatable { Duration::ZERO } else { held_after },
            progress: progress.clone(),
            waiting: Arc::downgrade(&self.waiting),
        };
        let task = self.tasks.spawn(async move {
            match client {
                Ok(client) => request.send(&client).await,
                Err(error) => PollResult::Failed(error),
            }
        });
        let (runner, client, is_repeatable) =
            (Arc::clone(&lanes.runner), lanes.client.clone(), Arc::clone(&lanes.is_repeatable));
        let open = self.observer.open_request(&runner);
        let poll_task =
            InFlightPoll { poll, runner, client, lane, cancel, held_after, progress, is_repeatable, _open: open };
        self.in_flight.insert(task.id(), poll_task);
    }

    /// Returns the time from which each sent request can be canceled without losing a job.
    pub(crate) fn held_at(&self) -> impl Iterator<Item = (PollId, Instant)> {
        self.in_flight
            .values()
            .filter_map(|poll_task| Some((poll_task.poll, poll_task.progress.sent_at()? + poll_task.held_after)))
    }

    /// Cancels one request. [`Self::next`] still returns its result.
    pub(crate) fn cancel(&self, poll: PollId) {
        self.in_flight
            .values()
            .filter(|poll_task| poll_task.poll == poll)
            .for_each(|poll_task| poll_task.cancel.cancel());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns whether a received job cannot be stored. Another job could not be stored either.
    pub(crate) fn is_store_blocked(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }

    /// Waits until a request is complete. Never returns without a request in flight. Cancel-safe.
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
            let Some(InFlightPoll { poll, runner, client, lane, is_repeatable, .. }) = self.in_flight.remove(&id)
            else {
                continue;
            };
            if let Some(lanes) = self.runners.get_mut(&runner.key) {
                lanes.busy.remove(&lane);
                match &answer {
                    PollResult::Failed(_) | PollResult::Canceled => lanes.unconfirmed.insert(lane),
                    _ => lanes.unconfirmed.remove(&lane),
                };
            }
            let is_repeatable = is_repeatable.load(Ordering::Relaxed);
            return CompletedPoll { poll, runner, client, answer, is_repeatable };
        }
    }
}

/// Data of one request for its task.
struct Request {
    runner: Arc<RunnerSettings>,
    store: Arc<Store>,
    observer: Arc<Observer>,
    /// Version of the queue that the request sends.
    known: String,
    last_update: Arc<Mutex<String>>,
    is_repeatable: Arc<AtomicBool>,
    lane: u32,
    cancel: CancellationToken,
    /// Time after sending during which a canceled request still waits for its answer.
    wait: Duration,
    progress: Progress,
    /// Counted by [`Requests::is_store_blocked`].
    waiting: Weak<()>,
}

impl Request {
    /// Sends the request.
    /// If it returns a job, stores the job before anything uses it (R1). A cancellation ends the wait for the answer, but never interrupts
    /// the write.
    async fn send(self, client: &Client) -> PollResult {
        let key = match self.store.lane_key(&self.runner.key, self.lane) {
            Ok(key) => key,
            Err(error) => return PollResult::Store(error),
        };
        let request = JobRequest {
            info: info(&self.runner),
            token: self.runner.token.expose().to_owned(),
            system_id: self.runner.system_id.clone(),
            last_update: self.known.clone(),
            idempotency_key: Some(key),
        };
        let mut offer = pin!(client.request_job(&request, &self.progress));
        let offer = tokio::select! {
            biased;
            offer = &mut offer => offer,
            () = self.wait_droppable() => return PollResult::Canceled,
        };
        let offer = match offer {
            Ok(offer) => offer,
            Err(error) => return PollResult::Failed(error),
        };
        self.is_repeatable.store(offer.honors_idempotency_key, Ordering::Relaxed);
        // A front end that saw the queue change answers without a version, so that the manager sends another request.
        let known = &self.known;
        let changed = offer.last_update.as_ref().map_or(!known.is_empty(), |version| version != known);
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

    /// Waits until the request is canceled and dropping it cannot lose a job.
    /// The request was then not sent, or the coordinator has had it long enough.
    ///
    /// An answer that has begun is read to its end, since it may bring a job. If it breaks off and the request is sent again, the wait restarts.
    async fn wait_droppable(&self) {
        self.cancel.cancelled().await;
        if !self.progress.cancel_unsent() {
            self.progress.wait_held(self.wait).await;
        }
    }

    async fn store(&self, client: &Client, payload: JobPayload) -> PollResult {
        let stored = match self.insert_job(payload) {
            Ok(stored) => Ok(stored),
            Err(failed) => self.retry_store(client, failed).await,
        };
        match stored {
            Ok(Some(job)) => PollResult::Job(Box::new(job)),
            Ok(None) => PollResult::Duplicate,
            Err(error) => PollResult::Store(error),
        }
    }

    fn insert_job(&self, payload: JobPayload) -> Result<Option<StoredJob>, Box<StoreJobError>> {
        let began = Instant::now();
        let stored = self.store.insert_job(&self.runner, self.lane, payload);
        self.observer.telemetry().metrics.state_written("insert", began.elapsed());
        stored
    }
}
