//! The job requests in flight: each one a long poll of one lane of one runner, with the lane's own idempotency key.
//!
//! What may be asked, and when, is [`crate::admission`]'s to say, and when a request may be cut; this module does it. A request
//! that is cut ends by itself: what it brought by then is stored and counts.

mod held;
mod info;

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
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::admission::{Outcome, PollId};
use crate::observe::Observer;
use crate::store::{NotTaken, Store, StoreError, StoredJob};

/// What one request came to.
pub(crate) enum Answer {
    /// A job, stored.
    Job(Box<StoredJob>),
    /// Nothing; `changed` as in [`Outcome::Empty`].
    Empty { changed: bool },
    /// The job is one that has its actor.
    Repeated,
    /// It was given up.
    Cut,
    /// No usable answer.
    Failed(ClientError),
    /// The manager's own state cannot be written. A job that it brought is reported.
    Store(StoreError),
}

impl Answer {
    /// What it means for admission.
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Job(_) => Outcome::Job,
            Self::Empty { changed } => Outcome::Empty { changed: *changed },
            Self::Repeated => Outcome::Repeated,
            Self::Cut | Self::Store(_) => Outcome::Cut,
            Self::Failed(ClientError::Forbidden { .. } | ClientError::Setup(_)) => Outcome::Refused,
            Self::Failed(ClientError::Transient { code, retry_after, .. }) => Outcome::Failed {
                overloaded: code.is_some(),
                rate_limited: *code == Some(429),
                retry_after: *retry_after,
            },
            Self::Failed(_) => Outcome::Failed { overloaded: false, rate_limited: false, retry_after: None },
        }
    }
}

/// A request that is over.
pub(crate) struct Answered {
    pub(crate) poll: PollId,
    /// With which settings it was sent.
    pub(crate) runner: Arc<RunnerSettings>,
    /// With which connections.
    pub(crate) client: Option<Client>,
    pub(crate) answer: Answer,
    /// The coordinator gives the same job again to the same idempotency key.
    pub(crate) repeats: bool,
}

/// A request in flight.
struct Flight {
    poll: PollId,
    runner: Arc<RunnerSettings>,
    client: Option<Client>,
    lane: u32,
    cut: CancellationToken,
    /// Unanswered for so long after it was sent, it is held by the front end, or given up by the server.
    held_after: Duration,
    progress: Progress,
    repeats: Arc<AtomicBool>,
    /// Counted as open.
    _open: OpenRequest,
}

/// What the requests of one runner share.
struct Lanes {
    runner: Arc<RunnerSettings>,
    /// None until one can be made.
    client: Option<Client>,
    /// Lanes in use.
    busy: BTreeSet<u32>,
    /// Lanes whose last answer was lost: it may have been a job, which only the same key brings again. They come first;
    /// by their number alone they might wait for as long as lower ones are held by the coordinator.
    doubtful: BTreeSet<u32>,
    /// The queue's version (runner-api 2.3): in memory only.
    last_update: Arc<Mutex<String>>,
    /// The coordinator announced that it gives the same job again to the same idempotency key.
    repeats: Arc<AtomicBool>,
}

impl Lanes {
    /// The lane to ask with next.
    fn next(&self) -> u32 {
        let mut candidates = self.doubtful.iter().copied().chain(0..u32::MAX);
        candidates.find(|lane| !self.busy.contains(lane)).unwrap_or(u32::MAX)
    }
}

/// All requests in flight.
pub(crate) struct Requests {
    store: Arc<Store>,
    observer: Arc<Observer>,
    runners: HashMap<RunnerKey, Lanes>,
    /// How long connections are used again.
    age: ConnectionAge,
    /// Of the settings.
    cut_after: Duration,
    answer_limit: Duration,
    tasks: JoinSet<Answer>,
    flights: HashMap<Id, Flight>,
    /// Shared with each request whose job cannot be stored for the moment.
    waiting: Arc<()>,
}

impl Requests {
    pub(crate) fn new(store: Arc<Store>, observer: Arc<Observer>) -> Self {
        let (tasks, flights) = (JoinSet::new(), HashMap::new());
        Self {
            store,
            observer,
            runners: HashMap::new(),
            age: ConnectionAge::default(),
            cut_after: Duration::default(),
            answer_limit: Duration::default(),
            tasks,
            flights,
            waiting: Arc::default(),
        }
    }

    /// New settings. Requests in flight go on with theirs, and so does a job that one of them brings.
    pub(crate) fn configure(
        &mut self,
        Settings { runners, connection_max_age: age, cut_after, answer_limit, .. }: &Settings,
    ) {
        (self.cut_after, self.answer_limit) = (*cut_after, *answer_limit);
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
                doubtful: BTreeSet::new(),
                last_update: Arc::default(),
                repeats: Arc::default(),
            });
            if *lanes.runner != **runner {
                let same_queue = lanes.runner.url == runner.url && lanes.runner.token == runner.token;
                if !same_queue {
                    lanes.last_update = Arc::default();
                    lanes.repeats = Arc::default();
                }
                lanes.client = None;
                lanes.runner = Arc::clone(runner);
            }
        }
    }

    /// Sends one request of `runner`.
    pub(crate) fn start(&mut self, poll: PollId, runner: &RunnerKey) {
        let Some(lanes) = self.runners.get_mut(runner) else { return };
        let lane = lanes.next();
        lanes.busy.insert(lane);
        let client = match &lanes.client {
            Some(client) => Ok(client.clone()),
            None => {
                crate::client::of(&lanes.runner, self.age).map(|client| self.observer.counted(client, &lanes.runner))
            }
        };
        lanes.client = client.as_ref().ok().cloned();
        let cut = CancellationToken::new();
        let known = lanes.last_update.lock().clone();
        let repeatable = lanes.repeats.load(Ordering::Relaxed);
        let held_after = if repeatable || !known.is_empty() { self.cut_after } else { self.answer_limit };
        let progress = Progress::default();
        let request = Request {
            runner: Arc::clone(&lanes.runner),
            store: Arc::clone(&self.store),
            observer: Arc::clone(&self.observer),
            known,
            last_update: Arc::clone(&lanes.last_update),
            repeats: Arc::clone(&lanes.repeats),
            lane,
            cut: cut.clone(),
            wait: if repeatable { Duration::ZERO } else { held_after },
            progress: progress.clone(),
            waiting: Arc::downgrade(&self.waiting),
        };
        let task = self.tasks.spawn(async move {
            match client {
                Ok(client) => request.send(&client).await,
                Err(error) => Answer::Failed(error),
            }
        });
        let (runner, client, repeats) = (Arc::clone(&lanes.runner), lanes.client.clone(), Arc::clone(&lanes.repeats));
        let open = self.observer.asking(&runner);
        let flight = Flight { poll, runner, client, lane, cut, held_after, progress, repeats, _open: open };
        self.flights.insert(task.id(), flight);
    }

    /// When each request that a server may work on is held by its front end, or given up by it.
    pub(crate) fn held_at(&self) -> impl Iterator<Item = (PollId, Instant)> {
        self.flights.values().filter_map(|flight| Some((flight.poll, flight.progress.sent_at()? + flight.held_after)))
    }

    /// Ends the wait for one request.
    pub(crate) fn cut(&self, poll: PollId) {
        self.flights.values().filter(|flight| flight.poll == poll).for_each(|flight| flight.cut.cancel());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// A job is here that cannot be stored: another one could not be either.
    pub(crate) fn cannot_store(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }

    /// Waits until a request is over; for ever where there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Answered {
        loop {
            let Some(ended) = self.tasks.join_next_with_id().await else { std::future::pending().await };
            let (id, answer) = match ended {
                Ok((id, answer)) => (id, answer),
                Err(error) => {
                    tracing::error!(%error, "a request for a job died");
                    let failed = ClientError::unreachable("job request", "its task died");
                    (error.id(), Answer::Failed(failed))
                }
            };
            let Some(Flight { poll, runner, client, lane, repeats, .. }) = self.flights.remove(&id) else { continue };
            if let Some(lanes) = self.runners.get_mut(&runner.key) {
                lanes.busy.remove(&lane);
                match &answer {
                    Answer::Failed(_) | Answer::Cut => lanes.doubtful.insert(lane),
                    _ => lanes.doubtful.remove(&lane),
                };
            }
            let repeats = repeats.load(Ordering::Relaxed);
            return Answered { poll, runner, client, answer, repeats };
        }
    }
}

/// One request.
struct Request {
    runner: Arc<RunnerSettings>,
    store: Arc<Store>,
    observer: Arc<Observer>,
    /// The queue's version that it tells.
    known: String,
    last_update: Arc<Mutex<String>>,
    repeats: Arc<AtomicBool>,
    lane: u32,
    cut: CancellationToken,
    /// How long it is waited for when it was sent and is cut.
    wait: Duration,
    progress: Progress,
    /// Of [`Requests::cannot_store`].
    waiting: Weak<()>,
}

impl Request {
    /// R1: what it brings is stored before anyone hears of it. The cut ends the wait only, never the storing.
    async fn send(self, client: &Client) -> Answer {
        let key = match self.store.lane_key(&self.runner.key, self.lane) {
            Ok(key) => key,
            Err(error) => return Answer::Store(error),
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
            () = self.can_be_dropped() => return Answer::Cut,
        };
        let offer = match offer {
            Ok(offer) => offer,
            Err(error) => return Answer::Failed(error),
        };
        self.repeats.store(offer.repeats, Ordering::Relaxed);
        // A front end that saw the queue change answers without a version, so that it is asked again (runner-api 2.3).
        let known = &self.known;
        let changed = offer.last_update.as_ref().map_or(!known.is_empty(), |version| version != known);
        if let Some(version) = offer.last_update {
            *self.last_update.lock() = version;
        }
        match offer.job {
            Some(payload) => self.store(client, *payload).await,
            None => Answer::Empty { changed },
        }
    }

    /// Waits until the request is cut and no job is lost with it: nothing of it was sent, or it was at the server for long enough.
    /// An answer that has begun is read to its end, since it may bring a job.
    async fn can_be_dropped(&self) {
        self.cut.cancelled().await;
        if self.progress.cancel_unsent() {
            return;
        }
        // A redirect sends it once more.
        while let Some(sent) = self.progress.sent_at() {
            let until = sent + self.wait;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
        std::future::pending().await
    }

    async fn store(&self, client: &Client, payload: JobPayload) -> Answer {
        let taken = match self.take(payload) {
            Ok(taken) => Ok(taken),
            Err(failed) => self.take_again(client, failed).await,
        };
        match taken {
            Ok(Some(job)) => Answer::Job(Box::new(job)),
            Ok(None) => Answer::Repeated,
            Err(error) => Answer::Store(error),
        }
    }

    fn take(&self, payload: JobPayload) -> Result<Option<StoredJob>, Box<NotTaken>> {
        let began = Instant::now();
        let taken = self.store.take(&self.runner, self.lane, payload);
        self.observer.telemetry().metrics.stored("take", began.elapsed());
        taken
    }
}
