//! Observability: metrics, traces, logs, and the HTTP server that exposes them.
//!
//! ```text
//! manager ----- calls -------------> metrics -- scrape --> http (listen_address)
//!         ----- result tree of job -> spans --- OTLP ----> collector
//! all crates -- tracing -----------> logs --- lines -----> standard error, syslog
//! ```
//!
//! There is no listener without an address and no exporter without an endpoint. A slow or failed exporter never delays jobs.
//! Invariant J6: no log, metric or span contains the value of a secret, except records of [`logs::UNREDACTED_TARGET`].

pub mod http;
pub mod logs;
pub mod metrics;
pub mod names;
pub mod spans;
mod state;

use std::sync::Arc;

pub use state::{Lifecycle, ProcessState};

/// Name and version of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Build {
    /// Name of the program.
    pub name: &'static str,
    /// Version of the program.
    pub version: &'static str,
    /// Commit from which it was built, or `unknown`.
    pub revision: &'static str,
    /// Branch from which it was built, or `unknown`.
    pub branch: &'static str,
    /// Time of the build, or `unknown`.
    pub built_at: &'static str,
}

/// Metrics, process state and traces of a process.
pub struct Telemetry {
    /// Metrics.
    pub metrics: metrics::Metrics,
    /// State of the process.
    pub lifecycle: Lifecycle,
    /// Traces of jobs.
    pub tracer: spans::Tracer,
    /// Endpoints that other crates add to the HTTP server.
    pub endpoints: http::Endpoints,
}

impl Telemetry {
    /// Creates the telemetry of a process. `log` is the state of its log, and `spans` configures the export of traces.
    #[must_use]
    pub fn new(build: &Build, log: &Arc<logs::LogState>, spans: spans::SpanSettings) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            metrics: metrics::Metrics::new(build, log),
            lifecycle: Lifecycle::default(),
            tracer: spans::Tracer::new(spans, this),
            endpoints: http::Endpoints::default(),
        })
    }
}
