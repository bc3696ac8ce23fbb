//! `run`: the manager of one `config.toml`, until a signal ends it (runner-config 2.2, 2.6).
//!
//! ```text
//! config.toml --ConfigWatch--> Settings --Order::Reload--> Manager (state.log, requests, jobs) --> agent on this host
//!                 SIGHUP, changes           Drain, Abort      ^ signals
//! ```
//!
//! The agent is a process of its own: however this one ends, jobs that were not aborted go on, and the next `run` on
//! the same configuration takes them up.

mod problems;
mod signals;
mod state_dir;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use muster_environment::Directories;
use muster_environment::host::{HostOptions, HostProvider};
use muster_manager::clock::SystemClock;
use muster_manager::config::edit::{self, EditError};
use muster_manager::config::{Severity, Surroundings, runtime};
use muster_manager::reload::{ConfigWatch, Reload};
use muster_manager::rotation::Rotation;
use muster_manager::settings::Settings;
use muster_manager::store::{Store, StoreError};
use muster_manager::{Control, Manager, ManagerError, Order, system_id};
use muster_telemetry::Telemetry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::config::ConfigArg;
use super::{flags, paths};
use crate::observe::Observed;
use signals::{Signal, Signals};

/// Slots of this host: what limits its jobs is the configuration.
const SLOTS: usize = usize::MAX;

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Address of the metrics and debug server: host:port.
    #[arg(long, env = "LISTEN_ADDRESS", value_name = "ADDRESS")]
    listen_address: Option<String>,
    /// Name of the service that this is; only its unit needs it.
    #[arg(short = 'n', long, default_value = "gitlab-runner", value_name = "NAME")]
    service: String,
    /// Work in this directory: relative paths, and where an entry names none, builds and cache start from it.
    #[arg(short = 'd', long, value_name = "DIR")]
    working_directory: Option<PathBuf>,
    /// Run the commands of jobs as this user.
    #[arg(short = 'u', long, value_name = "NAME")]
    user: Option<String>,
    /// Log to the system's log too.
    #[arg(long, env = "LOG_SYSLOG", value_parser = flags::go_bool, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", default_value = "false", hide_default_value = true, value_name = "BOOL")]
    pub(super) syslog: bool,
    /// Directory of this manager's state: jobs under way, the agent's spool. By default one of its own for each
    /// configuration, below /var/lib/muster for root, else below the user's state directory.
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
}

/// Why there is no manager.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot work in {}", path.display())]
    WorkingDirectory { path: PathBuf, source: std::io::Error },
    #[error("cannot find {}", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("C030: another manager must not run with this configuration")]
    InUse(#[source] EditError),
    #[error("{} cannot be used: mend what is told above, `verify-config` shows all of it", path.display())]
    Configuration { path: PathBuf },
    #[error(transparent)]
    State(#[from] StoreError),
    #[error(transparent)]
    Environment(#[from] muster_environment::EnvironmentError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error(transparent)]
    Listen(#[from] muster_telemetry::http::ListenError),
    #[error("the manager died: {0}")]
    Died(tokio::task::JoinError),
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
    #[error("neither HOME nor XDG_STATE_HOME says where this user's state is kept; name a directory with --state-dir")]
    NoStateDir,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        match work(args).await {
            Ok(code) => code,
            Err(error) => {
                tracing::error!("{}", crate::logging::chain(&error));
                ExitCode::FAILURE
            }
        }
    })
}

async fn work(args: Args) -> Result<ExitCode, RunError> {
    // First of all, so that no signal finds its default, which is to kill.
    let signals = Signals::watch().map_err(RunError::Signals)?;
    if let Some(path) = &args.working_directory {
        std::env::set_current_dir(path).map_err(|source| RunError::WorkingDirectory { path: path.clone(), source })?;
    }
    let config = absolute(&args.config.path())?;
    let _held = edit::hold(&config).map_err(RunError::InUse)?;
    let around = Surroundings {
        system_id: system_id(config.parent().unwrap_or(Path::new("."))),
        user: args.user.clone(),
        certificates: Some(paths::certificates()),
        default_shell: None,
    };
    let (watch, loaded) = ConfigWatch::start(config.clone(), around);
    problems::tell(&loaded.problems, &config);
    if loaded.config.is_none() || loaded.has(Severity::Fatal) {
        return Err(RunError::Configuration { path: config });
    }
    let settings = settings(&watch, &args);
    let state_dir = match flags::filled(&args.state_dir) {
        Some(path) => absolute(&path)?,
        None => state_dir::of(&config).ok_or(RunError::NoStateDir)?,
    };
    let store = Store::open(&state_dir).await?;
    let observed = Observed::start(settings.listen_address.as_deref()).await?;
    let telemetry = Arc::clone(&observed.telemetry);
    telemetry.metrics.configuration_loaded(true);
    let manager = Manager::new(settings.clone(), store, Arc::new(provider(&state_dir, &args)?), Arc::clone(&telemetry));
    tracing::info!(
        config = %config.display(),
        state = %state_dir.display(),
        service = args.service,
        runners = settings.runners.len(),
        concurrent = settings.concurrent,
        "Starting multi-runner from {}...", config.display()
    );
    let (control, orders) = Control::new();
    let manager = tokio::spawn(manager.run(orders));
    let rotation = Rotation::start(config.clone(), Arc::new(SystemClock), &telemetry, settings.clone());
    let running =
        Running { args, config, watch, settings, control, manager, telemetry, rotation, stopping: Stopping::No };
    let ended = running.until_end(signals).await;
    observed.stop().await;
    ended
}

/// The settings of the configuration in force, with what the command line says instead.
fn settings(watch: &ConfigWatch, args: &Args) -> Settings {
    let mut settings = watch.settings();
    if let Some(address) = &args.listen_address {
        settings.listen_address = Some(address.clone());
    }
    let level = settings.log_level.as_deref();
    crate::logging::configure(level, settings.log_format.as_deref());
    settings
}

fn provider(state_dir: &Path, args: &Args) -> Result<HostProvider, RunError> {
    let executable =
        std::env::current_exe().map_err(|source| RunError::Path { path: PathBuf::from("/proc/self/exe"), source })?;
    let directories =
        Directories { builds: absolute(Path::new("builds"))?, cache: absolute(Path::new("cache"))?, shared: true };
    Ok(HostProvider::new(HostOptions {
        state_dir: state_dir.to_owned(),
        directories,
        slots: SLOTS,
        executable,
        until_pid: None,
        user: args.user.clone().filter(|user| !user.is_empty()),
    })?)
}

fn absolute(path: &Path) -> Result<PathBuf, RunError> {
    std::path::absolute(path).map_err(|source| RunError::Path { path: path.to_owned(), source })
}

/// How far the end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    /// Jobs end by themselves.
    Draining,
    /// Jobs are aborted, until then.
    Aborting(Instant),
}

/// A manager at work.
struct Running {
    args: Args,
    config: PathBuf,
    watch: ConfigWatch,
    settings: Settings,
    control: Control,
    manager: JoinHandle<Result<(), ManagerError>>,
    telemetry: Arc<Telemetry>,
    rotation: Rotation,
    stopping: Stopping,
}

impl Running {
    async fn until_end(mut self, signals: Signals) -> Result<ExitCode, RunError> {
        let ended = self.work(signals).await;
        self.rotation.stop().await;
        ended
    }

    async fn work(&mut self, mut signals: Signals) -> Result<ExitCode, RunError> {
        loop {
            let deadline = match self.stopping {
                Stopping::Aborting(deadline) => Some(deadline),
                Stopping::No | Stopping::Draining => None,
            };
            tokio::select! {
                ended = &mut self.manager => {
                    ended.map_err(RunError::Died)??;
                    tracing::info!("All workers stopped. Can exit now");
                    return Ok(ExitCode::SUCCESS);
                }
                signal = signals.next() => {
                    if let Some(code) = self.obey(signal).await {
                        return Ok(code);
                    }
                }
                reload = self.watch.changed(), if self.stopping == Stopping::No => self.reloaded(reload).await,
                // The file has a new token, or would have if it could be saved.
                () = self.rotation.changed(), if self.stopping == Stopping::No => {
                    let reload = self.watch.reload();
                    self.reloaded(reload).await;
                }
                () = async { sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => {
                    let seconds = self.settings.shutdown_timeout.as_secs();
                    tracing::error!(
                        "shutdown_timeout of {seconds} s is over before all jobs ended: their agent winds them down, and \
                         the next start reports them"
                    );
                    return Ok(self.leave(ExitCode::FAILURE).await);
                }
            }
        }
    }

    /// Does what a signal asks for; how the process ends, if it ends at once.
    async fn obey(&mut self, signal: Signal) -> Option<ExitCode> {
        match (signal, self.stopping) {
            (Signal::Reload, Stopping::No) => {
                let reload = self.watch.reload();
                self.reloaded(reload).await;
            }
            (Signal::Reload, _) => tracing::info!("the manager is stopping, its configuration is not read again"),
            (Signal::Leave, _) => {
                tracing::info!("the manager ends at once; jobs go on at their agent, and the next start takes them up");
                return Some(self.leave(ExitCode::SUCCESS).await);
            }
            (Signal::Drain | Signal::Abort(_), Stopping::Aborting(_)) => {
                tracing::error!("a second signal: the manager ends at once; the next start reports its jobs");
                return Some(self.leave(ExitCode::FAILURE).await);
            }
            (Signal::Drain, _) => {
                let jobs = self.jobs().await;
                tracing::warn!("Starting graceful shutdown, waiting for {jobs} jobs to end");
                self.stopping = Stopping::Draining;
                self.control.give(Order::Drain).await;
            }
            (Signal::Abort(name), _) => {
                let (jobs, limit) = (self.jobs().await, self.settings.shutdown_timeout);
                match runtime::forced_stop(name, jobs, limit) {
                    Some(problem) => problems::tell(&[problem], &self.config),
                    None => tracing::info!("stop requested by {name}: no job is under way"),
                }
                self.stopping = Stopping::Aborting(Instant::now() + limit);
                self.control.give(Order::Abort).await;
            }
        }
        None
    }

    async fn jobs(&self) -> usize {
        self.control.figures().await.map_or(0, |figures| figures.jobs)
    }

    async fn reloaded(&mut self, reload: Reload) {
        self.telemetry.metrics.configuration_loaded(matches!(reload, Reload::Applied { .. }));
        match reload {
            Reload::Applied { problems, changes, .. } => {
                problems::tell(&problems, &self.config);
                self.settings = self.rotation.follow(settings(&self.watch, &self.args));
                let changes = if changes.is_empty() { "nothing is different".to_owned() } else { changes.join("; ") };
                tracing::info!(runners = self.settings.runners.len(), "Configuration loaded: {changes}");
                self.control.give(Order::Reload(Box::new(self.settings.clone()))).await;
            }
            Reload::Refused { problems } => {
                problems::tell(&problems, &self.config);
                tracing::error!("Failed to load {}: the configuration before it stays in force", self.config.display());
            }
            Reload::Gone => tracing::error!(
                "{} is gone: the configuration in force stays so, but a restart would find no runner",
                self.config.display()
            ),
        }
    }

    /// Ends between two instructions of the manager, as a kill does: that is what its state is for.
    async fn leave(&mut self, code: ExitCode) -> ExitCode {
        self.manager.abort();
        // Only that it is over counts: then nothing of it writes any more.
        let _ = (&mut self.manager).await;
        code
    }
}
