//! Main loop of a manager.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use muster_config::runtime;
use muster_config::settings::Settings;
use muster_executor::instance::log_remaining_instances;
use muster_manager::clock::SystemClock;
use muster_manager::reload::{ConfigWatch, Reload};
use muster_manager::rotation::Rotation;
use muster_manager::{Control, ControlCommand, ManagerError};
use muster_telemetry::Telemetry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::cache_gc::CacheGc;
use super::signals::{Signal, Signals};
use super::{RunError, problems};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShutdownPhase {
    NotRequested,
    /// No new jobs; waiting for the running jobs.
    Draining,
    /// Jobs are being canceled until this deadline.
    Aborting(Instant),
    /// The manager is exiting. Jobs continue, and the next start resumes them.
    Detaching,
    /// The manager exits without waiting for anything.
    Immediate,
}

pub(super) struct Source {
    pub(super) watch: ConfigWatch,
    pub(super) config: PathBuf,
    /// Value of `--listen-address`, which overrides the file.
    pub(super) listen_address: Option<String>,
}

impl Source {
    /// Returns the current settings with the flags applied. Also applies the log settings to this process.
    pub(super) fn settings(&self) -> Settings {
        let mut settings = self.watch.settings();
        if let Some(address) = &self.listen_address {
            settings.listen_address = Some(address.clone());
        }
        crate::logging::configure(settings.log_level.as_deref(), settings.log_format.as_deref());
        settings
    }
}

pub(super) struct RunLoop {
    /// `None` if the settings do not come from a file.
    source: Option<Source>,
    settings: Settings,
    control: Control,
    manager: JoinHandle<Result<(), ManagerError>>,
    telemetry: Arc<Telemetry>,
    /// Rotates the tokens in the configuration file. `None` if the settings do not come from a file.
    rotation: Option<Rotation>,
    ledgers: PathBuf,
    cache_gc: CacheGc,
    shutdown_phase: ShutdownPhase,
}

impl RunLoop {
    pub(super) fn new(
        source: Option<Source>,
        settings: Settings,
        control: Control,
        manager: JoinHandle<Result<(), ManagerError>>,
        telemetry: Arc<Telemetry>,
        ledgers: PathBuf,
        cache_gc: CacheGc,
    ) -> Self {
        let start_rotation = |source: &Source| {
            Rotation::start(source.config.clone(), Arc::new(SystemClock), &telemetry, settings.clone())
        };
        let rotation = source.as_ref().map(start_rotation);
        Self {
            source,
            settings,
            control,
            manager,
            telemetry,
            rotation,
            ledgers,
            cache_gc,
            shutdown_phase: ShutdownPhase::NotRequested,
        }
    }

    pub(super) async fn run(mut self, mut signals: Signals) -> Result<ExitCode, RunError> {
        let result = self.run_manager(&mut signals).await;
        let Some(rotation) = self.rotation.filter(|_| self.shutdown_phase != ShutdownPhase::Immediate) else {
            return result;
        };
        tokio::select! {
            () = rotation.stop() => result,
            name = next_abort(&mut signals) => {
                tracing::error!(
                        "{name}: exiting without waiting for the reset of a runner's token; if the server has created a new token, it is \
                         lost, and you must reset it manually"
                );
                Ok(ExitCode::FAILURE)
            }
        }
    }

    async fn run_manager(&mut self, signals: &mut Signals) -> Result<ExitCode, RunError> {
        loop {
            let deadline = match self.shutdown_phase {
                ShutdownPhase::Aborting(deadline) => Some(deadline),
                ShutdownPhase::NotRequested
                | ShutdownPhase::Draining
                | ShutdownPhase::Detaching
                | ShutdownPhase::Immediate => None,
            };
            tokio::select! {
                result = &mut self.manager => {
                    result.map_err(RunError::ManagerTask)??;
                    tracing::info!("All workers stopped. Can exit now");
                    return Ok(ExitCode::SUCCESS);
                }
                signal = signals.next() => {
                    if let Some(code) = self.handle_signal(signal).await {
                        return Ok(code);
                    }
                }
                reload = config_changed(&mut self.source), if self.shutdown_phase == ShutdownPhase::NotRequested => {
                    self.apply_reload(reload).await;
                }
                // The reload adds the rotated token to the settings, even if it could not be saved in the file.
                () = token_rotated(&mut self.rotation), if self.shutdown_phase == ShutdownPhase::NotRequested => {
                    self.reload().await;
                }
                () = self.cache_gc.step(&self.settings), if self.shutdown_phase == ShutdownPhase::NotRequested => {}
                () = async { sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => {
                    let seconds = self.settings.shutdown_timeout.as_secs();
                    tracing::error!(
                            "shutdown_timeout of {seconds} s expired before all jobs finished; the agent cancels the jobs that still run, and \
                             the next start reports them"
                    );
                    return Ok(self.exit_now(ExitCode::FAILURE).await);
                }
            }
        }
    }

    /// Returns an exit code if the process must exit immediately.
    async fn handle_signal(&mut self, signal: Signal) -> Option<ExitCode> {
        match (signal, self.shutdown_phase) {
            (Signal::Reload, ShutdownPhase::NotRequested) => self.reload().await,
            (Signal::Reload, _) => tracing::info!("ignored reload because the manager is stopping"),
            (Signal::Detach, ShutdownPhase::NotRequested | ShutdownPhase::Draining) => {
                tracing::info!(
                    "detaching from running jobs; the agent continues them, and the next start resumes them"
                );
                self.shutdown_phase = ShutdownPhase::Detaching;
                self.control.send(ControlCommand::Leave).await;
            }
            (Signal::Detach, _) => {
                tracing::info!("exiting immediately; the agent continues the jobs, and the next start resumes them");
                self.shutdown_phase = ShutdownPhase::Immediate;
                return Some(self.exit_now(ExitCode::SUCCESS).await);
            }
            (Signal::Drain | Signal::Abort(_), phase @ (ShutdownPhase::Aborting(_) | ShutdownPhase::Detaching)) => {
                let next_start = match phase {
                    ShutdownPhase::Detaching => "the agent continues the jobs, and the next start resumes them",
                    _ => "the next start reports the canceled jobs and resumes the others",
                };
                tracing::error!(
                    "second signal, exiting immediately; {next_start}; a job that the server assigns to a request in flight may be lost"
                );
                self.shutdown_phase = ShutdownPhase::Immediate;
                return Some(self.exit_now(ExitCode::FAILURE).await);
            }
            (Signal::Drain, _) => {
                let jobs = self.jobs().await;
                tracing::warn!("Starting graceful shutdown, waiting for running jobs to finish ({jobs})");
                self.shutdown_phase = ShutdownPhase::Draining;
                self.control.send(ControlCommand::Drain).await;
            }
            (Signal::Abort(name), _) => {
                let (jobs, limit) = (self.jobs().await, self.settings.shutdown_timeout);
                match runtime::forced_stop(name, jobs, limit) {
                    Some(problem) => problems::log(&[problem], self.config()),
                    None => tracing::info!("stop requested by {name}; no job is running"),
                }
                self.shutdown_phase = ShutdownPhase::Aborting(Instant::now() + limit);
                self.control.send(ControlCommand::Abort).await;
            }
        }
        None
    }

    async fn jobs(&self) -> usize {
        self.control.stats().await.map_or(0, |stats| stats.jobs)
    }

    /// Returns the path of the configuration file for messages, or `run-single` if the settings come from flags.
    fn config(&self) -> &Path {
        self.source.as_ref().map_or(Path::new("run-single"), |source| &source.config)
    }

    async fn reload(&mut self) {
        match self.source.as_mut().map(|source| source.watch.reload()) {
            Some(reload) => self.apply_reload(reload).await,
            None => tracing::info!("no configuration file to reload"),
        }
    }

    async fn apply_reload(&mut self, reload: Reload) {
        self.telemetry.metrics.configuration_loaded(matches!(reload, Reload::Applied { .. }));
        let Some(source) = &self.source else { return };
        match reload {
            Reload::Applied { problems, changes, .. } => {
                problems::log(&problems, &source.config);
                let settings = source.settings();
                self.settings = match &self.rotation {
                    Some(rotation) => rotation.apply_renewed(settings),
                    None => settings,
                };
                let changes = if changes.is_empty() { "nothing changed".to_owned() } else { changes.join("; ") };
                tracing::info!(runners = self.settings.runners.len(), "Configuration loaded: {changes}");
                crate::open_files::warn_if_low(self.settings.concurrent);
                self.control.send(ControlCommand::Reload(Box::new(self.settings.clone()))).await;
            }
            Reload::Invalid { problems } => {
                problems::log(&problems, &source.config);
                tracing::error!("Failed to load {}; keeping the previous configuration", source.config.display());
            }
            Reload::Missing => tracing::error!(
                "{} was deleted; keeping the previous configuration, but after a restart there would be no runner",
                source.config.display()
            ),
        }
    }

    /// Stops the manager in any state, as SIGKILL would. The next start recovers the jobs from state.log.
    async fn exit_now(&mut self, code: ExitCode) -> ExitCode {
        self.manager.abort();
        // A dropped task writes nothing more. Its result does not matter.
        let _ = (&mut self.manager).await;
        if code == ExitCode::FAILURE {
            // Instances may exist that the manager could not delete.
            log_remaining_instances(&self.ledgers);
        }
        code
    }
}

/// Waits for SIGTERM or SIGINT, and returns its name. Cancel-safe.
async fn next_abort(signals: &mut Signals) -> &'static str {
    loop {
        match signals.next().await {
            Signal::Abort(name) => return name,
            other @ (Signal::Drain | Signal::Reload | Signal::Detach) => {
                tracing::info!("ignored {other:?} because the manager is already stopping");
            }
        }
    }
}

/// Waits forever if the settings do not come from a file. Cancel-safe.
async fn config_changed(source: &mut Option<Source>) -> Reload {
    match source {
        Some(source) => source.watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits forever if the settings do not come from a file. Cancel-safe.
async fn token_rotated(rotation: &mut Option<Rotation>) {
    match rotation {
        Some(rotation) => rotation.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use muster_manager::store::StoreError;
    use muster_telemetry::spans::SpanSettings;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn manager_that_cannot_write_its_state_exits_with_1() {
        let settings = Settings::new();
        let timeout = settings.state_write_timeout;
        let manager = tokio::spawn(async move {
            tokio::time::sleep(timeout).await;
            Err(StoreError::Sync(std::io::Error::other("no space left")).into())
        });
        let (control, _commands) = Control::new();
        let telemetry = Telemetry::new(&crate::observe::BUILD, &Arc::default(), SpanSettings::default());
        let cache_gc = CacheGc::new(PathBuf::new(), None);
        let run_loop = RunLoop::new(None, settings, control, manager, telemetry, PathBuf::new(), cache_gc);
        let result = run_loop.run(Signals::watch().unwrap()).await;
        assert!(matches!(result, Err(RunError::Manager(ManagerError::Store(_)))), "{result:?}");
        assert_eq!(super::super::exit_code(result), ExitCode::FAILURE);
    }
}
