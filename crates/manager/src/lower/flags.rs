//! Feature flags of GitLab Runner 19.4. Each job sees all flags as variables.

use std::collections::BTreeMap;

use muster_config::runtime::fixed_flag;
use muster_config::settings::RunnerSettings;
use muster_runner_api::payload::JobPayload;

use super::settings::parse_bool;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Honored,
    /// Muster behaves as if the flag were on.
    AlwaysOn,
    /// Muster lacks the feature of the flag.
    AlwaysOff,
    /// The flag is for an unsupported executor, operating system or service.
    NotApplicable,
    /// A job cannot set the flag, but `[runners.feature_flags]` can.
    ManagerOnly,
}

#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) default: bool,
    pub(super) effect: Effect,
}

const fn flag(name: &'static str, default: bool, effect: Effect) -> Flag {
    Flag { name, default, effect }
}

use Effect::{AlwaysOff, AlwaysOn, Honored, ManagerOnly, NotApplicable};

pub(super) const FLAGS: &[Flag] = &[
    flag("FF_USE_DIRECT_DOWNLOAD", true, Honored),
    flag("FF_USE_FASTZIP", true, AlwaysOff),
    flag("FF_USE_POD_ACTIVE_DEADLINE_SECONDS", true, NotApplicable),
    flag("FF_SECRET_RESOLVING_FAILS_IF_MISSING", true, Honored),
    flag("FF_USE_GIT_BUNDLE_URIS", true, Honored),
    flag("FF_USE_DOCKER_AUTOSCALER_DIAL_STDIO", true, AlwaysOff),
    flag("FF_TIMESTAMPS", true, Honored),
    flag("FF_MASK_ALL_DEFAULT_TOKENS", true, Honored),
    flag("FF_USE_EXPONENTIAL_BACKOFF_STAGE_RETRY", true, Honored),
    flag("FF_USE_ADAPTIVE_REQUEST_CONCURRENCY", true, ManagerOnly),
    flag("FF_USE_GITALY_CORRELATION_ID", true, AlwaysOff),
    flag("FF_ENABLE_JOB_INPUTS_INTERPOLATION", true, Honored),
    flag("FF_NETWORK_PER_BUILD", false, Honored),
    flag("FF_USE_LEGACY_KUBERNETES_EXECUTION_STRATEGY", false, NotApplicable),
    flag("FF_DISABLE_UMASK_FOR_DOCKER_EXECUTOR", false, AlwaysOn),
    flag("FF_DISABLE_UMASK_FOR_KUBERNETES_EXECUTOR", false, NotApplicable),
    flag("FF_ENABLE_BASH_EXIT_CODE_CHECK", false, Honored),
    flag("FF_USE_WINDOWS_LEGACY_PROCESS_STRATEGY", false, NotApplicable),
    flag("FF_USE_WINDOWS_JOB_OBJECT", false, NotApplicable),
    flag("FF_USE_LEGACY_BASH_EVAL", false, AlwaysOff),
    flag("FF_USE_POWERSHELL_PATH_RESOLVER", false, AlwaysOff),
    flag("FF_DISABLE_POWERSHELL_STDIN", false, Honored),
    flag("FF_USE_DYNAMIC_TRACE_FORCE_SEND_INTERVAL", false, ManagerOnly),
    flag("FF_SCRIPT_SECTIONS", false, Honored),
    flag("FF_ENABLE_JOB_CLEANUP", false, Honored),
    flag("FF_KUBERNETES_HONOR_ENTRYPOINT", false, NotApplicable),
    flag("FF_POSIXLY_CORRECT_ESCAPES", false, AlwaysOn),
    flag("FF_RESOLVE_FULL_TLS_CHAIN", false, ManagerOnly),
    flag("FF_USE_ADVANCED_POD_SPEC_CONFIGURATION", false, NotApplicable),
    flag("FF_PRINT_POD_EVENTS", false, NotApplicable),
    flag("FF_WAIT_FOR_POD_TO_BE_REACHABLE", false, NotApplicable),
    flag("FF_USE_DUMB_INIT_WITH_KUBERNETES_EXECUTOR", false, NotApplicable),
    flag("FF_USE_INIT_WITH_DOCKER_EXECUTOR", false, Honored),
    flag("FF_USE_NATIVE_CONTAINER_STOP", false, AlwaysOff),
    flag("FF_LOG_IMAGES_CONFIGURED_FOR_JOB", false, NotApplicable),
    flag("FF_CLEAN_UP_FAILED_CACHE_EXTRACT", false, Honored),
    flag("FF_USE_GIT_NATIVE_CLONE", false, AlwaysOff),
    flag("FF_USE_GIT_PROACTIVE_AUTH", false, Honored),
    flag("FF_GIT_URLS_WITHOUT_TOKENS", false, Honored),
    flag("FF_DISABLE_AUTOMATIC_TOKEN_ROTATION", false, ManagerOnly),
    flag("FF_USE_LEGACY_GCS_CACHE_ADAPTER", false, AlwaysOff),
    flag("FF_USE_LEGACY_S3_CACHE_ADAPTER", false, AlwaysOff),
    flag("FF_EXPORT_HIGH_CARDINALITY_METRICS", false, ManagerOnly),
    flag("FF_USE_FLEETING_ACQUIRE_HEARTBEATS", false, ManagerOnly),
    flag("FF_HASH_CACHE_KEYS", false, Honored),
    flag("FF_USE_JOB_ROUTER", false, ManagerOnly),
    flag("FF_SCRIPT_TO_STEP_MIGRATION", false, AlwaysOn),
    flag("FF_CONCRETE", false, AlwaysOn),
    flag("FF_USE_PARALLEL_CACHE_TRANSFER", false, AlwaysOff),
    flag("FF_USE_PARALLEL_ARTIFACT_TRANSFER", false, AlwaysOff),
    flag("FF_SUSPENDABLE_ENVIRONMENTS", false, Honored),
    flag("FF_TEST_FEATURE", false, AlwaysOff),
];

/// Values of all flags for one job, and messages about them.
#[derive(Debug, Default)]
pub(super) struct Flags {
    values: BTreeMap<&'static str, bool>,
    /// Warnings about values that are not booleans.
    pub(super) warnings: Vec<String>,
    /// Notes about values of the job that have no effect (check C105).
    pub(super) notes: Vec<String>,
}

impl Flags {
    /// Resolves flags in this order: `[runners.feature_flags]`, the job's variable, the runner's variable, the default.
    ///
    /// Variables do not set flags of the manager.
    pub(super) fn resolve(payload: &JobPayload, runner: &RunnerSettings) -> Self {
        let mut flags = Self::default();
        for flag in FLAGS {
            let value = flags.resolve_one(flag, payload, runner);
            flags.values.insert(flag.name, value);
        }
        flags
    }

    fn resolve_one(&mut self, flag: &Flag, payload: &JobPayload, runner: &RunnerSettings) -> bool {
        let name = flag.name;
        let find = |list: &[muster_job::Variable]| {
            list.iter().rev().find(|variable| variable.key == name).map(|variable| variable.value.clone())
        };
        let by_job = find(&payload.variables).filter(|value| !value.is_empty());
        if let Some(fixed) = runner.feature_flags.get(name) {
            let requested = by_job.as_deref().and_then(parse_bool);
            let problem = requested.and_then(|requested| fixed_flag(name, requested, Some(*fixed)));
            self.notes.extend(problem.map(|problem| format!("{} to {fixed}", problem.message)));
            return *fixed;
        }
        if flag.effect == Effect::ManagerOnly {
            return flag.default;
        }
        let Some(text) = by_job.or_else(|| find(&runner.environment).filter(|value| !value.is_empty())) else {
            return flag.default;
        };
        parse_bool(&text).unwrap_or_else(|| {
            self.warnings.push(format!("{name}: expected a boolean, got \"{text}\", using {}", flag.default));
            flag.default
        })
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        debug_assert!(is_flag(name), "{name} is not a feature flag");
        self.values.get(name).copied().unwrap_or_default()
    }

    /// Returns each flag with its value, in the order of [`FLAGS`].
    pub(super) fn all(&self) -> impl Iterator<Item = (&'static Flag, bool)> {
        FLAGS.iter().map(|flag| (flag, self.is_on(flag.name)))
    }
}

pub(super) fn is_flag(name: &str) -> bool {
    name.starts_with("FF_") && FLAGS.iter().any(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the label on the reference page.
    fn label(effect: Effect) -> &'static str {
        match effect {
            Honored => "honored",
            AlwaysOn => "always on",
            AlwaysOff => "no effect",
            NotApplicable => "not applicable",
            ManagerOnly => "manager only",
        }
    }

    #[test]
    fn reference_page_lists_every_flag() {
        let page = include_str!("../../../../docs/reference/jobs.md");
        for flag in FLAGS {
            let default = if flag.default { "on" } else { "off" };
            let row = format!("| `{}` | {default} | {} |", flag.name, label(flag.effect));
            assert!(page.contains(&row), "docs/reference/jobs.md lacks: {row}");
        }
        assert_eq!(page.matches("| `FF_").count(), FLAGS.len());
    }
}
