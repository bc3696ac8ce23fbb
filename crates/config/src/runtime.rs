//! Checks that need facts which only a running manager or command knows.

use std::time::Duration;

use super::problem::{Problem, shown_name};
use super::tree::Table;

/// Check C026: flags of `register` that cannot be used with an authentication token, because the server sets them.
#[must_use]
pub fn registration_flags(token: &str, flags: &[&str]) -> Option<Problem> {
    if !token.starts_with("glrt-") || flags.is_empty() {
        return None;
    }
    let names = flags.join(", ");
    let (settings, them) = if flags.len() == 1 { ("this setting", "it") } else { ("these settings", "them") };
    let message = format!("{names} cannot be used with an authentication token, because the server has {settings}");
    Some(Problem::new("C026", message).help(format!("remove {them}")))
}

/// Check C027: the manager of another machine may use the system ID, too.
#[must_use]
pub(crate) fn shared_system_id(system_id: &str) -> Problem {
    let message = format!(
        "the system ID {} was created on another machine: the server cannot distinguish a manager there from this one",
        shown_name(system_id)
    );
    Problem::new("C027", message)
        .help("delete .runner_system_id in images that machines are cloned from, and here; then restart")
}

/// Check C034, for a reload: the content of the file changed, but its modification time did not advance.
#[must_use]
pub fn change_without_time(content_changed: bool, time_advanced: bool) -> Option<Problem> {
    let message = "the file's content changed, but its modification time is not newer";
    (content_changed && !time_advanced)
        .then(|| Problem::new("C034", message).help("it is loaded now; GitLab Runner would need a SIGHUP"))
}

/// Check C040, for the signal handler: a shutdown that cancels jobs.
#[must_use]
pub fn forced_stop(signal: &str, jobs: usize, timeout: Duration) -> Option<Problem> {
    let subject = if jobs == 1 { "1 job is".to_owned() } else { format!("{jobs} jobs are") };
    let message = format!("stop requested by {signal}: {subject} aborted within {} s", timeout.as_secs());
    (jobs > 0).then(|| {
        Problem::new("C040", message)
            .help("use SIGQUIT to let jobs finish; for systemd, KillSignal=SIGQUIT and a long TimeoutStopSec")
    })
}

/// Check C042, when the plan of a job is made: a stage timeout of the runner exceeds the job's own timeout.
#[must_use]
pub fn stage_timeout(key: &str, stage: Duration, job: Duration) -> Option<Problem> {
    let message = format!("{key} = {} s is ignored; the job's timeout of {} s applies", stage.as_secs(), job.as_secs());
    (stage > job).then(|| Problem::new("C042", message).help(format!("set {key} below the timeouts of jobs")))
}

/// Check C053: a pull policy of the runner is not allowed.
#[must_use]
pub(crate) fn pull_policy(policy: &str, allowed: &[&str], configured: &[&str]) -> Option<Problem> {
    let permitted = if allowed.is_empty() { configured } else { allowed };
    if permitted.contains(&policy) {
        return None;
    }
    let reason = if allowed.is_empty() {
        "allowed_pull_policies is not set, so only those of the runner's pull_policy are"
    } else {
        "allowed_pull_policies does not list it"
    };
    let message =
        format!("pull policy `{}` is not allowed: {reason}; allowed: `{}`", shown_name(policy), permitted.join("`, `"));
    Some(Problem::new("C053", message).help("add it to allowed_pull_policies of the runner"))
}

/// Variables that overwrite settings of pods, and the keys that permit it.
///
/// A variable that ends with `_` is a prefix. `{}` in a key stands for the rest of the variable's name in lower case.
/// That rest must be one of [`RESOURCES`].
const OVERWRITES: [(&str, &str); 11] = [
    ("KUBERNETES_BEARER_TOKEN", "bearer_token_overwrite_allowed"),
    ("KUBERNETES_NAMESPACE_OVERWRITE", "namespace_overwrite_allowed"),
    ("KUBERNETES_SERVICE_ACCOUNT_OVERWRITE", "service_account_overwrite_allowed"),
    ("KUBERNETES_NODE_SELECTOR_", "node_selector_overwrite_allowed"),
    ("KUBERNETES_NODE_TOLERATIONS_", "node_tolerations_overwrite_allowed"),
    ("KUBERNETES_POD_LABELS_", "pod_labels_overwrite_allowed"),
    ("KUBERNETES_POD_ANNOTATIONS_", "pod_annotations_overwrite_allowed"),
    ("KUBERNETES_SERVICE_", "service_{}_overwrite_max_allowed"),
    ("KUBERNETES_HELPER_", "helper_{}_overwrite_max_allowed"),
    ("KUBERNETES_POD_", "pod_{}_overwrite_max_allowed"),
    ("KUBERNETES_", "{}_overwrite_max_allowed"),
];
const RESOURCES: [&str; 6] = [
    "CPU_LIMIT",
    "CPU_REQUEST",
    "MEMORY_LIMIT",
    "MEMORY_REQUEST",
    "EPHEMERAL_STORAGE_LIMIT",
    "EPHEMERAL_STORAGE_REQUEST",
];

/// Check C092: a variable would overwrite a setting of the pod without permission.
#[must_use]
pub(crate) fn overwrite_without_permission(variable: &str, kubernetes: &Table) -> Option<Problem> {
    let key = OVERWRITES.iter().find_map(|(prefix, key)| {
        let rest = variable.strip_prefix(prefix)?;
        let fits = match (prefix.ends_with('_'), key.contains("{}")) {
            (_, true) => RESOURCES.contains(&rest),
            (true, false) => !rest.is_empty(),
            (false, false) => rest.is_empty(),
        };
        fits.then(|| key.replace("{}", &rest.to_lowercase()))
    })?;
    let allowed = kubernetes.str(&key).is_some() || kubernetes.bool(&key) == Some(true);
    let message = format!("{} is ignored, because overwriting it is not allowed", shown_name(variable));
    (!allowed).then(|| Problem::new("C092", message).help(format!("set {key} in [runners.kubernetes]")))
}

/// Check C105, for the job's log: a job sets a feature flag, but the runner sets it to another value.
#[must_use]
pub fn fixed_flag(variable: &str, wanted: bool, fixed: Option<bool>) -> Option<Problem> {
    let ignored = variable.starts_with("FF_") && fixed.is_some_and(|fixed| fixed != wanted);
    let message = format!("the job's {} is ignored, because the runner sets it", shown_name(variable));
    ignored.then(|| {
        Problem::new("C105", message).help("ask the runner's operator to remove it from [runners.feature_flags]")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn c026_registration_flags_with_authentication_token_are_reported() {
        let output = registration_flags("glrt-secret", &["--locked"]).unwrap();
        assert!(output.to_string().contains("--locked cannot be used") && !output.to_string().contains("secret"));
        assert!(registration_flags("glrt-secret", &[]).is_none());
        assert!(registration_flags("GR1348941x", &["--locked"]).is_none());
    }

    #[test]
    fn c027_system_id_from_other_machine_is_reported() {
        assert!(shared_system_id("r_abcdefabcdef").message.contains("r_abcdefabcdef"));
    }

    #[test]
    fn c034_change_without_newer_time_is_reported() {
        assert!(change_without_time(true, false).is_some());
        assert!(change_without_time(true, true).is_none());
        assert!(change_without_time(false, false).is_none());
    }

    #[test]
    fn c040_stop_that_aborts_jobs_is_reported() {
        assert!(
            forced_stop("SIGTERM", 3, seconds(30)).unwrap().message.contains("SIGTERM: 3 jobs are aborted within 30 s")
        );
        assert!(forced_stop("SIGTERM", 0, seconds(30)).is_none());
    }

    #[test]
    fn c042_stage_timeout_above_job_timeout_is_reported() {
        assert!(
            stage_timeout("prepare_timeout", seconds(7200), seconds(3600))
                .unwrap()
                .message
                .contains("job's timeout of 3600 s")
        );
        assert!(stage_timeout("prepare_timeout", seconds(60), seconds(3600)).is_none());
    }

    #[test]
    fn c053_pull_policy_that_is_not_allowed_is_reported() {
        assert!(pull_policy("never", &[], &["always"]).unwrap().message.contains(
            "allowed_pull_policies is not set, so only those of the runner's pull_policy are; allowed: `always`"
        ));
        assert!(pull_policy("never", &["always"], &["never"]).is_some());
        assert!(pull_policy("always", &[], &["always"]).is_none());
        assert!(pull_policy("never", &["never", "always"], &["always"]).is_none());
    }

    #[test]
    fn c092_each_overwrite_needs_its_key() {
        for (variable, key) in [
            ("KUBERNETES_CPU_LIMIT", "cpu_limit_overwrite_max_allowed"),
            ("KUBERNETES_SERVICE_MEMORY_REQUEST", "service_memory_request_overwrite_max_allowed"),
            ("KUBERNETES_POD_CPU_LIMIT", "pod_cpu_limit_overwrite_max_allowed"),
            ("KUBERNETES_POD_LABELS_A", "pod_labels_overwrite_allowed"),
            ("KUBERNETES_SERVICE_ACCOUNT_OVERWRITE", "service_account_overwrite_allowed"),
        ] {
            let output = overwrite_without_permission(variable, &Table::default()).unwrap();
            assert!(output.help.unwrap().contains(key), "{variable}");
        }
        for other in ["KUBERNETES_PORT", "KUBERNETES_SERVICE_HOST", "CPU_LIMIT"] {
            assert!(overwrite_without_permission(other, &Table::default()).is_none(), "{other}");
        }
    }

    #[test]
    fn c105_job_flag_has_no_effect() {
        assert!(fixed_flag("FF_TIMESTAMPS", true, Some(false)).unwrap().message.contains("because the runner sets it"));
        assert!(fixed_flag("FF_TIMESTAMPS", true, None).is_none());
        assert!(fixed_flag("FF_TIMESTAMPS", true, Some(true)).is_none());
    }
}
