//! Runner authentication tokens with an end are renewed in time, and the new ones saved in config.toml (runner-api 1.7).
//!
//! ```text
//! settings --plan::due--> wait --> lock the file, prove that it can be saved --> reset at the coordinator --> save --> reload
//! ```
//!
//! The coordinator refuses the old token from the moment of the reset, so a reset whose token cannot be kept would cost the
//! runner: it is only asked for when the file can be saved. Until then the old token is used; in the last part of its life
//! the reset is made all the same, since it would end anyway. A token that could not be saved is used from memory
//! ([`Renewed`]), and its save is tried until it works.

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

/// Waits between tries. A token has at least a quarter of its life left when the first one is made.
const AGAIN: Policy = Policy { first: Duration::from_secs(5), cap: Duration::from_secs(15 * 60), attempts: None };
/// Between two resets: a coordinator whose tokens end at once must not be asked without pause.
const PAUSE: Duration = Duration::from_secs(10);
/// Renewed tokens whose series are kept.
const SERIES_MAX: usize = 50;
/// How long the end of the process waits for a reset that is under way: it must not be lost.
const LAST_WAIT: Duration = Duration::from_secs(90);

/// Tokens that are newer than those in the file, by the file's own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Renewed(Arc<Mutex<HashMap<String, NewToken>>>);

impl Renewed {
    /// The settings of the file, with these tokens in the place of its own.
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

    /// The token in the file that this one came in the place of.
    fn origin(&self, token: &Secret) -> Secret {
        let renewed = self.0.lock();
        let origin = renewed.iter().find(|(_, new)| new.token.expose() == token.expose());
        origin.map_or_else(|| token.clone(), |(old, _)| Secret::new(old.as_str()))
    }
}

/// What was tried for one token.
#[derive(Debug)]
struct Tries {
    backoff: Backoff,
    not_before: SystemTime,
    /// It was renewed and saved, or is not to be renewed: nothing is left to do for it.
    done: bool,
}

/// The tokens of one configuration, kept alive by a task of its own.
#[derive(Debug)]
pub struct Rotation {
    renewed: Renewed,
    settings: watch::Sender<Settings>,
    changed: mpsc::Receiver<()>,
    stop: CancellationToken,
    resetting: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Rotation {
    /// Begins with these settings, which are those of the file at `path`.
    #[must_use]
    pub fn start(path: PathBuf, clock: Arc<dyn WallClock>, telemetry: &Arc<Telemetry>, settings: Settings) -> Self {
        let (settings, current) = watch::channel(settings);
        // One is enough: it says that there is something new, whatever it is.
        let (changes, changed) = mpsc::channel(1);
        let (renewed, stop) = (Renewed::default(), CancellationToken::new());
        let resetting = Arc::<AtomicBool>::default();
        let observer = Observer::new(Arc::clone(telemetry));
        let keeper = Keeper {
            path,
            clock,
            observer,
            renewed: renewed.clone(),
            rest_until: SystemTime::UNIX_EPOCH,
            tries: HashMap::new(),
            unsaved: HashMap::new(),
            series: VecDeque::new(),
            changes,
            stop: stop.clone(),
            resetting: Arc::clone(&resetting),
        };
        let task = tokio::spawn(keeper.keep(current));
        Self { renewed, settings, changed, stop, resetting, task }
    }

    /// Settings that were read from the file just now, with newer tokens where the file could not be saved. From now on
    /// the tokens in them are kept alive.
    #[must_use]
    pub fn follow(&self, settings: Settings) -> Settings {
        let settings = self.renewed.apply(settings);
        self.settings.send_replace(settings.clone());
        settings
    }

    /// Waits until there is a new token: the file is to be read again. Cancel-safe.
    pub async fn changed(&mut self) {
        if self.changed.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends; a reset that is under way is brought to its end before, which takes 90 s at the most. Dropped, it is given up:
    /// its new token is then lost, and the old one not valid any more.
    pub async fn stop(self) {
        self.stop.cancel();
        if self.resetting.load(Ordering::Relaxed) {
            let limit_s = LAST_WAIT.as_secs();
            tracing::warn!(limit_s, "the reset of a runner's token is under way: the end waits for it");
        }
        if tokio::time::timeout(LAST_WAIT, self.task).await.is_err() {
            tracing::error!("the reset of a runner's token was not answered in time; it may have to be reset by hand");
        }
    }
}

/// The task.
struct Keeper {
    path: PathBuf,
    clock: Arc<dyn WallClock>,
    observer: Arc<Observer>,
    renewed: Renewed,
    /// No reset is asked for before.
    rest_until: SystemTime,
    /// By token.
    tries: HashMap<String, Tries>,
    /// Runners whose new token is not in the file yet, by the file's own token.
    unsaved: HashMap<String, (Arc<RunnerSettings>, NewToken)>,
    /// Series of tokens that were renewed: what was counted under them stays to be scraped for a while.
    series: VecDeque<Arc<EntryMetrics>>,
    changes: mpsc::Sender<()>,
    /// The end has come: no reset is begun any more.
    stop: CancellationToken,
    /// A coordinator may have a new token for us that is not kept yet.
    resetting: Arc<AtomicBool>,
}

impl Keeper {
    async fn keep(mut self, mut settings: watch::Receiver<Settings>) {
        loop {
            let current = settings.borrow_and_update().clone();
            self.forget(&current);
            let next = self.next(&current);
            let (clock, stop) = (Arc::clone(&self.clock), self.stop.clone());
            // Nothing is under way while this waits: each branch is cancel-safe.
            tokio::select! {
                () = stop.cancelled() => return,
                changed = settings.changed() => if changed.is_err() { return },
                () = async {
                    match &next {
                        Some((at, _)) => clock.sleep_until(*at).await,
                        None => std::future::pending().await,
                    }
                } => if let Some((_, step)) = next { self.take(step).await },
            }
        }
    }

    /// What is to be done first, and when.
    fn next(&self, settings: &Settings) -> Option<(SystemTime, Step)> {
        let saves = self.unsaved.keys().map(|token| (SystemTime::UNIX_EPOCH, Step::Save(token.clone())));
        let resets = settings
            .runners
            .iter()
            .filter_map(|runner| Some((plan::due(runner)?.max(self.rest_until), Step::Renew(Arc::clone(runner)))));
        let wanted = saves.chain(resets).filter_map(|(due, step)| match self.tries.get(step.token()) {
            Some(tries) if tries.done && matches!(step, Step::Renew(_)) => None,
            Some(tries) => Some((due.max(tries.not_before), step)),
            None => Some((due, step)),
        });
        wanted.min_by_key(|(at, _)| *at)
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Save(token) => self.save_again(&token).await,
            Step::Renew(runner) if plan::is_fixed(&runner) => {
                self.tries_of(runner.token.expose()).done = true;
                plan::tell_fixed(&runner);
            }
            Step::Renew(runner) => {
                self.renew(runner).await;
                self.resetting.store(false, Ordering::Relaxed);
            }
        }
    }

    fn tries_of(&mut self, token: &str) -> &mut Tries {
        self.tries.entry(token.to_owned()).or_insert_with(|| Tries {
            backoff: Backoff::new(AGAIN),
            not_before: SystemTime::UNIX_EPOCH,
            done: false,
        })
    }

    /// The next try for the token is made after a while; after how long.
    fn again(&mut self, token: &str) -> Duration {
        let now = self.clock.now();
        let tries = self.tries_of(token);
        let wait = tries.backoff.next_wait(None).unwrap_or(AGAIN.cap);
        tries.not_before = now + wait;
        wait
    }

    /// Tokens that nothing knows of any more.
    fn forget(&mut self, settings: &Settings) {
        let unsaved = &self.unsaved;
        let current = |token: &str| settings.runners.iter().any(|runner| runner.token.expose() == token);
        self.tries.retain(|token, _| unsaved.contains_key(token) || current(token));
    }

    /// Keeps the series of a token that is being renewed, whether it stays in the file or not.
    fn keep_series(&mut self, runner: &RunnerSettings) {
        let entry = self.observer.entry(runner);
        self.series.retain(|known| !Arc::ptr_eq(known, &entry));
        self.series.push_back(entry);
        if self.series.len() > SERIES_MAX {
            self.series.pop_front();
        }
    }

    /// There is something new to be read.
    fn tell_changed(&self) {
        // Full: it was told already, and not heard yet.
        let _ = self.changes.try_send(());
    }
}
