//! Renews expiring runner authentication tokens, and saves the new tokens in `config.toml`.
//!
//! ```text
//! settings --plan::renewal_time--> wait --> lock the file, check that it is writable --> reset at the coordinator --> save --> reload
//! ```
//!
//! The coordinator refuses the old token as soon as the new one exists, so a reset is requested only while the file is
//! writable. Shortly before the old token expires, the reset is requested anyway. A token that could not be saved is
//! used from memory, and saving it is retried.

mod plan;
mod renew;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use muster_config::edit::NewToken;
use muster_config::settings::{RunnerSettings, Settings};
use muster_job::Secret;
use muster_runner_api::retry::{Backoff, Policy};
use muster_telemetry::Telemetry;
use muster_telemetry::metrics::EntryMetrics;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock::WallClock;
use crate::observe::Observer;
use plan::Step;

/// Time between attempts. It may be long, because usually a quarter of the token's lifetime is left at the first
/// attempt.
const RETRY_BACKOFF: Policy =
    Policy { first: Duration::from_secs(5), cap: Duration::from_secs(15 * 60), attempts: None };
/// Minimum time between two resets, for a coordinator whose tokens expire at once.
const MIN_RESET_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of renewed tokens whose metric series are retained.
const MAX_SERIES: usize = 50;
/// Maximum time that the exit waits for a reset in progress.
const RESET_TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Default)]
pub(crate) struct RenewedTokens(Arc<Mutex<HashMap<String, NewToken>>>);

impl RenewedTokens {
    fn apply(&self, mut settings: Settings) -> Settings {
        let renewed = self.0.lock();
        for runner in &mut settings.runners {
            if let Some(new) = renewed.get(runner.token.expose()) {
                let runner = Arc::make_mut(runner);
                runner.token = new.token.clone();
                runner.token_obtained_at = new.obtained_at.map(SystemTime::from);
                runner.token_expires_at = new.expires_at.map(SystemTime::from);
            }
        }
        settings
    }

    /// If `token` is a renewed token that is not saved yet, returns the old token, which is still in the file.
    /// Otherwise, returns `token` itself.
    fn origin(&self, token: &Secret) -> Secret {
        let renewed = self.0.lock();
        let origin = renewed.iter().find(|(_, new)| new.token.expose() == token.expose());
        origin.map_or_else(|| token.clone(), |(old, _)| Secret::new(old.as_str()))
    }
}

#[derive(Debug)]
struct RetryState {
    backoff: Backoff,
    not_before: SystemTime,
    /// Whether the token was renewed, or must not be renewed.
    done: bool,
}

/// The tokens of one configuration, which a background task renews.
#[derive(Debug)]
pub struct Rotation {
    renewed: RenewedTokens,
    settings: watch::Sender<Settings>,
    changed: mpsc::Receiver<()>,
    stop: CancellationToken,
    resetting: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Rotation {
    /// Starts with the settings of the file at `path`.
    #[must_use]
    pub fn start(path: PathBuf, clock: Arc<dyn WallClock>, telemetry: &Arc<Telemetry>, settings: Settings) -> Self {
        let (settings, current) = watch::channel(settings);
        // One is enough: a message only signals that a token changed.
        let (changes, changed) = mpsc::channel(1);
        let (renewed, stop) = (RenewedTokens::default(), CancellationToken::new());
        let resetting = Arc::<AtomicBool>::default();
        let observer = Observer::new(Arc::clone(telemetry));
        let task = RotationTask {
            path,
            clock,
            observer,
            renewed: renewed.clone(),
            not_before: SystemTime::UNIX_EPOCH,
            attempts: HashMap::new(),
            unsaved: HashMap::new(),
            series: VecDeque::new(),
            changes,
            stop: stop.clone(),
            resetting: Arc::clone(&resetting),
        };
        let task = tokio::spawn(task.run(current));
        Self { renewed, settings, changed, stop, resetting, task }
    }

    /// Replaces old tokens in `settings` by renewed tokens that are not in the file yet, and returns the result.
    ///
    /// From now on, the background task renews the tokens of these settings.
    #[must_use]
    pub fn apply_renewed(&self, settings: Settings) -> Settings {
        let settings = self.renewed.apply(settings);
        self.settings.send_replace(settings.clone());
        settings
    }

    /// Waits until a token was renewed, or a renewed token was saved. The caller must then read the file again. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.changed.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Stops the task after a reset in progress, which takes at most 90 s.
    ///
    /// If the process exits during a reset instead, the new token is lost, and the old token is no longer valid.
    pub async fn stop(self) {
        self.stop.cancel();
        if self.resetting.load(Ordering::Relaxed) {
            let limit_s = RESET_TIMEOUT.as_secs();
            tracing::warn!(limit_s, "waiting for the reset of a runner token to complete");
        }
        if tokio::time::timeout(RESET_TIMEOUT, self.task).await.is_err() {
            tracing::error!(
                "timed out waiting for the reset of a runner token; the token may have to be reset manually"
            );
        }
    }
}

struct RotationTask {
    path: PathBuf,
    clock: Arc<dyn WallClock>,
    observer: Arc<Observer>,
    renewed: RenewedTokens,
    /// Time before which no reset is requested.
    not_before: SystemTime,
    attempts: HashMap<String, RetryState>,
    /// New tokens that are not saved yet, by the old token that is still in the file.
    unsaved: HashMap<String, (Arc<RunnerSettings>, NewToken)>,
    /// Metric series of renewed tokens. Kept for a while, so that their last values are scraped.
    series: VecDeque<Arc<EntryMetrics>>,
    changes: mpsc::Sender<()>,
    /// No further reset is started once this is canceled.
    stop: CancellationToken,
    /// Whether the coordinator may have an unsaved new token.
    resetting: Arc<AtomicBool>,
}

impl RotationTask {
    async fn run(mut self, mut settings: watch::Receiver<Settings>) {
        loop {
            let current = settings.borrow_and_update().clone();
            self.drop_obsolete_attempts(&current);
            let next = self.next(&current);
            let (clock, stop) = (Arc::clone(&self.clock), self.stop.clone());
            // Each branch only waits, so it is cancel-safe.
            tokio::select! {
                () = stop.cancelled() => return,
                changed = settings.changed() => if changed.is_err() { return },
                () = async {
                    match &next {
                        Some((at, _)) => clock.sleep_until(*at).await,
                        None => std::future::pending().await,
                    }
                } => if let Some((_, step)) = next { self.run_step(step).await },
            }
        }
    }

    /// Returns the next step and its time.
    fn next(&self, settings: &Settings) -> Option<(SystemTime, Step)> {
        let saves = self.unsaved.keys().map(|token| (SystemTime::UNIX_EPOCH, Step::Save(token.clone())));
        let resets = settings.runners.iter().filter_map(|runner| {
            Some((plan::renewal_time(runner)?.max(self.not_before), Step::Renew(Arc::clone(runner))))
        });
        let steps = saves.chain(resets).filter_map(|(due, step)| match self.attempts.get(step.token()) {
            Some(attempts) if attempts.done && matches!(step, Step::Renew(_)) => None,
            Some(attempts) => Some((due.max(attempts.not_before), step)),
            None => Some((due, step)),
        });
        steps.min_by_key(|(at, _)| *at)
    }

    async fn run_step(&mut self, step: Step) {
        match step {
            Step::Save(token) => self.retry_save(&token).await,
            Step::Renew(runner) if plan::is_rotation_disabled(&runner) => {
                self.retry_state(runner.token.expose()).done = true;
                plan::warn_rotation_disabled(&runner);
            }
            Step::Renew(runner) => {
                self.renew(runner).await;
                self.resetting.store(false, Ordering::Relaxed);
            }
        }
    }

    fn retry_state(&mut self, token: &str) -> &mut RetryState {
        self.attempts.entry(token.to_owned()).or_insert_with(|| RetryState {
            backoff: Backoff::new(RETRY_BACKOFF),
            not_before: SystemTime::UNIX_EPOCH,
            done: false,
        })
    }

    /// Returns the time until the next attempt.
    fn schedule_retry(&mut self, token: &str) -> Duration {
        let now = self.clock.now();
        let attempts = self.retry_state(token);
        let wait = attempts.backoff.next_wait(None).unwrap_or(RETRY_BACKOFF.cap);
        attempts.not_before = now + wait;
        wait
    }

    /// Drops attempts of tokens that are no longer configured.
    fn drop_obsolete_attempts(&mut self, settings: &Settings) {
        let unsaved = &self.unsaved;
        let current = |token: &str| settings.runners.iter().any(|runner| runner.token.expose() == token);
        self.attempts.retain(|token, _| unsaved.contains_key(token) || current(token));
    }

    fn retain_series(&mut self, runner: &RunnerSettings) {
        let entry = self.observer.entry(runner);
        self.series.retain(|known| !Arc::ptr_eq(known, &entry));
        self.series.push_back(entry);
        if self.series.len() > MAX_SERIES {
            self.series.pop_front();
        }
    }

    /// Tells the receiver to read the file again.
    fn notify_changed(&self) {
        // If the channel is full, a notification is already pending.
        let _ = self.changes.try_send(());
    }
}
