//! Restarts a plugin's process when it dies or hangs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::{CallError, Caller};
use super::connection::{Connection, Streams};
use super::group::{Callable, Status};
use super::handshake::Address;
use super::mask::Mask;
use super::process::Process;
use super::{PluginSpec, StartError};
use crate::causes::causes;
use crate::model::GroupInfo;

/// Time after which a process counts as stable: the next restart then starts with the shortest delay again.
const PROVEN: Duration = Duration::from_secs(60);

/// Whether there is a process that can be called.
#[derive(Debug, Clone)]
pub(super) enum Running {
    Up(Arc<Callable>),
    Down,
}

/// One process of the plugin.
struct Instance {
    process: Process,
    callable: Arc<Callable>,
    _streams: Streams,
    since: Instant,
}

/// Owner of the plugin's process.
pub(super) struct Supervisor {
    spec: PluginSpec,
    name: String,
    id: String,
    stop: CancellationToken,
    current: Option<Instance>,
    running: watch::Sender<Running>,
    status: watch::Sender<Status>,
}

/// Reason why a process ended.
enum Gone {
    Stop,
    Because(String),
}

impl Supervisor {
    /// Starts the plugin for the first time.
    pub(super) async fn start(spec: PluginSpec, stop: CancellationToken) -> Result<(Self, GroupInfo), StartError> {
        let (instance, info) = counted_start(&spec).await?;
        let running = Running::Up(Arc::clone(&instance.callable));
        let (name, status) = (spec.name(), Status::Up { pid: instance.process.pid() });
        let supervisor = Self {
            spec,
            name,
            id: info.id.clone(),
            stop,
            current: Some(instance),
            running: watch::Sender::new(running),
            status: watch::Sender::new(status),
        };
        Ok((supervisor, info))
    }

    pub(super) fn running(&self) -> watch::Receiver<Running> {
        self.running.subscribe()
    }

    pub(super) fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Waits for the process to end and restarts it, until the supervisor is stopped.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let cause = match self.current.take() {
                Some(instance) => {
                    let since = instance.since;
                    match self.watch(instance).await {
                        Gone::Stop => break,
                        Gone::Because(cause) => {
                            failures = if since.elapsed() >= PROVEN { 0 } else { failures };
                            cause
                        }
                    }
                }
                None if self.stop.is_cancelled() => break,
                None => match self.again().await {
                    Ok(()) => continue,
                    Err(error) => causes(&error),
                },
            };
            failures += 1;
            let pause = self.pause(failures);
            tracing::error!(
                plugin = self.name,
                cause,
                failures,
                pause_ms = pause.as_millis(),
                "plugin process is gone; it is started again"
            );
            self.spec.meter.went_down();
            self.running.send_replace(Running::Down);
            self.status.send_replace(Status::Down { cause, failures });
            tokio::select! {
                () = self.stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.running.send_replace(Running::Down);
        self.status.send_replace(Status::Stopped);
    }

    /// Waits until the process ends or hangs, or the supervisor is stopped. No process is left afterwards.
    async fn watch(&self, mut instance: Instance) -> Gone {
        let cause = tokio::select! {
            ended = instance.process.ended() => match ended {
                Ok(status) => format!("plugin process exited ({status}){}", instance.process.last_words().await),
                Err(error) => format!("plugin process cannot be waited for: {error}"),
            },
            () = instance.callable.hung.cancelled() => "it did not answer".to_owned(),
            () = self.stop.cancelled() => {
                self.end(instance).await;
                return Gone::Stop;
            }
        };
        instance.process.kill().await;
        Gone::Because(cause)
    }

    /// Stops the plugin in order (H11): `Shutdown`, then the request to exit, then SIGKILL if the process is still running.
    async fn end(&self, instance: Instance) {
        let Instance { process, callable, _streams: streams, .. } = instance;
        let caller = &callable.caller;
        if let Err(error) = caller.shutdown().await {
            tracing::warn!(plugin = self.name, %error, "the plugin could not clean up after itself");
        }
        let _ = tokio::time::timeout(self.spec.limits.exit, caller.connection.end_process()).await;
        drop(streams);
        if !process.end_within(self.spec.limits.exit).await {
            tracing::debug!(plugin = self.name, "the plugin did not end by itself and was killed");
        }
    }

    async fn again(&mut self) -> Result<(), StartError> {
        let (mut instance, info) = tokio::select! {
            started = counted_start(&self.spec) => started?,
            // Dropping a start that is under way kills its process.
            () = self.stop.cancelled() => return Ok(()),
        };
        if info.id != self.id {
            instance.process.kill().await;
            let path = self.spec.executable.clone();
            return Err(StartError::OtherGroup { path, wanted: self.id.clone(), found: info.id });
        }
        tracing::info!(plugin = self.name, "plugin runs again");
        self.running.send_replace(Running::Up(Arc::clone(&instance.callable)));
        self.status.send_replace(Status::Up { pid: instance.process.pid() });
        self.current = Some(instance);
        Ok(())
    }

    /// Returns the delay before the next start: it doubles with each failure, with jitter.
    fn pause(&self, failures: u32) -> Duration {
        let limits = &self.spec.limits;
        let doubled = limits.restart_first.saturating_mul(1 << (failures - 1).min(16));
        doubled.min(limits.restart_cap).mul_f64(rand::rng().random_range(0.75..1.25))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.spec.meter.went_down();
    }
}

async fn counted_start(spec: &PluginSpec) -> Result<(Instance, GroupInfo), StartError> {
    let started = start(spec).await;
    match &started {
        Ok(_) => spec.meter.started(),
        Err(_) => spec.meter.start_failed(),
    }
    started
}

/// Starts the process and performs handshake, connection and `Init`. If a step fails, no process is left.
async fn start(spec: &PluginSpec) -> Result<(Instance, GroupInfo), StartError> {
    let (mut process, handshake) = Process::start(spec).await?;
    match prepare(spec, &handshake.address).await {
        Ok((callable, streams, info)) => {
            let instance = Instance { process, callable: Arc::new(callable), _streams: streams, since: Instant::now() };
            Ok((instance, info))
        }
        Err(error) => {
            process.kill().await;
            Err(error)
        }
    }
}

async fn prepare(spec: &PluginSpec, address: &Address) -> Result<(Callable, Streams, GroupInfo), StartError> {
    let path = || spec.executable.clone();
    let unreachable = |cause| {
        let address = match address {
            Address::Unix(socket) => socket.display().to_string(),
            Address::Tcp(address) => address.clone(),
        };
        StartError::Connect { path: path(), address, cause }
    };
    let connection = match tokio::time::timeout(spec.limits.start, Connection::open(address)).await {
        Ok(opened) => opened.map_err(unreachable)?,
        Err(_) => return Err(unreachable(format!("no answer within {} s", spec.limits.start.as_secs()))),
    };
    let mask = Mask::of(spec);
    let streams = connection.open_streams(&spec.name(), mask.clone());
    let caller = Caller { plugin: spec.name(), connection, limits: spec.limits, meter: spec.meter.clone(), mask };
    let info = caller.init(&spec.config, &spec.connector).await.map_err(|error| {
        let message = match error {
            CallError::Refused { message, .. } => message,
            other => other.to_string(),
        };
        StartError::Init { path: path(), message }
    })?;
    let (hung, late, features) = (CancellationToken::new(), AtomicU32::new(0), info.features);
    Ok((Callable { caller, hung, late, features }, streams, info))
}
