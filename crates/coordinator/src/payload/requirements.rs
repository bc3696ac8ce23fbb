//! The features that a runner must declare to run a job (docs/spec/runner-api.md, section 2.2).

use muster_pipeline::context::PipelineSource;
use muster_pipeline::model::{AllowFailure, Job, Work};
use muster_runner_api::wire::VersionInfo;

/// Returns the first feature that `job` needs and the runner does not declare. Such a job fails as `runner_unsupported`.
#[must_use]
pub fn missing_feature(job: &Job, source: PipelineSource, info: &VersionInfo) -> Option<&'static str> {
    let Work::Script(work) = &job.work else { return None };
    let artifacts = work.artifacts.as_ref();
    let needs = [
        ("upload_multiple_artifacts", artifacts.is_some_and(|artifacts| !artifacts.reports.is_empty())),
        ("artifacts_exclude", artifacts.is_some_and(|artifacts| !artifacts.exclude.is_empty())),
        ("refspecs", source == PipelineSource::MergeRequestEvent),
        ("multi_build_steps", work.release.is_some()),
        ("return_exit_code", depends_on_exit_code(job)),
        ("fallback_cache_keys", work.cache.iter().any(|cache| !cache.fallback_keys.is_empty())),
    ];
    needs.into_iter().find(|(feature, needed)| *needed && !info.has(feature)).map(|(feature, _)| feature)
}

fn depends_on_exit_code(job: &Job) -> bool {
    matches!(job.allow_failure, AllowFailure::ExitCodes(_)) || !job.retry.exit_codes.is_empty()
}
