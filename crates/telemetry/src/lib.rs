//! Names of metrics and spans, exporters, log format.
//!
//! ```text
//! manager --facts--> metrics --scrape--> http (listen_address)
//!         --job's result tree--> spans --OTLP--> collector
//! every room --tracing--> logs --runner, text or json--> standard error, the system's log
//! ```
//!
//! Nothing here runs unless it is configured: no listener without an address, no exporter without an endpoint. What is
//! observed never waits for an observer. Invariant J6: no value of a secret is in a log, a metric or a span.

pub mod http;
pub mod logs;
pub mod metrics;
pub mod names;
pub mod spans;
mod state;

use std::sync::Arc;

pub use state::{Life, ProcessState};

/// Which program this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Build {
    /// The program's name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The commit that it was built from, or `unknown`.
    pub revision: &'static str,
    /// The branch that it was built from, or `unknown`.
    pub branch: &'static str,
    /// When it was built, or `unknown`.
    pub built_at: &'static str,
}

/// What a manager tells about itself.
pub struct Telemetry {
    /// Its numbers.
    pub metrics: metrics::Metrics,
    /// Where it stands.
    pub life: Life,
    /// The traces of its jobs.
    pub tracer: spans::Tracer,
    /// What other rooms answer on its address.
    pub pages: http::Pages,
}

impl Telemetry {
    /// The telemetry of a process that is this build, logs to `log`, and sends spans as `spans` says.
    #[must_use]
    pub fn new(build: &Build, log: &Arc<logs::LogState>, spans: spans::SpanSettings) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            metrics: metrics::Metrics::new(build, log),
            life: Life::default(),
            tracer: spans::Tracer::new(spans, this),
            pages: http::Pages::default(),
        })
    }
}
