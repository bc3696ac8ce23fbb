//! Feature flags, as of GitLab Runner 19.4 (job-execution 3.6). Each job sees all of them as variables.

use super::variables::Variables;

/// Flags that are on unless a job says otherwise.
const ON: &[&str] = &[
    "FF_USE_DIRECT_DOWNLOAD",
    "FF_USE_FASTZIP",
    "FF_USE_POD_ACTIVE_DEADLINE_SECONDS",
    "FF_SECRET_RESOLVING_FAILS_IF_MISSING",
    "FF_USE_GIT_BUNDLE_URIS",
    "FF_USE_DOCKER_AUTOSCALER_DIAL_STDIO",
    "FF_TIMESTAMPS",
    "FF_MASK_ALL_DEFAULT_TOKENS",
    "FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY",
    "FF_USE_ADAPTIVE_REQUEST_CONCURRENCY",
    "FF_USE_GITALY_CORRELATION_ID",
    "FF_ENABLE_JOB_INPUTS_INTERPOLATION",
];

/// Flags that are off unless a job says otherwise.
const OFF: &[&str] = &[
    "FF_NETWORK_PER_BUILD",
    "FF_USE_LEGACY_KUBERNETES_EXECUTION_STRATEGY",
    "FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR",
    "FF_DISABLE_UMASK_FOR_KUBERNETES_EXECUTOR",
    "FF_ENABLE_BASH_EXIT_CODE_CHECK",
    "FF_USE_WINDOWS_LEGACY_PROCESS_STRATEGY",
    "FF_USE_WINDOWS_JOB_OBJECT",
    "FF_USE_LEGACY_BASH_EVAL",
    "FF_USE_POWERSHELL_PATH_RESOLVER",
    "FF_DISABLE_POWERSHELL_STDIN",
    "FF_USE_DYNAMIC_TRACE_FORCE_SEND_INTERVAL",
    "FF_SCRIPT_SECTIONS",
    "FF_ENABLE_JOB_CLEANUP",
    "FF_KUBERNETES_HONOR_ENTRYPOINT",
    "FF_POSIXLY_CORRECT_ESCAPES",
    "FF_RESOLVE_FULL_TLS_CHAIN",
    "FF_USE_ADVANCED_POD_SPEC_CONFIGURATION",
    "FF_PRINT_POD_EVENTS",
    "FF_WAIT_FOR_POD_TO_BE_REACHABLE",
    "FF_USE_DUMB_INIT_WITH_KUBERNETES_EXECUTOR",
    "FF_USE_INIT_WITH_DOCKER_EXECUTOR",
    "FF_USE_NATIVE_CONTAINER_STOP",
    "FF_LOG_IMAGES_CONFIGURED_FOR_JOB",
    "FF_CLEAN_UP_FAILED_CACHE_EXTRACT",
    "FF_USE_GIT_NATIVE_CLONE",
    "FF_USE_GIT_PROACTIVE_AUTH",
    "FF_GIT_URLS_WITHOUT_TOKENS",
    "FF_DISABLE_AUTOMATIC_TOKEN_ROTATION",
    "FF_USE_LEGACY_GCS_CACHE_ADAPTER",
    "FF_USE_LEGACY_S3_CACHE_ADAPTER",
    "FF_EXPORT_HIGH_CARDINALITY_METRICS",
    "FF_USE_FLEETING_ACQUIRE_HEARTBEATS",
    "FF_HASH_CACHE_KEYS",
    "FF_USE_JOB_ROUTER",
    "FF_SCRIPT_TO_STEP_MIGRATION",
    "FF_CONCRETE",
    "FF_USE_PARALLEL_CACHE_TRANSFER",
    "FF_USE_PARALLEL_ARTIFACT_TRANSFER",
    "FF_SUSPENDABLE_ENVIRONMENTS",
    "FF_TEST_FEATURE",
];

/// Every flag with its default.
pub(super) fn all() -> impl Iterator<Item = (&'static str, bool)> {
    ON.iter().map(|name| (*name, true)).chain(OFF.iter().map(|name| (*name, false)))
}

/// Whether `name` is a flag.
pub(super) fn is_flag(name: &str) -> bool {
    name.starts_with("FF_") && all().any(|(flag, _)| flag == name)
}

/// A flag's value, as the job sees it.
pub(super) fn is_on(variables: &Variables, name: &str) -> bool {
    variables.get(name).as_deref() == Some("true")
}
