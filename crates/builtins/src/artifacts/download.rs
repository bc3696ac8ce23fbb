//! Downloads the artifacts of other jobs and unpacks them (docs/spec/job-execution.md, section 9.6).

use std::fs::File;
use std::io::{self, Seek, Write};

use futures::StreamExt;
use muster_agent_api::builtin::ArtifactsDownload;
use muster_job::JobId;
use muster_runner_api::client::ClientError;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use super::retry::{RetryPolicy, RetryState, pause};
use super::{ArtifactEndpoint, status_text};
use crate::context::Context;
use crate::files::extract::extract;
use crate::transfer::{MessageLevel, TransferContext};

/// Downloads and unpacks the artifacts of each dependency, in order. Later archives overwrite files of earlier ones.
pub(super) async fn download(context: &Context, download: &ArtifactsDownload, stop: &StopToken) -> Result<(), Failure> {
    let client = context.client(stop).await?;
    for source in &download.from {
        let line = format!("Downloading artifacts for {} ({})...", source.name, source.job_id);
        context.report(MessageLevel::Notice, &line);
        let endpoint =
            ArtifactEndpoint { client: client.clone(), job: JobId(source.job_id), token: source.token.clone() };
        let archive =
            fetch(context, &endpoint, context.coordinator.direct_download, RetryPolicy::UntilTimeout, stop).await;
        let archive = archive.map_err(|failure| match failure {
            Failure::Step(reason) => Failure::Step(format!("downloading artifacts of {}: {reason}", source.name)),
            other => other,
        })?;
        extract(context, archive, stop).await?;
    }
    Ok(())
}

/// Downloads the archive of a job into an unnamed temporary file.
///
/// If `direct` is set, the coordinator may redirect the first attempt to its object storage.
///
/// # Errors
/// [`Failure::Step`] if the download fails, [`Failure::System`] if the file cannot be written, or [`Failure::Stopped`].
pub async fn fetch(
    context: &dyn TransferContext,
    endpoint: &ArtifactEndpoint,
    mut direct: bool,
    retry_policy: RetryPolicy,
    stop: &StopToken,
) -> Result<File, Failure> {
    const DOING: &str = "Downloading artifacts from coordinator...";
    let mut retries = RetryState::new(retry_policy);
    loop {
        let result = tokio::select! {
            cause = stop.stopped() => return Err(Failure::Stopped(cause)),
            // Only the first attempt may use the object storage, because the storage may cause the error
            // (docs/spec/runner-api.md, section 5.2).
            result = fetch_once(context, endpoint, std::mem::take(&mut direct)) => result?,
        };
        let error = match result {
            Ok(file) => {
                context.report(MessageLevel::Plain, &format!("{DOING} ok id={} responseStatus=200 OK", endpoint.job));
                return Ok(file);
            }
            Err(error) => error,
        };
        let status = status_text(&error);
        let Some(delay) = retries.next_delay(&error) else {
            context.report(MessageLevel::Error, &format!("{DOING} {status} id={}", endpoint.job));
            return Err(Failure::Step(status));
        };
        context.report(MessageLevel::Warning, &format!("{DOING} {status} id={}", endpoint.job));
        context.report(MessageLevel::Warning, "Retrying...");
        pause(delay, stop).await?;
    }
}

/// Makes one attempt. The inner error is a failed request. The outer error means that the archive cannot be written.
async fn fetch_once(
    context: &dyn TransferContext,
    endpoint: &ArtifactEndpoint,
    direct: bool,
) -> Result<Result<File, ClientError>, Failure> {
    let write_failed = |error: io::Error| Failure::io("failed to write the archive")(error);
    let mut answer = match endpoint.client.download_artifact(endpoint.job, &endpoint.token, direct).await {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    let mut file = tempfile::tempfile_in(context.staging()).map_err(write_failed)?;
    let mut meter = context.meter("Downloading artifacts", Some(answer.size).filter(|size| *size > 0));
    while let Some(chunk) = answer.body.next().await {
        match chunk {
            Ok(chunk) => {
                file.write_all(&chunk).map_err(write_failed)?;
                meter(chunk.len());
            }
            Err(error) => return Ok(Err(ClientError::unreachable("artifact download", error.to_string()))),
        }
    }
    file.rewind().map_err(write_failed)?;
    Ok(Ok(file))
}
