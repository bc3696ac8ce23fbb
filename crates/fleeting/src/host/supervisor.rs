//! Restarts a plugin's process when it exits or hangs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use muster_remote::Backoff;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{CallError, Caller};
use super::connection::{Connection, Streams};
use super::group::{LiveProcess, PluginStatus};
use super::handshake::Address;
use super::mask::Mask;
use super::process::Process;
use super::{PluginSpec, StartError, Timeouts};
use crate::model::GroupInfo;
use muster_job::error_chain;

/// Running time after which a process counts as stable.
/// After a stable process has ended, the restart delay begins with its shortest value again.
const STABLE_AFTER: Duration = Duration::from_secs(60);

struct RunningPlugin {
    process: Process,
    live: Arc<LiveProcess>,
    _streams: Streams,
    started_at: Instant,
}

pub(super) struct Supervisor {
    spec: PluginSpec,
    name: String,
    group_id: String,
    stop: CancellationToken,
    current: Option<RunningPlugin>,
    process: watch::Sender<Option<Arc<LiveProcess>>>,
    status: watch::Sender<PluginStatus>,
}

enum ExitCause {
    Stopped,
    Failed(String),
}

impl Supervisor {
    pub(super) async fn start(spec: PluginSpec, stop: CancellationToken) -> Result<(Self, GroupInfo), StartError> {
        let (running, info) = start_and_count(&spec).await?;
        let (name, status) = (spec.name(), PluginStatus::Up { pid: running.process.pid() });
        let supervisor = Self {
            spec,
            name,
            group_id: info.id.clone(),
            stop,
            process: watch::Sender::new(Some(Arc::clone(&running.live))),
            status: watch::Sender::new(status),
            current: Some(running),
        };
        Ok((supervisor, info))
    }

    /// Returns a receiver for the process that can be called at the moment.
    /// Its value is `None` while there is no such process.
    pub(super) fn process(&self) -> watch::Receiver<Option<Arc<LiveProcess>>> {
        self.process.subscribe()
    }

    pub(super) fn status(&self) -> watch::Receiver<PluginStatus> {
        self.status.subscribe()
    }

    pub(super) async fn run(mut self) {
        let new_backoff = |timeouts: &Timeouts| Backoff::new(timeouts.restart_first, timeouts.restart_cap);
        let (mut failures, mut backoff) = (0, new_backoff(&self.spec.timeouts));
        loop {
            let cause = match self.current.take() {
                Some(running) => {
                    let started_at = running.started_at;
                    match self.watch(running).await {
                        ExitCause::Stopped => break,
                        ExitCause::Failed(cause) => {
                            if started_at.elapsed() >= STABLE_AFTER {
                                (failures, backoff) = (0, new_backoff(&self.spec.timeouts));
                            }
                            cause
                        }
                    }
                }
                None if self.stop.is_cancelled() => break,
                None => match self.restart().await {
                    Ok(()) => continue,
                    Err(error) => error_chain(&error),
                },
            };
            failures += 1;
            let delay = backoff.next_delay();
            tracing::error!(
                plugin = self.name,
                cause,
                failures,
                delay_ms = delay.as_millis(),
                "plugin process ended or failed to start; restarting it"
            );
            self.spec.meter.record_down();
            self.process.send_replace(None);
            self.status.send_replace(PluginStatus::Down { cause, failures });
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = tokio::time::sleep(delay) => {}
            }
        }
        self.process.send_replace(None);
        self.status.send_replace(PluginStatus::Stopped);
    }

    /// Waits until the process ends or hangs, or the supervisor is stopped.
    ///
    /// No process is left running afterwards.
    async fn watch(&self, mut running: RunningPlugin) -> ExitCause {
        let cause = tokio::select! {
            exit = running.process.wait_exit() => match exit {
                Ok(status) => format!("plugin process exited ({status}){}", running.process.final_stderr().await),
                Err(error) => format!("failed to wait for the plugin process: {error}"),
            },
            () = running.live.unusable.cancelled() => "no response, or the connection broke".to_owned(),
            () = self.stop.cancelled() => {
                self.shut_down(running).await;
                return ExitCause::Stopped;
            }
        };
        running.process.kill().await;
        ExitCause::Failed(cause)
    }

    /// Calls `Shutdown`, requests the exit, and kills the process if it does not exit in time (case H11).
    async fn shut_down(&self, running: RunningPlugin) {
        let RunningPlugin { process, live, _streams: streams, .. } = running;
        let caller = &live.caller;
        if let Err(error) = caller.shutdown().await {
            tracing::warn!(plugin = self.name, %error, "plugin failed to shut down cleanly");
        }
        let _ = tokio::time::timeout(self.spec.timeouts.exit, caller.connection.request_exit()).await;
        drop(streams);
        if !process.wait_or_kill(self.spec.timeouts.exit).await {
            tracing::debug!(plugin = self.name, "plugin did not exit in time and was killed");
        }
    }

    async fn restart(&mut self) -> Result<(), StartError> {
        let (mut running, info) = tokio::select! {
            started = start_and_count(&self.spec) => started?,
            // Dropping an unfinished start kills its process.
            () = self.stop.cancelled() => return Ok(()),
        };
        if info.id != self.group_id {
            running.process.kill().await;
            let path = self.spec.executable.clone();
            return Err(StartError::OtherGroup { path, expected: self.group_id.clone(), found: info.id });
        }
        tracing::info!(plugin = self.name, "plugin restarted");
        self.process.send_replace(Some(Arc::clone(&running.live)));
        self.status.send_replace(PluginStatus::Up { pid: running.process.pid() });
        self.current = Some(running);
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.spec.meter.record_down();
    }
}

async fn start_and_count(spec: &PluginSpec) -> Result<(RunningPlugin, GroupInfo), StartError> {
    let started = start(spec).await;
    match &started {
        Ok(_) => spec.meter.record_start(),
        Err(_) => spec.meter.record_failed_start(),
    }
    started
}

/// Starts the process and performs handshake, connection and `Init`.
/// If a step fails, no process is left running.
async fn start(spec: &PluginSpec) -> Result<(RunningPlugin, GroupInfo), StartError> {
    let (mut process, handshake) = Process::start(spec).await?;
    match connect_and_init(spec, &handshake.address).await {
        Ok((live, streams, info)) => {
            let running =
                RunningPlugin { process, live: Arc::new(live), _streams: streams, started_at: Instant::now() };
            Ok((running, info))
        }
        Err(error) => {
            process.kill().await;
            Err(error)
        }
    }
}

async fn connect_and_init(
    spec: &PluginSpec,
    address: &Address,
) -> Result<(LiveProcess, Streams, GroupInfo), StartError> {
    let path = || spec.executable.clone();
    let address_text = || match address {
        Address::Unix(socket) => socket.display().to_string(),
        Address::Tcp(address) => address.clone(),
    };
    let timeout = spec.timeouts.start;
    let connection = match tokio::time::timeout(timeout, Connection::open(address)).await {
        Ok(opened) => opened.map_err(|source| StartError::Connect { path: path(), address: address_text(), source })?,
        Err(_) => return Err(StartError::ConnectTimeout { path: path(), address: address_text(), timeout }),
    };
    let mask = Mask::from_spec(spec);
    let streams = connection.open_streams(&spec.name(), mask.clone());
    let caller = Caller { plugin: spec.name(), connection, timeouts: spec.timeouts, meter: spec.meter.clone(), mask };
    let info = caller.init(&spec.config, &spec.connector).await.map_err(|error| {
        let message = match error {
            CallError::Refused { message, .. } => message,
            other => other.to_string(),
        };
        StartError::Init { path: path(), message }
    })?;
    let (unusable, unanswered, features) = (CancellationToken::new(), AtomicU32::new(0), info.features);
    Ok((LiveProcess { caller, unusable, unanswered, features }, streams, info))
}
