//! How a coordinator is opened: where it keeps things, its clock, its limits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_job::{JobId, PipelineId};

use crate::clock::{Clock, SystemClock};

/// How a coordinator is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder of database, traces and artifacts; created where it is missing.
    pub dir: PathBuf,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The id of the first pipeline in an empty database.
    pub first_pipeline_id: PipelineId,
    /// The id of the first job in an empty database.
    pub first_job_id: JobId,
    /// How long a job request is held when there is no job (runner-api 2.3: at most 50 s).
    pub long_poll: Duration,
    /// How long a taker may be silent before its job goes back to the queue (rule R1).
    pub handout_lease: Duration,
    /// Managers on this machine are told of [`crate::GitFacts::repo_path`], and so need no transport for the checkout.
    pub local_repository: bool,
    /// The coordinator's base URL, `http://127.0.0.1:1234`: jobs find its API by it, and it is their `CI_SERVER_URL` unless the
    /// pipeline's context names another one.
    pub server_url: String,
    /// The registration token that `POST /runners` accepts; none: registration is closed.
    pub registration_token: Option<String>,
    /// The token of a person (`PRIVATE-TOKEN`) who may reset any runner's token; none: nobody may.
    pub personal_token: Option<String>,
    /// How long a runner's authentication token is good for; its manager renews it before. None: for ever.
    pub runner_token_lifetime: Option<Duration>,
    /// Bounds.
    pub limits: Limits,
}

impl Options {
    /// The defaults, in `dir`.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            clock: Arc::new(SystemClock::new()),
            first_pipeline_id: PipelineId(1),
            first_job_id: JobId(1),
            long_poll: Duration::from_secs(50),
            handout_lease: Duration::from_secs(60),
            local_repository: false,
            server_url: "http://127.0.0.1".to_owned(),
            registration_token: None,
            personal_token: None,
            runner_token_lifetime: None,
            limits: Limits::default(),
        }
    }
}

/// The bounds of sizes and waits.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of one trace; a larger one drops its job as `trace_size_exceeded` (GitLab: 100 MB).
    pub trace_bytes: u64,
    /// Bytes of one artifact (answered 413 above).
    pub artifact_bytes: u64,
    /// Limits of an archive that is opened, also to look into it.
    pub unpack: muster_archive::Limits,
    /// Bytes of a generated child configuration (pipeline-yaml 5.9: 5 MB).
    pub child_config_bytes: u64,
    /// Job requests that are held at once; more are answered as if their time were over.
    pub held_requests: usize,
    /// Number of finished hierarchies of pipelines that are kept in memory, so that late calls and reads of them are quick.
    pub finished_in_memory: usize,
    /// How long past its timeout a job may run by the coordinator's clock.
    pub timeout_grace: Duration,
    /// How long a running or canceling job may be silent.
    pub silence: Duration,
    /// How long a job may wait while no runner fits.
    pub pending_without_runner: Duration,
    /// How long a job may wait although a runner fits.
    pub pending_with_runner: Duration,
    /// How long the bridges of an earlier process wait for [`crate::Coordinator::attach_sources`].
    pub sources_wait: Duration,
    /// The least time between two trace uploads that runners are told while somebody reads the trace, in whole seconds.
    pub trace_interval: Duration,
    /// The same while nobody does: the runner is heard of that often, and a cancel may wait that long.
    pub unwatched_trace_interval: Duration,
    /// The same for Muster's own managers, which need not be sent whole seconds.
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
            silence: Duration::from_secs(3600),
            pending_without_runner: Duration::from_secs(3600),
            pending_with_runner: Duration::from_secs(24 * 3600),
            sources_wait: Duration::from_secs(60),
            trace_interval: Duration::from_secs(3),
            unwatched_trace_interval: Duration::from_secs(60),
            own_trace_interval: Duration::from_millis(100),
        }
    }
}
