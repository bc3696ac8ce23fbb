//! Caches and artifacts: the transfers before and after the scripts.

use muster_agent_api::builtin::{
    ArtifactSource, ArtifactsDownload, ArtifactsUpload, ArtifactsUploadList, CacheEntry, CacheRestore, CacheSave,
    ProvenanceInfo,
};
use muster_agent_api::plan::{Call, Step, UploadRole, When};
use muster_job::Secret;
use muster_runner_api::payload::{Artifact, JobPayload};

use url::Url;

use super::super::settings::JobSettings;
use super::{JobParts, operator};

pub(super) fn restore_caches(caches: &[(CacheEntry, String)], settings: &JobSettings) -> Option<Step> {
    let caches: Vec<_> = caches.iter().map(|(entry, _)| without_uploads(entry)).collect();
    (!caches.is_empty()).then(|| {
        let mut step = Step::new("restore_cache", "Restoring cache", Call::builtin(&CacheRestore { caches }));
        step.policy.attempts = settings.restore_cache_attempts;
        step.policy.allow_failure = true;
        step
    })
}

/// Restoring a cache needs no upload URLs.
fn without_uploads(entry: &CacheEntry) -> CacheEntry {
    let mut entry = entry.clone();
    for object in entry.objects.values_mut() {
        object.upload = Secret::default();
        object.upload_headers.clear();
    }
    if let Some(store) = entry.chunks.as_mut().and_then(|chunks| chunks.store.as_mut()) {
        store.upload = None;
        store.marked.clear();
    }
    entry
}

fn without_downloads(entry: &CacheEntry) -> CacheEntry {
    let mut entry = entry.clone();
    let key = entry.key.clone();
    entry.objects.retain(|name, object| *name == key && !object.upload.expose().is_empty());
    for object in entry.objects.values_mut() {
        object.download = Secret::default();
    }
    if let Some(store) = entry.chunks.as_mut().and_then(|chunks| chunks.store.as_mut()) {
        // The indexes show which chunks need not be saved again.
        store.downloads.retain(|name, _| name.ends_with("-index"));
    }
    entry
}

pub(super) fn download_artifacts(payload: &JobPayload, settings: &JobSettings) -> Option<Step> {
    let from: Vec<_> = payload
        .dependencies
        .iter()
        .filter(|dependency| !dependency.artifacts_file.filename.is_empty())
        .map(|dependency| ArtifactSource {
            job_id: dependency.id,
            name: dependency.name.clone(),
            token: dependency.token.clone(),
        })
        .collect();
    (!from.is_empty()).then(|| {
        let call = Call::builtin(&ArtifactsDownload { from });
        let mut step = Step::new("download_artifacts", "Downloading artifacts", call);
        step.policy.attempts = settings.artifact_download_attempts;
        step
    })
}

/// Returns the step for a failed job, and then the step for a successful job, as [`upload_artifacts`] does.
pub(super) fn save_caches(caches: &[(CacheEntry, String)]) -> Vec<Step> {
    let save = |when: When, name: &str, title: &str| {
        let matching = caches.iter().filter(|(_, cache_when)| is_transferred_by(cache_when, when));
        let caches: Vec<_> = matching.map(|(entry, _)| without_downloads(entry)).collect();
        (!caches.is_empty()).then(|| {
            let mut step = Step::new(name, title, Call::builtin(&CacheSave { caches }));
            step.policy.when = when;
            step.policy.allow_failure = true;
            step
        })
    };
    let failure = save(When::OnFailure, "archive_cache_on_failure", "Saving cache for failed job");
    let success = save(When::OnSuccess, "archive_cache", "Saving cache for successful job");
    failure.into_iter().chain(success).collect()
}

/// Returns the steps for a failed job, and then the steps for a successful job.
///
/// In the other order, a failed upload of a successful job would start the upload for a failed job.
pub(super) fn upload_artifacts(parts: &JobParts<'_>) -> Vec<Step> {
    let artifacts: &[Artifact] = &parts.payload.artifacts;
    let upload = |when: When, name: &str, title: &str| {
        let matching = artifacts.iter().filter(|artifact| {
            is_transferred_by(&artifact.when, when) && (artifact.untracked || !artifact.paths.is_empty())
        });
        let artifacts: Vec<_> = matching
            .map(|artifact| ArtifactsUpload {
                name: artifact.name.clone(),
                paths: artifact.paths.clone(),
                exclude: artifact.exclude.clone(),
                untracked: artifact.untracked,
                artifact_type: artifact.artifact_type.clone(),
                artifact_format: artifact.artifact_format.clone(),
                expire_in: artifact.expire_in.clone(),
                // Only a zip archive can contain the provenance statement.
                provenance: (parts.settings.artifacts_metadata && artifact.artifact_format == "zip")
                    .then(|| provenance(parts)),
            })
            .collect();
        if artifacts.is_empty() {
            return Vec::new();
        }
        let mut steps = operator::before_upload(parts, when, &artifacts);
        let mut step = Step::new(name, title, Call::builtin(&ArtifactsUploadList { artifacts }));
        step.policy.when = when;
        if !steps.is_empty() {
            step.policy.upload_role = UploadRole::Upload;
        }
        steps.push(step);
        steps
    };
    let success = ("upload_artifacts_on_success", "Uploading artifacts for successful job");
    let failure = ("upload_artifacts_on_failure", "Uploading artifacts for failed job");
    let mut steps = upload(When::OnFailure, failure.0, failure.1);
    steps.extend(upload(When::OnSuccess, success.0, success.1));
    steps
}

fn provenance(parts: &JobParts<'_>) -> ProvenanceInfo {
    let (git, runner) = (&parts.payload.git_info, &parts.context.runner);
    let repo_url = match Url::parse(&git.repo_url) {
        Ok(mut url) => {
            // A URL that cannot have credentials has none.
            let _ = url.set_username("").and_then(|()| url.set_password(None));
            url.to_string()
        }
        Err(_) => String::new(),
    };
    ProvenanceInfo {
        runner_id: parts.variables.get("CI_RUNNER_ID").and_then(|id| id.trim().parse().ok()).unwrap_or_default(),
        repo_url: repo_url.trim_end_matches(".git").to_owned(),
        repo_digest: git.sha.clone(),
        job_name: parts.payload.job_info.name.clone(),
        executor_name: runner.executor.clone(),
        runner_name: runner.name.clone(),
        parameters: parts.payload.variables.iter().map(|variable| variable.key.clone()).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Returns whether a step with the condition `step_when` transfers a cache or an artifact with this `when`.
fn is_transferred_by(when: &str, step_when: When) -> bool {
    match when {
        "always" => true,
        "on_failure" => step_when == When::OnFailure,
        _ => step_when == When::OnSuccess,
    }
}
