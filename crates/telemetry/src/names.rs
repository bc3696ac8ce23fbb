//! Definitions of all metrics: name, type, labels, buckets and help text.
//!
//! `docs/reference/metrics.md` documents the same list, and a test compares the two. Names that start with `gitlab_runner_` are
//! gitlab-runner's, with its labels and buckets (docs/spec/runner-config.md, section 3.2), so that dashboards and alerts for it
//! continue to work. Muster's own names start with `muster_`.

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A number that only increases while the process runs.
    Counter,
    /// A number that can increase and decrease.
    Gauge,
    /// A distribution, with these upper bounds of the buckets.
    Histogram(&'static [f64]),
}

/// Scope of a metric, which determines the labels that all its series have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The process. No labels.
    Process,
    /// A `[[runners]]` entry. Labels: `runner`, `runner_name`, `system_id`.
    Entry,
    /// A `[[runners]]` entry without `system_id`, for a metric in which gitlab-runner omits it. Labels: `runner`, `runner_name`.
    EntryName,
    /// A runner token. Labels: `runner`, `system_id`.
    Token,
}

impl Scope {
    /// Returns the labels that every series of this scope has.
    #[must_use]
    pub fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Process => &[],
            Self::Entry => &["runner", "runner_name", "system_id"],
            Self::EntryName => &["runner", "runner_name"],
            Self::Token => &["runner", "system_id"],
        }
    }
}

/// Definition of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Definition {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: Kind,
    /// Scope, which has further labels.
    pub scope: Scope,
    /// Labels in addition to those of the scope.
    pub labels: &'static [&'static str],
    /// Help text, one line.
    pub help: &'static str,
}

const JOB_SECONDS: &[f64] = &[30., 60., 300., 600., 1800., 3600., 7200., 10800., 18000., 36000.];
const QUEUE_SECONDS: &[f64] = &[1., 3., 10., 30., 60., 120., 300., 900., 1800., 3600.];
const CALL_SECONDS: &[f64] = &[0.1, 0.25, 0.5, 1., 2.5, 5., 10., 30., 60.];
/// Upper bounds for steps inside Muster, which normally take milliseconds.
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

/// Upper bounds for the creation of a machine, which are gitlab-runner's: from 30 s on, each 1.25 times the one before.
const CREATION_SECONDS: &[f64] = &[
    30.,
    37.5,
    46.875,
    58.59375,
    73.2421875,
    91.552734375,
    114.44091796875,
    143.0511474609375,
    178.813_934_326_171_88,
    223.517_417_907_714_84,
];
const OPERATION_SECONDS: &[f64] = &[1., 5., 10., 15., 30., 45., 60., 90., 120., 180.];
const LIFE_SECONDS: &[f64] = &[60., 300., 600., 900., 1800., 3600., 21600., 43200., 86400.];
/// Upper bounds for numbers of jobs or slots.
const SHARED_COUNTS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0];
const PRESSURE_RATIOS: &[f64] = &[0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8];
const SLOW_DOWN_RATIOS: &[f64] = &[0.8, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0];
const PLUGIN_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1., 5., 15., 60., 120., 300.];
const WAIT_SECONDS: &[f64] = &[0.01, 0.1, 0.5, 1., 5., 15., 30., 60., 120., 300., 900., 3600.];

const fn fleet(name: &'static str, kind: Kind, labels: &'static [&'static str], help: &'static str) -> Definition {
    Definition { name, kind, scope: Scope::Entry, labels, help }
}

/// Metrics of autoscaled runners, which other crates count and a [`crate::metrics::Source`] exposes.
///
/// The names are those of fleeting and taskscaler, with their labels and buckets (docs/spec/runner-config.md, section 3.5), and
/// Muster's own.
pub const FLEET: &[Definition] = &[
    fleet("fleeting_provisioner_max_instances", Kind::Gauge, &[], "The most instances; 0: no limit."),
    fleet("fleeting_provisioner_instances", Kind::Gauge, &["state"], "Instances by state."),
    fleet("fleeting_provisioner_instance_operations_total", Kind::Counter, &["operation"], "Operations on instances."),
    fleet("fleeting_provisioner_internal_operations_total", Kind::Counter, &["operation"], "Calls of the plugin."),
    fleet(
        "fleeting_provisioner_missed_updates_total",
        Kind::Counter,
        &[],
        "Times that a known instance was missing in a list.",
    ),
    fleet(
        "fleeting_provisioner_instance_creation_time_seconds",
        Kind::Histogram(OPERATION_SECONDS),
        &[],
        "From the request for an instance to its first sight.",
    ),
    fleet(
        "fleeting_provisioner_instance_is_running_time_seconds",
        Kind::Histogram(OPERATION_SECONDS),
        &[],
        "From the request for an instance until it runs.",
    ),
    fleet(
        "fleeting_provisioner_instance_deletion_time_seconds",
        Kind::Histogram(OPERATION_SECONDS),
        &[],
        "From the first removal of an instance until it is gone.",
    ),
    fleet(
        "fleeting_provisioner_instance_life_duration_seconds",
        Kind::Histogram(LIFE_SECONDS),
        &[],
        "From the first sight of an instance until it is gone.",
    ),
    fleet(
        "gitlab_runner_autoscaling_machine_states",
        Kind::Gauge,
        &["state"],
        "Instances by the machine states of docker+machine.",
    ),
    fleet(
        "gitlab_runner_autoscaling_machine_creation_duration_seconds",
        Kind::Histogram(CREATION_SECONDS),
        &[],
        "From the request for an instance until jobs can have it.",
    ),
    fleet("fleeting_taskscaler_max_tasks_per_instance", Kind::Gauge, &[], "Slots of an instance."),
    fleet(
        "fleeting_taskscaler_max_use_count_per_instance",
        Kind::Gauge,
        &[],
        "Jobs of an instance in its life; 0: no limit.",
    ),
    fleet(
        "fleeting_taskscaler_desired_instances",
        Kind::Gauge,
        &[],
        "Instances to create (positive) or to remove (negative).",
    ),
    fleet("fleeting_taskscaler_tasks", Kind::Gauge, &["state"], "Slots by state."),
    fleet("fleeting_taskscaler_task_operations_total", Kind::Counter, &["operation"], "Operations on slots."),
    fleet(
        "fleeting_taskscaler_scale_operations_total",
        Kind::Counter,
        &["operation"],
        "Instances that were created, and those that were removed because nobody needed them.",
    ),
    fleet(
        "fleeting_taskscaler_task_instance_readiness_time_seconds",
        Kind::Histogram(OPERATION_SECONDS),
        &[],
        "From running until jobs can have an instance.",
    ),
    fleet(
        "muster_taskscaler_cost_per_hour",
        Kind::Gauge,
        &[],
        "What the instances cost per hour at most, by the prices that are known.",
    ),
    fleet(
        "muster_taskscaler_unmanaged_instances",
        Kind::Gauge,
        &[],
        "Instances in the groups that this manager did not create.",
    ),
    fleet(
        "muster_taskscaler_instance_jobs",
        Kind::Histogram(SHARED_COUNTS),
        &[],
        "Jobs on an instance when one starts there, with that one.",
    ),
    fleet("muster_taskscaler_job_slots", Kind::Histogram(SHARED_COUNTS), &[], "Slots that a job takes."),
    fleet(
        "muster_taskscaler_job_pressure_ratio",
        Kind::Histogram(PRESSURE_RATIOS),
        &["resource"],
        "Part of a job's time in which something of it waited for a resource.",
    ),
    fleet(
        "muster_taskscaler_job_slowdown_ratio",
        Kind::Histogram(SLOW_DOWN_RATIOS),
        &["neighbors"],
        "Run time of a job divided by the usual run time alone, by its average number of neighbors.",
    ),
    fleet(
        "muster_taskscaler_sticky_context_lookups_total",
        Kind::Counter,
        &["result"],
        "Jobs that found their sticky context on the instance (`hit`), or did not (`miss`).",
    ),
    fleet("muster_taskscaler_removals_total", Kind::Counter, &["reason"], "Deleted instances by reason."),
    fleet(
        "muster_taskscaler_creation_failures_total",
        Kind::Counter,
        &[],
        "Creations that failed, or gave nothing that got ready.",
    ),
    fleet("muster_taskscaler_list_failures_total", Kind::Counter, &[], "Failed attempts to list instances."),
    fleet("muster_taskscaler_lost_jobs_total", Kind::Counter, &[], "Jobs whose instance was lost."),
    fleet(
        "muster_taskscaler_acquire_wait_seconds",
        Kind::Histogram(WAIT_SECONDS),
        &[],
        "How long jobs waited for a slot.",
    ),
    fleet("muster_plugin_up", Kind::Gauge, &["group"], "Whether the plugin runs and can be called."),
    fleet("muster_plugin_starts_total", Kind::Counter, &["group", "result"], "Starts of the plugin's process."),
    fleet("muster_plugin_calls_total", Kind::Counter, &["group", "rpc", "result"], "Calls of the plugin by result."),
    fleet(
        "muster_plugin_call_seconds",
        Kind::Histogram(PLUGIN_SECONDS),
        &["group", "rpc"],
        "Time of each call of the plugin.",
    ),
    fleet(
        "muster_plugin_invalid_responses_total",
        Kind::Counter,
        &["group", "rpc"],
        "Invalid responses of the plugin, and responses with invalid parts.",
    ),
    fleet(
        "muster_plugin_log_lines_dropped_total",
        Kind::Counter,
        &["group"],
        "Lines of the plugin's log that were dropped because there were too many.",
    ),
    fleet("muster_instances_measured", Kind::Gauge, &[], "Instances of which the plugin says what they use."),
    fleet("muster_instances_busy_cpus", Kind::Gauge, &[], "Processors that these instances keep busy."),
    fleet("muster_instances_memory_bytes", Kind::Gauge, &[], "Memory that these instances use."),
    fleet("muster_instances_processes", Kind::Gauge, &[], "Processes on these instances."),
    fleet(
        "muster_nesting_operations_total",
        Kind::Counter,
        &["operation"],
        "Virtual machines on instances: what was done with them.",
    ),
    fleet(
        "muster_nesting_create_seconds",
        Kind::Histogram(OPERATION_SECONDS),
        &[],
        "From the request for a virtual machine until its agent answers.",
    ),
    fleet(
        "muster_nesting_delete_seconds",
        Kind::Histogram(OPERATION_SECONDS),
        &[],
        "How long the removal of a virtual machine took.",
    ),
];

macro_rules! metrics {
    ($($id:ident = $kind:expr, $scope:ident, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        $(#[doc = $help]
        pub const $id: Definition =
            Definition { name: $name, kind: $kind, scope: Scope::$scope, labels: &[$($label),*], help: $help };)*
        /// All metrics that this crate counts.
        pub const ALL: &[Definition] = &[$($id),*];
    };
}

metrics! {
    CONCURRENT = Kind::Gauge, Process, "gitlab_runner_concurrent", [], "Jobs that the whole process may run at once.";
    LIMIT = Kind::Gauge, Entry, "gitlab_runner_limit", [], "Jobs that the runner may run at once; 0 is no limit of its own.";
    JOBS = Kind::Gauge, Entry, "gitlab_runner_jobs", ["state", "stage", "executor_stage"], "Jobs that are under way now.";
    JOBS_TOTAL = Kind::Counter, Entry, "gitlab_runner_jobs_total", [], "Jobs taken.";
    JOB_DURATION = Kind::Histogram(JOB_SECONDS), Entry, "gitlab_runner_job_duration_seconds", ["mode"], "From taking a job to having reported it.";
    JOB_STAGE_DURATION = Kind::Histogram(QUEUE_SECONDS), Entry, "gitlab_runner_job_stage_duration_seconds", ["stage"], "Time of each stage, for runners with FF_EXPORT_HIGH_CARDINALITY_METRICS.";
    JOB_EXECUTION_MODE = Kind::Counter, Process, "gitlab_runner_job_execution_mode_total", ["mode", "executor"], "Jobs by the form in which their work is written.";
    JOB_QUEUE_DURATION = Kind::Histogram(QUEUE_SECONDS), Entry, "gitlab_runner_job_queue_duration_seconds", ["project_jobs_running"], "Time in the server's queue, as the server says.";
    JOB_QUEUE_SIZE = Kind::Gauge, Entry, "gitlab_runner_job_queue_size", [], "Queue size that came with the last job.";
    JOB_QUEUE_DEPTH = Kind::Gauge, Entry, "gitlab_runner_job_queue_depth", [], "Queue depth that came with the last job.";
    REQUEST_CONCURRENCY = Kind::Gauge, Token, "gitlab_runner_request_concurrency", [], "Job requests that are open now.";
    REQUEST_CONCURRENCY_EXCEEDED = Kind::Counter, Token, "gitlab_runner_request_concurrency_exceeded_total", [], "Times that a further job request was wanted and the limit forbade it.";
    REQUEST_CONCURRENCY_HARD_LIMIT = Kind::Gauge, Token, "gitlab_runner_request_concurrency_hard_limit", [], "Most open job requests that the configuration allows.";
    REQUEST_CONCURRENCY_ADAPTIVE_LIMIT = Kind::Gauge, Token, "gitlab_runner_request_concurrency_adaptive_limit", [], "Open job requests that the load of the moment calls for.";
    REQUEST_CONCURRENCY_USED_LIMIT = Kind::Gauge, Token, "gitlab_runner_request_concurrency_used_limit", [], "Open job requests that are allowed now.";
    WORKER_FEEDS = Kind::Counter, Entry, "gitlab_runner_worker_feeds_total", [], "Job requests that were started.";
    WORKER_FEED_FAILURES = Kind::Counter, Entry, "gitlab_runner_worker_feed_failures_total", [], "Times that the runner was put off, since the server refuses it again and again.";
    WORKER_SLOTS = Kind::Gauge, Process, "gitlab_runner_worker_slots_number", [], "Slots for jobs.";
    WORKER_SLOT_OPERATIONS = Kind::Counter, Process, "gitlab_runner_worker_slot_operations_total", ["operation"], "Slots that were added and removed.";
    WORKER_PROCESSING_FAILURES = Kind::Counter, Entry, "gitlab_runner_worker_processing_failures_total", ["failure_type"], "Jobs and requests that did not work out.";
    WORKER_HEALTH_CHECK_FAILURES = Kind::Counter, Entry, "gitlab_runner_worker_health_check_failures_total", [], "Answers to job requests that count against the runner's health.";
    FAILED_JOBS = Kind::Counter, EntryName, "gitlab_runner_failed_jobs_total", ["failure_reason", "mode"], "Jobs that failed, by the reason that was reported.";
    ERRORS = Kind::Counter, Process, "gitlab_runner_errors_total", ["level"], "Records of the log at level warning and above.";
    PROCESS_STATE = Kind::Gauge, Process, "gitlab_runner_process_state_info", ["state"], "1 for the state in which the process is.";
    VERSION = Kind::Gauge, Process, "gitlab_runner_version_info", ["name", "version", "revision", "branch", "go_version", "built_at", "os", "architecture"], "1; the labels say which build this is.";
    CONFIGURATION_LOADED = Kind::Counter, Process, "gitlab_runner_configuration_loaded_total", [], "Times that the configuration was loaded.";
    CONFIGURATION_LOADING_ERROR = Kind::Counter, Process, "gitlab_runner_configuration_loading_error_total", [], "Times that the configuration could not be loaded.";
    CONFIGURATION_SAVED = Kind::Counter, Process, "gitlab_runner_configuration_saved_total", [], "Times that this process wrote the configuration.";
    CONFIGURATION_SAVING_ERROR = Kind::Counter, Process, "gitlab_runner_configuration_saving_error_total", [], "Times that this process could not write the configuration.";
    API_STATUSES = Kind::Counter, Token, "gitlab_runner_api_request_statuses_total", ["endpoint", "status", "method"], "Calls to the server by what came of them; status -1 is no answer.";
    API_DURATION = Kind::Histogram(CALL_SECONDS), Token, "gitlab_runner_api_request_duration_seconds", ["endpoint", "status_class", "method"], "Time of each call to the server; a job request may be held by it.";
    PROCESS_CPU = Kind::Counter, Process, "process_cpu_seconds_total", [], "CPU time of this process, user and system.";
    PROCESS_OPEN_FDS = Kind::Gauge, Process, "process_open_fds", [], "File descriptors in use.";
    PROCESS_MAX_FDS = Kind::Gauge, Process, "process_max_fds", [], "File descriptors that may be in use.";
    PROCESS_RESIDENT = Kind::Gauge, Process, "process_resident_memory_bytes", [], "Memory that is resident.";
    PROCESS_VIRTUAL = Kind::Gauge, Process, "process_virtual_memory_bytes", [], "Address space in use.";
    PROCESS_VIRTUAL_MAX = Kind::Gauge, Process, "process_virtual_memory_max_bytes", [], "Address space that may be in use.";
    PROCESS_START = Kind::Gauge, Process, "process_start_time_seconds", [], "Start of the process, in seconds since 1970.";
    HANDOVER = Kind::Histogram(FINE_SECONDS), Entry, "muster_job_handover_seconds", [], "From the answer that brought a job to an agent that has it.";
    STAGE = Kind::Histogram(FINE_SECONDS), Process, "muster_job_stage_seconds", ["stage"], "Time of each stage of a job, of all runners.";
    JOB_CPU = Kind::Histogram(CPU_SECONDS), Entry, "muster_job_cpu_seconds", [], "CPU time that a job used, by its cgroup or its processes.";
    JOB_MEMORY = Kind::Histogram(MEMORY_BYTES), Entry, "muster_job_memory_bytes", [], "The most memory that a job had at once, by its cgroup, or that of its largest process.";
    HEARTBEAT_AGE = Kind::Gauge, Token, "muster_heartbeat_age_seconds", [], "Time since the server last took something that this manager told it.";
    RECOVERED = Kind::Counter, Entry, "muster_recovered_jobs_total", [], "Jobs of an earlier start of the manager that this one took up.";
    WAITING = Kind::Gauge, Entry, "muster_waiting_jobs", [], "Jobs that wait because `concurrent` or `limit` is reached.";
    UNREPORTED = Kind::Gauge, Entry, "muster_unreported_jobs", [], "Jobs that have ended and whose end the server has not acknowledged yet.";
    TRACE_BYTES = Kind::Counter, Entry, "muster_trace_bytes_total", [], "Bytes of job logs that the server has acknowledged.";
    TRACE_WAITING = Kind::Gauge, Entry, "muster_trace_waiting_bytes", [], "Bytes of job logs that were read from agents and not yet acknowledged by the server.";
    REPORT_RETRIES = Kind::Counter, Entry, "muster_report_retries_total", [], "Uploads of logs and states that failed and are repeated.";
    INPUTS_INTERPOLATIONS = Kind::Counter, Process, "gitlab_runner_job_inputs_interpolations_total", [], "Texts of jobs into which inputs were put.";
    INPUTS_INTERPOLATION_FAILURES = Kind::Counter, Process, "gitlab_runner_job_inputs_interpolation_failures_total", ["error_type"], "Jobs that failed since their inputs could not be put in.";
    STORE = Kind::Histogram(FINE_SECONDS), Process, "muster_store_seconds", ["operation"], "Time of each write to the manager's own state.";
    SPANS = Kind::Counter, Process, "muster_spans_total", ["result"], "Spans that were exported, refused, or dropped since the exporter could not keep up.";
}
