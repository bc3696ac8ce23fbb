//! Checks of the kubernetes executor (checks C090 to C092 and C095 to C097).

use super::super::problem::{Problem, shown_name};
use super::super::runners::Runner;
use super::super::runtime::overwrite_without_permission;
use super::super::tree::Table;
use super::Check;

pub(super) fn check(check: &mut Check<'_>) {
    for runner in check.runners {
        let Some(kubernetes) = runner.table.table("kubernetes") else { continue };
        check_pods(check, runner, kubernetes);
        check_overwrites(check, runner, kubernetes);
        check_numeric_ids(check, runner, kubernetes);
        check_flags(check, runner, kubernetes);
    }
}

/// Checks C090 and C091.
fn check_pods(check: &mut Check<'_>, runner: &Runner, kubernetes: &Table) {
    /// gitlab-runner's default, which is often too short for pods that need a new node.
    const MIN_SECONDS: i64 = 180;
    if let Some(seconds) = kubernetes.int("poll_timeout").filter(|seconds| (1..MIN_SECONDS).contains(seconds)) {
        let message = format!("poll_timeout = {seconds} s; a pod waits longer than that when nodes must start");
        check.report(runner, "kubernetes.poll_timeout", "C090", message, "if nodes are scaled, set it to 600");
    }
    if kubernetes.str("namespace").is_none() && kubernetes.bool("namespace_per_job") != Some(true) {
        check.report(
            runner,
            "kubernetes.namespace",
            "C091",
            "namespace is empty; jobs run in \"default\"",
            "set namespace in [runners.kubernetes]",
        );
    }
}

/// Check C092.
fn check_overwrites(check: &mut Check<'_>, runner: &Runner, kubernetes: &Table) {
    for (entry, node) in runner.table.strings("environment") {
        let name = entry.split('=').next().unwrap_or_default();
        if let Some(problem) = overwrite_without_permission(name, kubernetes) {
            check.add(problem.of(runner.index, &runner.name).at(&node.span));
        }
    }
}

/// Check C095.
fn check_numeric_ids(check: &mut Check<'_>, runner: &Runner, kubernetes: &Table) {
    for key in ["allowed_users", "allowed_groups"] {
        for (entry, node) in kubernetes.strings(key) {
            if entry.parse::<u32>().is_err() {
                let message = format!("{} of {key} is not numeric and is ignored", shown_name(entry));
                check.add(
                    Problem::new("C095", message)
                        .of(runner.index, &runner.name)
                        .at(&node.span)
                        .help("write the number as a string"),
                );
            }
        }
    }
}

/// Checks C096 and C097.
fn check_flags(check: &mut Check<'_>, runner: &Runner, kubernetes: &Table) {
    let is_enabled = |flag: &str| runner.table.bool(&format!("feature_flags.{flag}")) == Some(true);
    if !kubernetes.tables("pod_spec").is_empty() && !is_enabled("FF_USE_ADVANCED_POD_SPEC_CONFIGURATION") {
        let message = "pod_spec is ignored unless FF_USE_ADVANCED_POD_SPEC_CONFIGURATION is enabled";
        check.report(runner, "kubernetes.pod_spec", "C096", message, "enable it in [runners.feature_flags]");
    }
    let suspends = is_enabled("FF_SUSPENDABLE_ENVIRONMENTS")
        || ["suspend_pvc_size", "suspend_pvc_storage_class"].iter().any(|key| kubernetes.node(key).is_some());
    if suspends && runner.id == 0 {
        let message = "FF_SUSPENDABLE_ENVIRONMENTS needs the runner's ID";
        check.report(runner, "id", "C097", message, "set id to the number on the runner's page in GitLab");
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{clean, found};

    fn kubernetes(runner: &str, text: &str) -> String {
        format!("[[runners]]\nname = \"a\"\n{runner}\n[runners.kubernetes]\n{text}\n")
    }

    #[test]
    fn c090_pods_wait_for_nodes() {
        found("C090", &kubernetes("", "poll_timeout = 60"));
        clean("C090", &kubernetes("", "poll_timeout = 600"));
        clean("C090", &kubernetes("", ""));
    }

    #[test]
    fn c091_missing_namespace_is_reported() {
        found("C091", &kubernetes("", ""));
        clean("C091", &kubernetes("", "namespace = \"ci\""));
        clean("C091", &kubernetes("", "namespace_per_job = true"));
    }

    #[test]
    fn c092_overwrites_need_permission() {
        let environment = "environment = [\"KUBERNETES_CPU_LIMIT=2\"]";
        assert!(found("C092", &kubernetes(environment, "")).contains("KUBERNETES_CPU_LIMIT is ignored"));
        clean("C092", &kubernetes(environment, "cpu_limit_overwrite_max_allowed = \"4\""));
        clean("C092", &kubernetes("environment = [\"A=b\"]", ""));
    }

    #[test]
    fn c095_users_and_groups_are_numbers() {
        assert!(found("C095", &kubernetes("", "allowed_users = [\"1000\", \"ann\"]")).contains("ann of allowed_users"));
        clean("C095", &kubernetes("", "allowed_groups = [\"0\", \"1000\"]"));
    }

    #[test]
    fn c096_pod_spec_needs_feature_flag() {
        let spec = "[[runners.kubernetes.pod_spec]]\nname = \"x\"\npatch = \"{}\"";
        found("C096", &kubernetes("", spec));
        clean(
            "C096",
            &kubernetes("", &format!("{spec}\n[runners.feature_flags]\nFF_USE_ADVANCED_POD_SPEC_CONFIGURATION = true")),
        );
    }

    #[test]
    fn c097_suspension_needs_runner_id() {
        found("C097", &kubernetes("", "suspend_pvc_size = \"1Gi\""));
        clean("C097", &kubernetes("id = 7", "suspend_pvc_size = \"1Gi\""));
    }
}
