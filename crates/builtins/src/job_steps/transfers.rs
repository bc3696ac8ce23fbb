//! Checkout, caches and artifacts for lists of steps.

use std::sync::Arc;

use muster_agent_api::builtin::{
    ArtifactsDownload, ArtifactsUpload, ArtifactsUploadList, CacheEntry, CacheRestore, CacheSave,
};
use muster_job::report_format;
use muster_steps::builtin::Builtin;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use serde_json::{Map, Value};

use super::inputs::{CacheCall, CheckoutCall, DownloadCall, UploadCall, parsed};
use crate::context::Context;

type Inputs = Map<String, Value>;

/// Checks out the job's sources with the settings of the call.
pub(super) async fn check_out(context: &Arc<Context>, inputs: &Inputs, stop: &StopToken) -> Result<(), Failure> {
    let CheckoutCall { strategy, depth, submodules } = parsed(inputs)?;
    let Some(declared) = &context.declared.checkout else {
        return failed(
            "the job has no sources; call `builtin://checkout` in a job of a project, without a resumed environment",
        );
    };
    let mut checkout = declared.clone();
    replace(&mut checkout.strategy, "strategy", strategy, &["fetch", "clone", "empty", "none"])?;
    replace(&mut checkout.submodules, "submodules", submodules, &["none", "normal", "recursive"])?;
    if let Some(depth) = depth {
        if !(0.0..=f64::from(u32::MAX)).contains(&depth) || depth.fract() != 0.0 {
            return failed(format!("{depth} is not a valid `depth`; write a whole number, or 0 for all commits"));
        }
        #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
        let depth = depth as i64;
        checkout.depth = depth;
    }
    checkout.run(context, stop).await
}

/// Replaces a setting by an input, unless the input is empty.
fn replace(setting: &mut String, name: &str, input: String, valid: &[&str]) -> Result<(), Failure> {
    if input.is_empty() {
        return Ok(());
    }
    if !valid.contains(&input.as_str()) {
        return failed(format!("{input:?} is not a valid `{name}`; write one of: {}", valid.join(", ")));
    }
    *setting = input;
    Ok(())
}

/// Restores all caches of the job, or the named one.
pub(super) async fn restore_caches(context: &Arc<Context>, inputs: &Inputs, stop: &StopToken) -> Result<(), Failure> {
    let caches = selected_caches(&context.declared.restore, inputs)?;
    CacheRestore { caches }.run(context, stop).await
}

/// Saves all caches of the job, or the named one.
pub(super) async fn save_caches(context: &Arc<Context>, inputs: &Inputs, stop: &StopToken) -> Result<(), Failure> {
    let caches = selected_caches(&context.declared.save, inputs)?;
    let has_uploads = |cache: &&CacheEntry| {
        cache.chunks.as_ref().and_then(|chunks| chunks.store.as_ref()).is_some_and(|store| store.upload.is_some())
    };
    if let Some(cache) = caches.iter().find(has_uploads) {
        // The manager chose object names for a single save. Another save would replace objects that readers need.
        return failed(format!(
            "the cache `{}` is stored as chunks, which a job can save only once; the job saves it at its end, so remove this step",
            cache_name(cache)
        ));
    }
    CacheSave { caches }.run(context, stop).await
}

fn selected_caches(declared: &[CacheEntry], inputs: &Inputs) -> Result<Vec<CacheEntry>, Failure> {
    let CacheCall { key } = parsed(inputs)?;
    selected(declared, &key, "cache", "cache", cache_name)
}

fn cache_name(cache: &CacheEntry) -> &String {
    cache.names.first().unwrap_or(&cache.key)
}

/// Downloads artifacts of all dependencies, or of the named job.
pub(super) async fn download_artifacts(
    context: &Arc<Context>,
    inputs: &Inputs,
    stop: &StopToken,
) -> Result<(), Failure> {
    let DownloadCall { job } = parsed(inputs)?;
    let from =
        selected(&context.declared.downloads, &job, "dependency with artifacts", "needs", |source| &source.name)?;
    ArtifactsDownload { from }.run(context, stop).await
}

/// Returns the declared objects with this name. An empty name selects all.
fn selected<T: Clone>(
    declared: &[T],
    name: &str,
    what: &str,
    keyword: &str,
    name_of: impl Fn(&T) -> &String,
) -> Result<Vec<T>, Failure> {
    let found: Vec<T> = declared.iter().filter(|object| name.is_empty() || name_of(object) == name).cloned().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let names: Vec<&str> = declared.iter().map(|object| name_of(object).as_str()).collect();
    failed(match (name, names.as_slice()) {
        (_, []) => format!("the job declares no {what}; add it with `{keyword}` to the job"),
        (name, names) => format!(
            "the job declares no {what} `{name}`; it has: {}; add it with `{keyword}` to the job",
            names.join(", ")
        ),
    })
}

pub(super) async fn upload_artifacts(context: &Arc<Context>, inputs: &Inputs, stop: &StopToken) -> Result<(), Failure> {
    let UploadCall { paths, exclude, name, artifact_type, format, expire_in } = parsed(inputs)?;
    if context.coordinator.url.is_empty() {
        return failed("there is no server for artifacts; call `builtin://artifacts/upload` in a job of a pipeline");
    }
    if paths.is_empty() {
        return failed("the input `paths` is empty; write at least one path or pattern");
    }
    let format = match (format.as_str(), artifact_type.as_str()) {
        ("", "archive") => "zip".to_owned(),
        ("", report) => report_format(report).0.to_owned(),
        _ => format,
    };
    let artifact = ArtifactsUpload {
        name,
        paths,
        exclude,
        artifact_type,
        artifact_format: format,
        expire_in,
        ..ArtifactsUpload::default()
    };
    ArtifactsUploadList { artifacts: vec![artifact] }.run(context, stop).await
}

fn failed<T>(message: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Step(message.into()))
}
