//! Definitions of the metrics that this crate counts: name, type, labels, buckets and help text.
//!
//! Names that start with `gitlab_runner_` are gitlab-runner's, with its labels and buckets (docs/spec/runner-config.md,
//! section 3.2), so that its dashboards and alerts continue to work.

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricType {
    /// A number that only increases while the process runs.
    Counter,
    /// A number that can increase and decrease.
    Gauge,
    /// A distribution, with these upper bounds of the buckets.
    Histogram(&'static [f64]),
}

impl MetricType {
    /// Returns the name of the type in the text format.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// Definition of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Definition {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: MetricType,
    /// Labels in addition to those that identify the `[[runners]]` entry or the token.
    pub labels: &'static [&'static str],
    /// Help text, one line.
    pub help: &'static str,
}

const JOB_SECONDS: &[f64] = &[30., 60., 300., 600., 1800., 3600., 7200., 10800., 18000., 36000.];
const QUEUE_SECONDS: &[f64] = &[1., 3., 10., 30., 60., 120., 300., 900., 1800., 3600.];
const CALL_SECONDS: &[f64] = &[0.1, 0.25, 0.5, 1., 2.5, 5., 10., 30., 60.];
/// Upper bounds for the stages of jobs and for Muster's own operations, which can take milliseconds.
const FINE_SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2.5, 5., 10., 30., 60., 300.];

/// Upper bounds for the CPU time of a job: from 10 ms to a day.
const CPU_SECONDS: &[f64] = &[0.01, 0.1, 1., 10., 60., 300., 900., 3600., 14400., 86400.];
/// Upper bounds for the memory of a job: from 4 MiB to 256 GiB.
const MEMORY_BYTES: &[f64] = &[
    4_194_304.,
    16_777_216.,
    67_108_864.,
    268_435_456.,
    1_073_741_824.,
    4_294_967_296.,
    17_179_869_184.,
    68_719_476_736.,
    274_877_906_944.,
];

macro_rules! metrics {
    ($($id:ident = $kind:expr, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        $(#[doc = $help]
        pub const $id: Definition =
            Definition { name: $name, kind: $kind, labels: &[$($label),*], help: $help };)*
        /// All metrics that this crate counts.
        pub const ALL: &[Definition] = &[$($id),*];
    };
}

metrics! {
    CONCURRENT = MetricType::Gauge, "gitlab_runner_concurrent", [], "Maximum number of concurrent jobs of the process.";
    LIMIT = MetricType::Gauge, "gitlab_runner_limit", [], "Maximum number of concurrent jobs of the runner. 0 means no limit.";
    JOBS = MetricType::Gauge, "gitlab_runner_jobs", ["state", "stage", "executor_stage"], "Number of current jobs.";
    JOBS_TOTAL = MetricType::Counter, "gitlab_runner_jobs_total", [], "Jobs received.";
    JOB_DURATION = MetricType::Histogram(JOB_SECONDS), "gitlab_runner_job_duration_seconds", ["mode"], "Time from receiving a job to the end of its cleanup.";
    JOB_STAGE_DURATION = MetricType::Histogram(QUEUE_SECONDS), "gitlab_runner_job_stage_duration_seconds", ["stage"], "Duration of stages, for runners with FF_EXPORT_HIGH_CARDINALITY_METRICS.";
    JOB_EXECUTION_MODE = MetricType::Counter, "gitlab_runner_job_execution_mode_total", ["mode", "executor"], "Jobs by execution mode.";
    JOB_QUEUE_DURATION = MetricType::Histogram(QUEUE_SECONDS), "gitlab_runner_job_queue_duration_seconds", ["project_jobs_running"], "Time in the server's queue, as reported by the server.";
    JOB_QUEUE_SIZE = MetricType::Gauge, "gitlab_runner_job_queue_size", [], "Queue size reported with the last job.";
    JOB_QUEUE_DEPTH = MetricType::Gauge, "gitlab_runner_job_queue_depth", [], "Queue depth reported with the last job.";
    REQUEST_CONCURRENCY = MetricType::Gauge, "gitlab_runner_request_concurrency", [], "Number of open job requests.";
    REQUEST_CONCURRENCY_EXCEEDED = MetricType::Counter, "gitlab_runner_request_concurrency_exceeded_total", [], "Number of times that the limit prevented another job request.";
    REQUEST_CONCURRENCY_HARD_LIMIT = MetricType::Gauge, "gitlab_runner_request_concurrency_hard_limit", [], "Configured maximum number of open job requests.";
    REQUEST_CONCURRENCY_ADAPTIVE_LIMIT = MetricType::Gauge, "gitlab_runner_request_concurrency_adaptive_limit", [], "Number of open job requests that the current load requires.";
    REQUEST_CONCURRENCY_USED_LIMIT = MetricType::Gauge, "gitlab_runner_request_concurrency_used_limit", [], "Effective maximum number of open job requests.";
    WORKER_FEEDS = MetricType::Counter, "gitlab_runner_worker_feeds_total", [], "Job requests sent.";
    WORKER_FEED_FAILURES = MetricType::Counter, "gitlab_runner_worker_feed_failures_total", [], "Number of times that the runner was skipped because the server had rejected it repeatedly.";
    WORKER_SLOTS = MetricType::Gauge, "gitlab_runner_worker_slots_number", [], "Number of slots for jobs.";
    WORKER_SLOT_OPERATIONS = MetricType::Counter, "gitlab_runner_worker_slot_operations_total", ["operation"], "Slots that were added and removed.";
    WORKER_PROCESSING_FAILURES = MetricType::Counter, "gitlab_runner_worker_processing_failures_total", ["failure_type"], "Jobs and requests that failed.";
    WORKER_HEALTH_CHECK_FAILURES = MetricType::Counter, "gitlab_runner_worker_health_check_failures_total", [], "Responses to job requests that count as failed health checks of the runner.";
    FAILED_JOBS = MetricType::Counter, "gitlab_runner_failed_jobs_total", ["failure_reason", "mode"], "Failed jobs by reported reason.";
    ERRORS = MetricType::Counter, "gitlab_runner_errors_total", ["level"], "Log records at level warning and above.";
    PROCESS_STATE = MetricType::Gauge, "gitlab_runner_process_state_info", ["state"], "1 for the current state of the process.";
    VERSION = MetricType::Gauge, "gitlab_runner_version_info", ["name", "version", "revision", "branch", "go_version", "built_at", "os", "architecture"], "Always 1. The labels describe the build.";
    CONFIGURATION_LOADED = MetricType::Counter, "gitlab_runner_configuration_loaded_total", [], "Successful loads of the configuration.";
    CONFIGURATION_LOADING_ERROR = MetricType::Counter, "gitlab_runner_configuration_loading_error_total", [], "Failed loads of the configuration.";
    CONFIGURATION_SAVED = MetricType::Counter, "gitlab_runner_configuration_saved_total", [], "Successful writes of the configuration by this process.";
    CONFIGURATION_SAVING_ERROR = MetricType::Counter, "gitlab_runner_configuration_saving_error_total", [], "Failed writes of the configuration by this process.";
    API_STATUSES = MetricType::Counter, "gitlab_runner_api_request_statuses_total", ["endpoint", "status", "method"], "Calls to the server by status. -1 means no response.";
    API_DURATION = MetricType::Histogram(CALL_SECONDS), "gitlab_runner_api_request_duration_seconds", ["endpoint", "status_class", "method"], "Duration of calls to the server. Includes the time for which the server holds a job request.";
    PROCESS_CPU = MetricType::Counter, "process_cpu_seconds_total", [], "CPU time of this process, user and system.";
    PROCESS_OPEN_FDS = MetricType::Gauge, "process_open_fds", [], "Number of open file descriptors.";
    PROCESS_MAX_FDS = MetricType::Gauge, "process_max_fds", [], "Maximum number of open file descriptors.";
    PROCESS_RESIDENT = MetricType::Gauge, "process_resident_memory_bytes", [], "Resident memory in bytes.";
    PROCESS_VIRTUAL = MetricType::Gauge, "process_virtual_memory_bytes", [], "Virtual memory in bytes.";
    PROCESS_VIRTUAL_MAX = MetricType::Gauge, "process_virtual_memory_max_bytes", [], "Maximum virtual memory in bytes.";
    PROCESS_START = MetricType::Gauge, "process_start_time_seconds", [], "Start time of the process in seconds since 1970.";
    DISPATCH = MetricType::Histogram(FINE_SECONDS), "muster_job_dispatch_seconds", [], "Time from the response with a job until an agent has the job.";
    STAGE = MetricType::Histogram(FINE_SECONDS), "muster_job_stage_seconds", ["stage"], "Duration of the stages of jobs, of all runners.";
    JOB_CPU = MetricType::Histogram(CPU_SECONDS), "muster_job_cpu_seconds", [], "CPU time of a job, measured by its cgroup or its processes.";
    JOB_MEMORY = MetricType::Histogram(MEMORY_BYTES), "muster_job_memory_bytes", [], "Peak memory of a job, measured by its cgroup, or of its largest process.";
    LAST_CONTACT_AGE = MetricType::Gauge, "muster_last_contact_age_seconds", [], "Time since the server last accepted a request of this manager.";
    RECOVERED = MetricType::Counter, "muster_recovered_jobs_total", [], "Jobs of an earlier manager process that this process resumed.";
    WAITING = MetricType::Gauge, "muster_waiting_jobs", [], "Number of jobs that wait because concurrent or limit is reached.";
    UNREPORTED = MetricType::Gauge, "muster_unreported_jobs", [], "Number of finished jobs whose final state the server has not acknowledged.";
    TRACE_BYTES = MetricType::Counter, "muster_trace_bytes_total", [], "Bytes of job logs that the server has acknowledged.";
    TRACE_PENDING = MetricType::Gauge, "muster_trace_pending_bytes", [], "Bytes of job logs that were read from agents and that the server has not acknowledged.";
    REPORT_RETRIES = MetricType::Counter, "muster_report_retries_total", [], "Uploads of logs and states that failed and are retried.";
    INPUTS_INTERPOLATIONS = MetricType::Counter, "gitlab_runner_job_inputs_interpolations_total", [], "Texts of jobs in which inputs were interpolated.";
    INPUTS_INTERPOLATION_FAILURES = MetricType::Counter, "gitlab_runner_job_inputs_interpolation_failures_total", ["error_type"], "Jobs that failed because inputs could not be interpolated.";
    STATE_WRITE = MetricType::Histogram(FINE_SECONDS), "muster_state_write_seconds", ["operation"], "Duration of writes to the manager's state.";
    SPANS = MetricType::Counter, "muster_spans_total", ["result"], "Spans that were exported, refused (the collector rejected them or could not be reached), or dropped because the queue was full.";
}
