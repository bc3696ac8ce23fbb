//! The description of a runner, which each job request, registration and verification contains.

use muster_runner_api::wire::VersionInfo;

use muster_config::settings::RunnerSettings;

/// Features of all executors.
const FEATURES: &[&str] = &[
    "variables",
    "artifacts",
    "artifacts_exclude",
    "upload_multiple_artifacts",
    "upload_raw_artifacts",
    "cache",
    "fallback_cache_keys",
    "refspecs",
    "masking",
    "raw_variables",
    "multi_build_steps",
    "return_exit_code",
    "trace_reset",
    "trace_checksum",
    "trace_size",
    "cancelable",
    "cancel_gracefully",
    "two_phase_job_commit",
    "native_steps_integration",
    "vault_secrets",
];

const CONTAINER_FEATURES: &[&str] = &[
    "image",
    "services",
    "image_executor_opts",
    "service_executor_opts",
    "service_variables",
    "service_multiple_aliases",
];

/// Returns the description of the runner with these settings.
#[must_use]
pub fn info(runner: &RunnerSettings) -> VersionInfo {
    let of_executor = if runner.uses_containers() { CONTAINER_FEATURES } else { &["shared"] };
    VersionInfo {
        name: "muster".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: muster_job::go_os().to_owned(),
        architecture: muster_job::go_architecture().to_owned(),
        executor: runner.executor.clone(),
        shell: runner.shell.clone(),
        features: FEATURES.iter().chain(of_executor).map(|feature| ((*feature).to_owned(), true)).collect(),
        config: [("gpus".to_owned(), String::new())].into(),
        labels: runner.labels.clone(),
        ..VersionInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use muster_job::Secret;

    use super::*;

    #[test]
    fn features_for_containers_depend_on_the_executor() {
        let features = |executor: &str| {
            let settings = RunnerSettings::new("https://gitlab.example/".parse().unwrap(), Secret::new("t"), 0);
            info(&RunnerSettings { executor: executor.to_owned(), ..settings }).features
        };
        for executor in ["docker", "docker-autoscaler", "docker+machine"] {
            let features = features(executor);
            assert!(CONTAINER_FEATURES.iter().all(|name| features.contains_key(*name)), "{executor}");
            assert!(!features.contains_key("shared"), "{executor}");
        }
        let on_host = features("shell");
        assert!(on_host.contains_key("shared") && on_host.contains_key("variables") && !on_host.contains_key("image"));
    }
}
