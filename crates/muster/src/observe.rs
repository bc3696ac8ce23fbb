//! What this process tells of itself: metrics and health over HTTP, spans to a collector, its state on SIGUSR1.

use std::sync::Arc;

use muster_config::{ListenAddress, NotAnAddress};
use muster_telemetry::http::{ListenError, Server};
use muster_telemetry::logs::dump_threads;
use muster_telemetry::spans::SpanSettings;
use muster_telemetry::{Build, Telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Which program this is; packagers set the variables.
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

/// Why the server of metrics was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObserveError {
    #[error(transparent)]
    Address(#[from] NotAnAddress),
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// The observers of a manager at work.
pub(crate) struct Observed {
    pub(crate) telemetry: Arc<Telemetry>,
    /// Where the server listens.
    pub(crate) address: Option<std::net::SocketAddr>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Observed {
    /// Starts what is configured: the server where there is an address to listen on, spans by the usual variables.
    ///
    /// # Errors
    /// [`ObserveError`].
    pub(crate) async fn start(listen: Option<&str>) -> Result<Self, ObserveError> {
        let (spans, problems) = SpanSettings::read(|name| std::env::var(name).ok());
        for problem in problems {
            tracing::warn!(problem, "a setting of OpenTelemetry is left out");
        }
        let telemetry = Telemetry::new(&BUILD, crate::logging::handle().state(), spans);
        let (stop, mut tasks, mut bound) = (CancellationToken::new(), JoinSet::new(), None);
        match listen.filter(|address| !address.trim().is_empty()) {
            Some(address) => {
                let address: ListenAddress = address.parse()?;
                let server = Server::bind(address.host(), address.port(), Arc::clone(&telemetry)).await?;
                bound = server.address().ok();
                tasks.spawn(server.serve(stop.clone()));
            }
            None => tracing::info!("listen_address not defined, metrics & debug endpoints disabled"),
        }
        tasks.spawn(dumps(Arc::clone(&telemetry), stop.clone()));
        Ok(Self { telemetry, address: bound, stop, tasks })
    }

    /// Sends the last spans, and ends the server.
    pub(crate) async fn stop(mut self) {
        self.telemetry.tracer.flush().await;
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Writes what threads and jobs do to the log, each time that SIGUSR1 asks for it; at level debug, as GitLab Runner.
async fn dumps(telemetry: Arc<Telemetry>, stop: CancellationToken) {
    let mut asked = match signal(SignalKind::user_defined1()) {
        Ok(asked) => asked,
        Err(error) => return tracing::warn!(%error, "SIGUSR1 cannot be heard"),
    };
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            received = asked.recv() => if received.is_none() { return },
        }
        if crate::logging::handle().is_debug() {
            dump_threads();
            for job in telemetry.metrics.list_jobs().lines() {
                tracing::debug!(job, "state of a job");
            }
        }
    }
}
