//! Asking for jobs: several long polls at once, each a lane with its own idempotency key.
//!
//! How many is adapted: a job that comes doubles the number, since more may wait behind it; an empty answer takes one
//! away. There are never more than there are free slots. A coordinator that holds no requests is asked again only
//! after a while: the one place where this protocol leaves nothing but polling.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use muster_runner_api::client::ClientError;
use muster_runner_api::payload::JobPayload;
use muster_runner_api::retry::{Backoff, Policy};
use muster_runner_api::wire::{Info, JobRequest};
use parking_lot::Mutex;
use rand::Rng;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;

use crate::job::Context;
use crate::manager::ManagerError;
use crate::store::StoreError;

const LANES_MAX: usize = 16;
const LANES_FIRST: usize = 2;
/// An empty answer that comes faster than this was not held by the coordinator.
const HELD: Duration = Duration::from_secs(1);
/// Between two requests that are not held: GitLab Runner's `check_interval` (runner-api 6.2).
const CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// Refusals of the token in a row, after which the manager gives up.
const REFUSALS_MAX: u32 = 3;
const BACKOFF: Policy = Policy { first: Duration::from_millis(200), cap: Duration::from_secs(60), attempts: None };

/// What came of waiting.
pub(crate) enum Arrival {
    /// A job, stored.
    Job(Box<JobPayload>),
    /// Nothing for now.
    Nothing,
}

/// What one request came to.
enum Answer {
    Job(Box<JobPayload>),
    Empty {
        held: bool,
    },
    /// The job is one that has its actor.
    Repeated,
    Failed(ClientError),
    Store(StoreError),
}

/// The lanes.
pub(crate) struct Requests {
    context: Arc<Context>,
    lanes: JoinSet<Answer>,
    /// The lane of each request in flight.
    busy: HashMap<Id, u32>,
    idle: BTreeSet<u32>,
    wanted: usize,
    last_update: Arc<Mutex<String>>,
    backoff: Backoff,
    refusals: u32,
    /// After a failure, or an empty answer that was not held: no request starts before.
    not_before: Option<Instant>,
    /// What [`Self::fill`] may have in flight.
    allowed: usize,
}

impl Requests {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            lanes: JoinSet::new(),
            busy: HashMap::new(),
            idle: (0..LANES_MAX).filter_map(|lane| u32::try_from(lane).ok()).collect(),
            wanted: LANES_FIRST,
            last_update: Arc::default(),
            backoff: Backoff::new(BACKOFF),
            refusals: 0,
            not_before: None,
            allowed: 0,
        }
    }

    /// Starts requests until as many are in flight as are wanted, but no more than `free`.
    pub(crate) fn fill(&mut self, free: usize) {
        self.allowed = free;
        if self.not_before.is_some_and(|earliest| Instant::now() < earliest) {
            return;
        }
        self.not_before = None;
        while self.lanes.len() < self.wanted.min(free) {
            let Some(lane) = self.idle.pop_first() else { return };
            let (context, last_update) = (Arc::clone(&self.context), Arc::clone(&self.last_update));
            let request = self.lanes.spawn(async move { ask(&context, lane, &last_update).await });
            self.busy.insert(request.id(), lane);
        }
    }

    /// Waits until a request is answered, or until requests may start again. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Arrival, ManagerError> {
        let pause = self.not_before.filter(|_| self.lanes.len() < self.wanted.min(self.allowed));
        let answer = tokio::select! {
            Some(answer) = self.lanes.join_next_with_id(), if !self.lanes.is_empty() => answer,
            () = async { tokio::time::sleep_until(pause.unwrap_or_else(Instant::now)).await }, if pause.is_some() => {
                return Ok(Arrival::Nothing);
            }
            else => std::future::pending().await,
        };
        let id = match &answer {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        // Also the lane of a request that died is free again.
        self.idle.extend(self.busy.remove(&id));
        match answer {
            Ok((_, answer)) => self.judge(answer),
            Err(error) => {
                tracing::error!(%error, "a request for a job died");
                self.not_before = Some(Instant::now() + CHECK_INTERVAL);
                Ok(Arrival::Nothing)
            }
        }
    }

    /// Ends the requests in flight. A job that is handed out meanwhile is asked for again with its lane's key by a later
    /// start, or given back by the coordinator when its hand-out lease is over (R1).
    pub(crate) async fn stop(&mut self) {
        self.lanes.shutdown().await;
    }

    fn judge(&mut self, answer: Answer) -> Result<Arrival, ManagerError> {
        match answer {
            Answer::Job(payload) => {
                self.worked();
                self.wanted = (self.wanted * 2).min(LANES_MAX);
                return Ok(Arrival::Job(payload));
            }
            Answer::Repeated => self.worked(),
            Answer::Empty { held } => {
                self.worked();
                self.wanted = self.wanted.saturating_sub(1).max(1);
                if !held {
                    let jitter = rand::rng().random_range(0.9..1.1);
                    self.not_before = Some(Instant::now() + CHECK_INTERVAL.mul_f64(jitter));
                }
            }
            Answer::Failed(error) => {
                if matches!(error, ClientError::Forbidden { .. }) {
                    self.refusals += 1;
                    if self.refusals >= REFUSALS_MAX {
                        return Err(ManagerError::TokenRefused { url: self.context.runner.url.clone() });
                    }
                }
                let wait = self.backoff.next_wait(error.transient().flatten()).unwrap_or(BACKOFF.cap);
                let failures = self.backoff.failures();
                tracing::warn!(%error, failures, wait_ms = wait.as_millis(), "job request failed, will be repeated");
                self.wanted = 1;
                self.not_before = Some(Instant::now() + wait);
            }
            Answer::Store(error) => return Err(error.into()),
        }
        Ok(Arrival::Nothing)
    }

    fn worked(&mut self) {
        self.backoff.reset();
        self.refusals = 0;
    }
}

/// One request. R1: what it brings is stored before anyone hears of it.
async fn ask(context: &Context, lane: u32, last_update: &Mutex<String>) -> Answer {
    let key = match context.store.lane_key(lane).await {
        Ok(key) => key,
        Err(error) => return Answer::Store(error),
    };
    let known = last_update.lock().clone();
    let request = JobRequest {
        info: info(context),
        token: context.runner.token.expose().to_owned(),
        system_id: context.runner.system_id.clone(),
        last_update: known,
        idempotency_key: Some(key),
    };
    let asked = Instant::now();
    let offer = match context.client.request_job(&request).await {
        Ok(offer) => offer,
        Err(error) => return Answer::Failed(error),
    };
    if let Some(version) = offer.last_update {
        *last_update.lock() = version;
    }
    let Some(payload) = offer.job else { return Answer::Empty { held: asked.elapsed() >= HELD } };
    match context.store.take(lane, &payload).await {
        Ok(true) => Answer::Job(payload),
        Ok(false) => Answer::Repeated,
        Err(error) => Answer::Store(error),
    }
}

/// What this manager is and can do (runner-api 2.2).
fn info(context: &Context) -> Info {
    const FEATURES: &[&str] = &[
        "variables",
        "shared",
        "artifacts",
        "artifacts_exclude",
        "upload_multiple_artifacts",
        "upload_raw_artifacts",
        "cache",
        "fallback_cache_keys",
        "refspecs",
        "masking",
        "raw_variables",
        "multi_build_steps",
        "return_exit_code",
        "trace_reset",
        "trace_checksum",
        "trace_size",
        "cancelable",
        "cancel_gracefully",
        "native_steps_integration",
    ];
    Info {
        name: "muster".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: std::env::consts::OS.to_owned(),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64".to_owned(),
            "aarch64" => "arm64".to_owned(),
            other => other.to_owned(),
        },
        executor: "shell".to_owned(),
        shell: context.runner.shell.clone(),
        features: FEATURES.iter().map(|feature| ((*feature).to_owned(), true)).collect(),
        config: [("gpus".to_owned(), String::new())].into(),
        ..Info::default()
    }
}
