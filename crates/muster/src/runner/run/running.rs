//! A manager at work: signals, changes of the file, and the end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use muster_config::runtime;
use muster_config::settings::Settings;
use muster_executor::instance::log_instances_left;
use muster_manager::clock::SystemClock;
use muster_manager::reload::{ConfigWatch, Reload};
use muster_manager::rotation::Rotation;
use muster_manager::{Control, ControlCommand, ManagerError};
use muster_telemetry::Telemetry;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::signals::{Signal, Signals};
use super::{RunError, problems};

/// How far the end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    /// Jobs end by themselves.
    Draining,
    /// Jobs are aborted, until then.
    Aborting(Instant),
    /// Jobs are left to the next start.
    Leaving,
    /// Nothing is waited for.
    AtOnce,
}

/// Where settings come from while the manager works.
pub(super) struct Source {
    pub(super) watch: ConfigWatch,
    pub(super) config: PathBuf,
    /// What the command line says instead of the file.
    pub(super) listen_address: Option<String>,
}

impl Source {
    /// The settings of the configuration in force, with what the command line says instead.
    pub(super) fn settings(&self) -> Settings {
        let mut settings = self.watch.settings();
        if let Some(address) = &self.listen_address {
            settings.listen_address = Some(address.clone());
        }
        crate::logging::configure(settings.log_level.as_deref(), settings.log_format.as_deref());
        settings
    }
}

/// A manager at work.
pub(super) struct Running {
    /// None where the settings stay as they are.
    source: Option<Source>,
    settings: Settings,
    control: Control,
    manager: JoinHandle<Result<(), ManagerError>>,
    telemetry: Arc<Telemetry>,
    /// Of the file's tokens.
    rotation: Option<Rotation>,
    /// Where the books of instances are.
    books: PathBuf,
    stopping: Stopping,
}

impl Running {
    pub(super) fn new(
        source: Option<Source>,
        settings: Settings,
        control: Control,
        manager: JoinHandle<Result<(), ManagerError>>,
        telemetry: Arc<Telemetry>,
        books: PathBuf,
    ) -> Self {
        let rotate = |source: &Source| {
            Rotation::start(source.config.clone(), Arc::new(SystemClock), &telemetry, settings.clone())
        };
        let rotation = source.as_ref().map(rotate);
        Self { source, settings, control, manager, telemetry, rotation, books, stopping: Stopping::No }
    }

    pub(super) async fn until_end(mut self, mut signals: Signals) -> Result<ExitCode, RunError> {
        let ended = self.work(&mut signals).await;
        let Some(rotation) = self.rotation.filter(|_| self.stopping != Stopping::AtOnce) else { return ended };
        tokio::select! {
            () = rotation.stop() => ended,
            name = aborted(&mut signals) => {
                tracing::error!(
                    "{name}: the reset of a runner's token is not waited for; where the server has made a new one, it is \
                     lost: reset it by hand"
                );
                Ok(ExitCode::FAILURE)
            }
        }
    }

    async fn work(&mut self, signals: &mut Signals) -> Result<ExitCode, RunError> {
        loop {
            let deadline = match self.stopping {
                Stopping::Aborting(deadline) => Some(deadline),
                Stopping::No | Stopping::Draining | Stopping::Leaving | Stopping::AtOnce => None,
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
                reload = changed(&mut self.source), if self.stopping == Stopping::No => self.reloaded(reload).await,
                // The file has a new token, or would have if it could be saved.
                () = rotated(&mut self.rotation), if self.stopping == Stopping::No => self.read_again().await,
                () = async { sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => {
                    let seconds = self.settings.shutdown_timeout.as_secs();
                    tracing::error!(
                        "shutdown_timeout of {seconds} s is over before everything has ended: the agent winds down jobs that \
                         still run, and the next start reports them"
                    );
                    return Ok(self.leave(ExitCode::FAILURE).await);
                }
            }
        }
    }

    /// Does what a signal asks for; how the process ends, if it ends at once.
    async fn obey(&mut self, signal: Signal) -> Option<ExitCode> {
        match (signal, self.stopping) {
            (Signal::Reload, Stopping::No) => self.read_again().await,
            (Signal::Reload, _) => tracing::info!("the manager is stopping, its configuration is not read again"),
            (Signal::Leave, Stopping::No | Stopping::Draining) => {
                tracing::info!(
                    "the manager ends without its jobs; they go on at their agent, and the next start takes them up"
                );
                self.stopping = Stopping::Leaving;
                self.control.send(ControlCommand::Leave).await;
            }
            (Signal::Leave, _) => {
                tracing::info!("the manager ends at once; jobs go on at their agent, and the next start takes them up");
                self.stopping = Stopping::AtOnce;
                return Some(self.leave(ExitCode::SUCCESS).await);
            }
            (Signal::Drain | Signal::Abort(_), Stopping::Aborting(_) | Stopping::Leaving) => {
                tracing::error!(
                    "a second signal: the manager ends at once; the next start reports its jobs, and a job that the server \
                     assigns to a request in flight may be lost"
                );
                self.stopping = Stopping::AtOnce;
                return Some(self.leave(ExitCode::FAILURE).await);
            }
            (Signal::Drain, _) => {
                let jobs = self.jobs().await;
                tracing::warn!("Starting graceful shutdown, waiting for {jobs} jobs to end");
                self.stopping = Stopping::Draining;
                self.control.send(ControlCommand::Drain).await;
            }
            (Signal::Abort(name), _) => {
                let (jobs, limit) = (self.jobs().await, self.settings.shutdown_timeout);
                match runtime::forced_stop(name, jobs, limit) {
                    Some(problem) => problems::tell(&[problem], self.config()),
                    None => tracing::info!("stop requested by {name}: no job is under way"),
                }
                self.stopping = Stopping::Aborting(Instant::now() + limit);
                self.control.send(ControlCommand::Abort).await;
            }
        }
        None
    }

    async fn jobs(&self) -> usize {
        self.control.stats().await.map_or(0, |figures| figures.jobs)
    }

    /// The file; what the flags are called where there is none.
    fn config(&self) -> &Path {
        self.source.as_ref().map_or(Path::new("run-single"), |source| &source.config)
    }

    async fn read_again(&mut self) {
        match self.source.as_mut().map(|source| source.watch.reload()) {
            Some(reload) => self.reloaded(reload).await,
            None => tracing::info!("there is no configuration file to read again"),
        }
    }

    async fn reloaded(&mut self, reload: Reload) {
        self.telemetry.metrics.configuration_loaded(matches!(reload, Reload::Applied { .. }));
        let Some(source) = &self.source else { return };
        match reload {
            Reload::Applied { problems, changes, .. } => {
                problems::tell(&problems, &source.config);
                let settings = source.settings();
                self.settings = match &self.rotation {
                    Some(rotation) => rotation.apply_renewed(settings),
                    None => settings,
                };
                let changes = if changes.is_empty() { "nothing is different".to_owned() } else { changes.join("; ") };
                tracing::info!(runners = self.settings.runners.len(), "Configuration loaded: {changes}");
                crate::open_files::tell(self.settings.concurrent);
                self.control.send(ControlCommand::Reload(Box::new(self.settings.clone()))).await;
            }
            Reload::Invalid { problems } => {
                problems::tell(&problems, &source.config);
                tracing::error!(
                    "Failed to load {}: the configuration before it stays in force",
                    source.config.display()
                );
            }
            Reload::Missing => tracing::error!(
                "{} is gone: the configuration in force stays so, but a restart would find no runner",
                source.config.display()
            ),
        }
    }

    /// Ends between two instructions of the manager, as a kill does: that is what its state is for.
    async fn leave(&mut self, code: ExitCode) -> ExitCode {
        self.manager.abort();
        // Only that it is over counts: then nothing of it writes any more.
        let _ = (&mut self.manager).await;
        if code == ExitCode::FAILURE {
            // A request in flight, a job or a plugin that hangs has kept the manager from it.
            log_instances_left(&self.books);
        }
        code
    }
}

/// Waits for a signal that aborts; its name. Cancel-safe.
async fn aborted(signals: &mut Signals) -> &'static str {
    loop {
        match signals.next().await {
            Signal::Abort(name) => return name,
            other @ (Signal::Drain | Signal::Reload | Signal::Leave) => {
                tracing::info!("the manager is ending already; {other:?} changes nothing");
            }
        }
    }
}

/// Waits until the file has changed; for ever where there is none. Cancel-safe.
async fn changed(source: &mut Option<Source>) -> Reload {
    match source {
        Some(source) => source.watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits until the file has a new token; for ever where there is none. Cancel-safe.
async fn rotated(rotation: &mut Option<Rotation>) {
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
    async fn a_manager_that_could_not_write_its_state_for_long_ends_with_1() {
        let settings = Settings::new();
        let patience = settings.state_write_timeout;
        let manager = tokio::spawn(async move {
            tokio::time::sleep(patience).await;
            Err(StoreError::Sync(std::io::Error::other("no space left")).into())
        });
        let (control, _orders) = Control::new();
        let telemetry = Telemetry::new(&crate::observe::BUILD, &Arc::default(), SpanSettings::default());
        let running = Running::new(None, settings, control, manager, telemetry, PathBuf::new());
        let ended = running.until_end(Signals::watch().unwrap()).await;
        assert!(matches!(ended, Err(RunError::Manager(ManagerError::Store(_)))), "{ended:?}");
        assert_eq!(super::super::exit_code(ended), ExitCode::FAILURE);
    }
}
