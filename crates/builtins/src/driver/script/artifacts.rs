//! Commands that transfer artifacts with `gitlab-runner` in the environment (docs/spec/job-execution.md, section 9).
//!
//! URL and token are variables, because arguments are visible to other users.

use muster_agent_api::builtin::{ArtifactsDownload, ArtifactsUpload, ArtifactsUploadList};
use muster_agent_api::plan::ArtifactEndpoint;

use super::frame::{Body, command};
use super::{Target, begin_transfer, end_transfer};
use crate::shell_text::quote;

const UPLOAD_TIMEOUT_MS: u64 = 3_600_000;
const RESPONSE_TIMEOUT_MS: u64 = 600_000;

pub(super) fn download(
    body: &mut Body,
    target: &Target<'_>,
    endpoint: &ArtifactEndpoint,
    artifacts: &ArtifactsDownload,
) {
    begin_transfer(body, target);
    for source in &artifacts.from {
        body.notice(&format!("Downloading artifacts for {} ({})...", source.name, source.job_id));
        let env = environment(&endpoint.url, source.job_id, &source.token);
        let mut words = vec!["gitlab-runner", "artifacts-downloader"];
        if endpoint.direct_download {
            words.push("--direct-download");
        }
        body.line(&format!("{env} {}", command(&words)));
    }
    end_transfer(body, "Artifacts downloading");
}

pub(super) fn upload(
    body: &mut Body,
    target: &Target<'_>,
    endpoint: &ArtifactEndpoint,
    artifacts: &ArtifactsUploadList,
) {
    begin_transfer(body, target);
    for artifact in &artifacts.artifacts {
        body.notice("Uploading artifacts...");
        let env = environment(&endpoint.url, endpoint.job_id, &endpoint.token);
        body.line(&format!("{env} {}", command(&upload_words(endpoint, artifact))));
    }
    end_transfer(body, "Uploading artifacts");
}

fn upload_words(endpoint: &ArtifactEndpoint, artifact: &ArtifactsUpload) -> Vec<String> {
    let mut words = ["gitlab-runner", "artifacts-uploader"].map(str::to_owned).to_vec();
    let mut option = |flag: &str, value: &str| {
        if !value.is_empty() {
            words.extend([flag.to_owned(), value.to_owned()]);
        }
    };
    artifact.paths.iter().for_each(|pattern| option("--path", pattern));
    artifact.exclude.iter().for_each(|pattern| option("--exclude", pattern));
    option("--artifact-type", &artifact.artifact_type);
    option("--artifact-format", &artifact.artifact_format);
    option("--expire-in", &artifact.expire_in);
    let or_default = |value: u64, default: u64| format!("{}ms", if value == 0 { default } else { value });
    option("--timeout", &or_default(endpoint.upload_timeout_ms, UPLOAD_TIMEOUT_MS));
    option("--response-header-timeout", &or_default(endpoint.response_timeout_ms, RESPONSE_TIMEOUT_MS));
    option("--name", &artifact.name);
    if artifact.untracked {
        words.push("--untracked".to_owned());
    }
    words
}

fn environment(url: &str, job: i64, token: &str) -> String {
    format!("CI_SERVER_URL={} CI_JOB_ID={job} CI_JOB_TOKEN={}", quote(url), quote(token))
}
