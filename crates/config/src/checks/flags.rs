//! Checks of feature flags (checks C009, C012, C097, C110).

use super::super::codes::Severity;
use super::super::problem::{Problem, shown_name};
use super::super::tree::Table;
use super::Check;

/// Feature flags of GitLab Runner 19.4.
const FLAGS: &[&str] = &[
    "FF_TEST_FEATURE",
    "FF_NETWORK_PER_BUILD",
    "FF_USE_LEGACY_KUBERNETES_EXECUTION_STRATEGY",
    "FF_USE_DIRECT_DOWNLOAD",
    "FF_USE_FASTZIP",
    "FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR",
    "FF_ENABLE_BASH_EXIT_CODE_CHECK",
    "FF_USE_WINDOWS_LEGACY_PROCESS_STRATEGY",
    "FF_USE_LEGACY_BASH_EVAL",
    "FF_USE_POWERSHELL_PATH_RESOLVER",
    "FF_USE_DYNAMIC_TRACE_FORCE_SEND_INTERVAL",
    "FF_SCRIPT_SECTIONS",
    "FF_ENABLE_JOB_CLEANUP",
    "FF_KUBERNETES_HONOR_ENTRYPOINT",
    "FF_POSIXLY_CORRECT_ESCAPES",
    "FF_RESOLVE_FULL_TLS_CHAIN",
    "FF_DISABLE_POWERSHELL_STDIN",
    "FF_USE_POD_ACTIVE_DEADLINE_SECONDS",
    "FF_USE_ADVANCED_POD_SPEC_CONFIGURATION",
    "FF_SECRET_RESOLVING_FAILS_IF_MISSING",
    "FF_PRINT_POD_EVENTS",
    "FF_USE_GIT_BUNDLE_URIS",
    "FF_USE_GIT_NATIVE_CLONE",
    "FF_USE_DUMB_INIT_WITH_KUBERNETES_EXECUTOR",
    "FF_USE_INIT_WITH_DOCKER_EXECUTOR",
    "FF_LOG_IMAGES_CONFIGURED_FOR_JOB",
    "FF_USE_DOCKER_AUTOSCALER_DIAL_STDIO",
    "FF_CLEAN_UP_FAILED_CACHE_EXTRACT",
    "FF_USE_WINDOWS_JOB_OBJECT",
    "FF_TIMESTAMPS",
    "FF_DISABLE_AUTOMATIC_TOKEN_ROTATION",
    "FF_USE_LEGACY_GCS_CACHE_ADAPTER",
    "FF_DISABLE_UMASK_FOR_KUBERNETES_EXECUTOR",
    "FF_USE_LEGACY_S3_CACHE_ADAPTER",
    "FF_GIT_URLS_WITHOUT_TOKENS",
    "FF_WAIT_FOR_POD_TO_BE_REACHABLE",
    "FF_MASK_ALL_DEFAULT_TOKENS",
    "FF_EXPORT_HIGH_CARDINALITY_METRICS",
    "FF_USE_FLEETING_ACQUIRE_HEARTBEATS",
    "FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY",
    "FF_USE_ADAPTIVE_REQUEST_CONCURRENCY",
    "FF_USE_GITALY_CORRELATION_ID",
    "FF_HASH_CACHE_KEYS",
    "FF_ENABLE_JOB_INPUTS_INTERPOLATION",
    "FF_USE_JOB_ROUTER",
    "FF_SCRIPT_TO_STEP_MIGRATION",
    "FF_USE_GIT_PROACTIVE_AUTH",
    "FF_CONCRETE",
    "FF_USE_PARALLEL_CACHE_TRANSFER",
    "FF_USE_PARALLEL_ARTIFACT_TRANSFER",
    "FF_SUSPENDABLE_ENVIRONMENTS",
    "FF_USE_NATIVE_CONTAINER_STOP",
];

/// Removed feature flags: name, version of the removal, help.
const REMOVED: &[(&str, &str, &str)] = &[
    ("FF_USE_NEW_BASH_EVAL_STRATEGY", "19.3", "use FF_USE_LEGACY_BASH_EVAL, which has the opposite meaning"),
    ("FF_SKIP_NOOP_BUILD_STAGES", "19.3", "remove it"),
    ("FF_SET_PERMISSIONS_BEFORE_CLEANUP", "19.3", "remove it"),
    ("FF_USE_NATIVE_STEPS", "18.6", "remove it"),
    ("FF_RETRIEVE_POD_WARNING_EVENTS", "18.0", "use the key print_pod_warning_events"),
    ("FF_USE_INFORMERS", "17.9", "remove it"),
    ("FF_USE_NEW_SHELL_ESCAPE", "17.0", "remove it"),
    ("FF_CMD_DISABLE_DELAYED_ERROR_LEVEL_EXPANSION", "17.0", "remove it"),
    ("FF_USE_IMPROVED_URL_MASKING", "16.11", "remove it"),
    ("FF_GITLAB_REGISTRY_HELPER_IMAGE", "15.0", "remove it"),
    ("FF_SKIP_DOCKER_MACHINE_PROVISION_ON_CREATION_FAILURE", "14.3", "it became a key of the configuration"),
    ("FF_RESET_HELPER_IMAGE_ENTRYPOINT", "14.0", "remove it"),
    ("FF_SHELL_EXECUTOR_USE_LEGACY_PROCESS_KILL", "14.0", "remove it"),
    ("FF_USE_GO_CLOUD_WITH_CACHE_ARCHIVER", "14.0", "remove it"),
    ("FF_USE_NEW_EVAL_STRATEGY", "13.12", "remove it"),
    ("FF_USE_LEGACY_BUILDS_DIR_FOR_DOCKER", "13.0", "remove it"),
    ("FF_USE_LEGACY_VOLUMES_MOUNTING_ORDER", "13.0", "remove it"),
    ("FF_DOCKER_HELPER_IMAGE_V2", "12.0", "remove it"),
    ("FF_K8S_USE_ENTRYPOINT_OVER_COMMAND", "12.0", "remove it"),
    ("FF_USE_LEGACY_GIT_CLEAN_STRATEGY", "12.0", "remove it"),
];

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        for (name, node) in runner.table.table("feature_flags").map(Table::entries).into_iter().flatten() {
            if FLAGS.contains(&name) {
                continue;
            }
            let problem = match REMOVED.iter().find(|(removed, ..)| *removed == name) {
                Some((_, version, hint)) => {
                    Problem::new("C012", format!("feature flag {name} was removed in GitLab Runner {version}"))
                        .help(*hint)
                }
                None => {
                    let nearest = if check.problems.is_full() { None } else { nearest(name) };
                    let hint = nearest.map_or_else(|| "remove it".to_owned(), |flag| format!("did you mean {flag}?"));
                    Problem::new("C012", format!("feature flag {} does not exist", shown_name(name))).help(hint)
                }
            };
            check.add(problem.of(runner.index, &runner.name).at(&node.key));
        }
    }
    check_metrics(check);
    check_suspension(check);
}

fn nearest(name: &str) -> Option<&'static str> {
    const MAX_LENGTH: usize = 80;
    const MAX_DISTANCE: usize = 5;
    if name.len() > MAX_LENGTH {
        return None;
    }
    let name = name.to_uppercase();
    let near = FLAGS.iter().map(|flag| (strsim::osa_distance(flag, &name), *flag)).min()?;
    (near.0 <= MAX_DISTANCE).then_some(near.1)
}

/// Check C110.
fn check_metrics(check: &mut Check<'_>) {
    const MANY_RUNNERS: usize = 10;
    let is_enabled = |table: &Table| table.bool("feature_flags.FF_EXPORT_HIGH_CARDINALITY_METRICS") == Some(true);
    let runners: Vec<_> = check.runners.iter().filter(|runner| is_enabled(&runner.table)).collect();
    if let (Some(first), true) = (runners.first(), runners.len() >= MANY_RUNNERS) {
        let message = format!("{} runners each add one histogram per job stage", runners.len());
        let key = "feature_flags.FF_EXPORT_HIGH_CARDINALITY_METRICS";
        let problem = Problem::new("C110", message).at(&first.table.span_of(key)).severity(Severity::Warning);
        check.add(problem.help("enable FF_EXPORT_HIGH_CARDINALITY_METRICS only for runners that need it"));
    }
}

/// Checks C009 and C097.
fn check_suspension(check: &mut Check<'_>) {
    const KEY: &str = "feature_flags.FF_SUSPENDABLE_ENVIRONMENTS";
    const HELP: &str = "set capacity_per_instance = 1 and max_use_count = 1 in [runners.autoscaler], without vm_isolation, \
                         and max_instances of at least 2";
    for runner in check.runners.iter().filter(|runner| runner.table.bool(KEY) == Some(true)) {
        if runner.executor != "instance" {
            let message =
                "FF_SUSPENDABLE_ENVIRONMENTS has no effect: only the executor instance has separate environments";
            check.report(runner, KEY, "C009", message, "remove it, or set executor = \"instance\"");
            continue;
        }
        let Some(autoscaler) = runner.table.table("autoscaler") else { continue };
        let is_one = |key: &str, default: i64| autoscaler.int(key).unwrap_or(default) == 1;
        let shared = !is_one("capacity_per_instance", 1) || !is_one("max_use_count", 0);
        let isolated = autoscaler.bool("vm_isolation.enabled") == Some(true);
        if shared || isolated || autoscaler.int("max_instances") == Some(1) {
            let message = "FF_SUSPENDABLE_ENVIRONMENTS is not supported: an instance can be suspended only if it runs a single job, \
                           and if the runner can have another instance";
            check.report(runner, KEY, "C009", message, HELP);
        }
        if autoscaler.bool("delete_instances_on_shutdown") == Some(true) {
            let message = "delete_instances_on_shutdown removes suspended environments when the manager exits";
            check.report(runner, KEY, "C009", message, "set delete_instances_on_shutdown = false");
        }
        if runner.id == 0 {
            let message = "FF_SUSPENDABLE_ENVIRONMENTS needs the runner's ID";
            check.report(runner, KEY, "C097", message, "set id in this [[runners]] entry");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, found};

    fn flags(text: &str) -> String {
        format!("[[runners]]\nname = \"a\"\n[runners.feature_flags]\n{text}\n")
    }

    #[test]
    fn c012_removed_and_unknown_feature_flags_are_reported() {
        assert!(found("C012", &flags("FF_USE_NATIVE_STEPS = true")).contains("was removed in GitLab Runner 18.6"));
        assert!(found("C012", &flags("FF_TIMESTAMP = true")).contains("did you mean FF_TIMESTAMPS?"));
        clean("C012", &flags("FF_TIMESTAMPS = false"));
    }

    #[test]
    fn c009_only_single_job_instances_are_suspended() {
        assert!(found("C009", &flags("FF_SUSPENDABLE_ENVIRONMENTS = true")).contains("only the executor instance"));
        clean("C009", &flags("FF_SUSPENDABLE_ENVIRONMENTS = false"));
        let runner = |keys: &str| {
            let flag = "[runners.feature_flags]\nFF_SUSPENDABLE_ENVIRONMENTS = true";
            format!("[[runners]]\nid = 7\nexecutor = \"instance\"\n{flag}\n[runners.autoscaler]\n{keys}\n")
        };
        clean("C009", &runner("max_use_count = 1\nmax_instances = 2"));
        for keys in [
            "max_instances = 2",
            "max_use_count = 1\ncapacity_per_instance = 2",
            "max_use_count = 1\nmax_instances = 1",
        ] {
            assert!(found("C009", &runner(keys)).contains("only if it runs a single job"), "{keys}");
        }
        let deleting = runner("max_use_count = 1\ndelete_instances_on_shutdown = true");
        assert!(found("C009", &deleting).contains("removes suspended environments"));
        clean("C097", &runner("max_use_count = 1"));
        found("C097", &runner("max_use_count = 1").replace("id = 7\n", ""));
    }

    #[test]
    fn c110_stage_metrics_of_ten_runners_are_reported() {
        let one = flags("FF_EXPORT_HIGH_CARDINALITY_METRICS = true");
        assert!(found("C110", &one.repeat(10)).contains("10 runners each add"));
        clean("C110", &one.repeat(9));
    }
}
