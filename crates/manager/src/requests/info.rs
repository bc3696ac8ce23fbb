//! The description of a runner, which each job request, registration and verification contains.

use muster_runner_api::wire::VersionInfo;

use muster_config::settings::RunnerSettings;

const FEATURES: &[&str] = &[
    "variables",
    "shared",
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
];

/// Returns the description of the runner with these settings.
#[must_use]
pub fn info(runner: &RunnerSettings) -> VersionInfo {
    VersionInfo {
        name: "muster".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        platform: std::env::consts::OS.to_owned(),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64".to_owned(),
            "aarch64" => "arm64".to_owned(),
            other => other.to_owned(),
        },
        executor: runner.executor.clone(),
        shell: runner.shell.clone(),
        features: FEATURES.iter().map(|feature| ((*feature).to_owned(), true)).collect(),
        config: [("gpus".to_owned(), String::new())].into(),
        labels: runner.labels.clone(),
        ..VersionInfo::default()
    }
}
