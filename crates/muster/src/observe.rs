//! Telemetry of this process: metrics and health over HTTP, spans to a collector, and state dumps on SIGUSR1.

use std::sync::Arc;

use muster_config::{InvalidListenAddress, ListenAddress};
use muster_telemetry::http::{ListenError, Server};
use muster_telemetry::logs::dump_threads;
use muster_telemetry::spans::SpanSettings;
use muster_telemetry::{Build, Telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Version and origin of this executable. Packagers can set the environment variables `MUSTER_*` at build time.
pub(crate) const BUILD: Build = Build {
    name: "muster",
    version: env!("CARGO_PKG_VERSION"),
    revision: or_unknown(option_env!("MUSTER_REVISION")),
    branch: or_unknown(option_env!("MUSTER_BRANCH")),
    built_at: or_unknown(option_env!("MUSTER_BUILT_AT")),
};

const fn or_unknown(text: Option<&'static str>) -> &'static str {
    match text {
        Some(text) => text,
        None => "unknown",
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ObserveError {
    #[error(transparent)]
    Address(#[from] InvalidListenAddress),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Running telemetry of a manager. [`Self::stop`] sends the last spans.
pub(crate) struct TelemetryRuntime {
    pub(crate) telemetry: Arc<Telemetry>,
    /// `None` if the metrics server is not enabled.
    pub(crate) address: Option<std::net::SocketAddr>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl TelemetryRuntime {
    /// Starts the metrics server if `listen` is an address, and the exporter of spans if OpenTelemetry's variables
    /// configure it.
    ///
    /// # Errors
    /// If the address is invalid or cannot be used.
    pub(crate) async fn start(listen: Option<&str>) -> Result<Self, ObserveError> {
        let (spans, problems) = SpanSettings::read(|name| std::env::var(name).ok());
        for problem in problems {
            tracing::warn!(problem, "ignored invalid OpenTelemetry setting");
        }
        let telemetry = Telemetry::new(&BUILD, crate::logging::handle().state(), spans);
        let (stop, mut tasks, mut bound_address) = (CancellationToken::new(), JoinSet::new(), None);
        match listen.filter(|address| !address.trim().is_empty()) {
            Some(address) => {
                let address: ListenAddress = address.parse()?;
                let server = Server::bind(address.host(), address.port(), Arc::clone(&telemetry)).await?;
                bound_address = server.address().ok();
                tasks.spawn(server.serve(stop.clone()));
            }
            None => tracing::info!("listen_address not defined, metrics & debug endpoints disabled"),
        }
        tasks.spawn(dump_on_signal(Arc::clone(&telemetry), stop.clone()));
        Ok(Self { telemetry, address: bound_address, stop, tasks })
    }

    pub(crate) async fn stop(mut self) {
        self.telemetry.tracer.flush().await;
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Logs the stacks of all threads and the state of all jobs on each SIGUSR1. As in gitlab-runner, does so only at log
/// level debug.
async fn dump_on_signal(telemetry: Arc<Telemetry>, stop: CancellationToken) {
    let mut signals = match signal(SignalKind::user_defined1()) {
        Ok(signals) => signals,
        Err(error) => return tracing::warn!(%error, "failed to install a handler for SIGUSR1"),
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            received = signals.recv() => if received.is_none() { return },
        }
        if crate::logging::handle().is_debug() {
            dump_threads();
            for job in telemetry.metrics.list_jobs().lines() {
                tracing::debug!(job, "job state");
            }
        }
    }
}
