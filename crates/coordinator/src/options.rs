//! The options of a coordinator: state directory, clock and limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_job::{JobId, PipelineId};

use crate::clock::{Clock, SystemClock};

/// Options for opening a coordinator.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory of the database, the traces and the artifacts. Created if necessary.
    pub dir: PathBuf,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// ID of the first pipeline in an empty database. Defaults to 1.
    pub first_pipeline_id: PipelineId,
    /// ID of the first job in an empty database. Defaults to 1.
    pub first_job_id: JobId,
    /// Time for which a job request is held if no job is available. Defaults to 50 seconds, GitLab's maximum.
    pub long_poll: Duration,
    /// Time for a runner manager to accept an assigned job before the job returns to the queue. Defaults to 60 seconds.
    pub accept_timeout: Duration,
    /// Whether managers on this machine may fetch from [`crate::GitFacts::repo_path`] instead of over HTTP.
    pub local_repository: bool,
    /// Base URL of the coordinator, such as `http://127.0.0.1:1234`.
    ///
    /// Jobs call the coordinator's API at this URL. It is also their `CI_SERVER_URL`, unless the pipeline's context sets another URL.
    pub server_url: String,
    /// Registration token that `POST /runners` accepts. `None` means that runners cannot register themselves.
    pub registration_token: Option<String>,
    /// Personal access token (`PRIVATE-TOKEN`) that may reset the token of any runner.
    ///
    /// `None` means that every personal access token is rejected.
    pub personal_token: Option<String>,
    /// Lifetime of a runner's authentication token. `None` means that tokens do not expire.
    pub runner_token_lifetime: Option<Duration>,
    /// Whether to write the events of each job to the [outbox](crate::outbox). Defaults to false.
    ///
    /// Set it only if a reader acknowledges the events: they are stored until then.
    pub write_job_events: bool,
    /// Limits of sizes and times.
    pub limits: Limits,
}

impl Options {
    /// Returns the default options for a state directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            clock: Arc::new(SystemClock::new()),
            first_pipeline_id: PipelineId(1),
            first_job_id: JobId(1),
            long_poll: Duration::from_secs(50),
            accept_timeout: Duration::from_secs(60),
            local_repository: false,
            server_url: "http://127.0.0.1".to_owned(),
            registration_token: None,
            personal_token: None,
            runner_token_lifetime: None,
            write_job_events: false,
            limits: Limits::default(),
        }
    }
}

/// Limits of sizes and times.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum size of a trace in bytes. A larger trace fails its job as `trace_size_exceeded`. Defaults to 100 MiB.
    pub trace_bytes: u64,
    /// Maximum size of an artifact in bytes. Larger ones are rejected with status 413. Defaults to 1 GiB.
    pub artifact_bytes: u64,
    /// Limits for reading an archive.
    pub unpack: muster_archive::Limits,
    /// Maximum size of a generated child configuration in bytes. Defaults to 5 MiB.
    pub child_config_bytes: u64,
    /// Maximum number of job requests that are held. Further requests are answered without a job. Defaults to 10,000.
    pub held_requests: usize,
    /// Maximum number of finished pipelines that are kept in memory, not counting their child pipelines. Defaults to 8.
    pub finished_in_memory: usize,
    /// Time that a job may run beyond its timeout before the coordinator ends it. Defaults to 15 minutes.
    pub timeout_grace: Duration,
    /// Maximum time without contact from the manager of a running or canceling job. Defaults to 1 hour.
    pub contact_timeout: Duration,
    /// Maximum time that a job waits while no runner matches. Defaults to 1 hour.
    pub pending_without_runner: Duration,
    /// Maximum time that a job waits although a runner matches. Defaults to 24 hours.
    pub pending_with_runner: Duration,
    /// Maximum time that a bridge waits for the files of a pipeline that had finished or is from an earlier process.
    ///
    /// [`crate::Coordinator::attach_sources`] provides the files. Defaults to 60 seconds.
    pub sources_timeout: Duration,
    /// Minimum time between two trace uploads while a user reads the trace. Defaults to 3 seconds.
    ///
    /// Runner managers get this time in whole seconds.
    pub trace_interval: Duration,
    /// Minimum time between two trace uploads while no user reads the trace. Defaults to 60 seconds.
    ///
    /// A runner manager learns of a cancellation when it uploads the trace, so this time delays cancellations.
    pub unwatched_trace_interval: Duration,
    /// Minimum time between two trace uploads of Muster's own managers. Defaults to 100 ms.
    pub own_trace_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            trace_bytes: 100 * 1024 * 1024,
            artifact_bytes: 1024 * 1024 * 1024,
            unpack: muster_archive::Limits::default(),
            child_config_bytes: 5 * 1024 * 1024,
            held_requests: 10_000,
            finished_in_memory: 8,
            timeout_grace: Duration::from_secs(15 * 60),
            contact_timeout: Duration::from_secs(3600),
            pending_without_runner: Duration::from_secs(3600),
            pending_with_runner: Duration::from_secs(24 * 3600),
            sources_timeout: Duration::from_secs(60),
            trace_interval: Duration::from_secs(3),
            unwatched_trace_interval: Duration::from_secs(60),
            own_trace_interval: Duration::from_millis(100),
        }
    }
}
