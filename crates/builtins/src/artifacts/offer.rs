//! Inputs for steps of the operator that replace the steps for artifacts (docs/reference/replaceable-steps.md).

use std::collections::HashMap;

use muster_agent_api::builtin::{ArtifactSource, ArtifactsDownload, ArtifactsUpload, ArtifactsUploadList};
use muster_steps::builtin::Offer;
use serde_json::json;

use super::list::with_added_paths;
use super::upload::base;
use crate::context::Context;
use crate::files::select::expand;
use crate::offer::{certificates, map};

pub(super) fn download(context: &Context, step: &ArtifactsDownload) -> Offer {
    let artifact = |source: &ArtifactSource| {
        let url = artifacts_url(context, source.job_id);
        json!({ "job_id": source.job_id, "name": source.name, "url": url, "token": source.token })
    };
    let mut inputs = map([
        ("artifacts", step.from.iter().map(artifact).collect()),
        ("direct_download", json!(context.coordinator.direct_download)),
    ]);
    inputs.extend(certificates(context, &context.coordinator.tls));
    Offer { inputs, sensitive: step.from.iter().map(|source| source.token.clone()).collect() }
}

pub(super) fn upload(context: &Context, step: &ArtifactsUploadList) -> Offer {
    let env: HashMap<_, _> = context.environment().into_iter().collect();
    let expanded = |texts: &[String]| texts.iter().map(|text| expand(text, &env)).collect::<Vec<_>>();
    let added = context.added_artifacts.lock().clone();
    let artifact = |declared: &ArtifactsUpload| {
        let artifact = with_added_paths(declared, &added);
        let name = if artifact.name.is_empty() { "artifacts".to_owned() } else { expand(&artifact.name, &env) };
        json!({
            "name": base(&name),
            "paths": expanded(&artifact.paths),
            "exclude": expanded(&artifact.exclude),
            "untracked": artifact.untracked,
            "type": if artifact.artifact_type.is_empty() { "archive" } else { &artifact.artifact_type },
            "format": if artifact.artifact_format.is_empty() { "zip" } else { &artifact.artifact_format },
            "expire_in": artifact.expire_in,
            "provenance": artifact.provenance.is_some(),
        })
    };
    let coordinator = &context.coordinator;
    let mut inputs = map([
        ("artifacts", step.artifacts.iter().map(artifact).collect()),
        ("url", json!(artifacts_url(context, coordinator.job_id))),
        ("job_id", json!(coordinator.job_id)),
        ("token", json!(coordinator.token)),
    ]);
    inputs.extend(certificates(context, &coordinator.tls));
    Offer { inputs, sensitive: vec![coordinator.token.clone()] }
}

fn artifacts_url(context: &Context, job_id: i64) -> String {
    format!("{}/api/v4/jobs/{job_id}/artifacts", context.coordinator.url.trim_end_matches('/'))
}
