//! Downloads the artifacts of other jobs and unpacks them (docs/spec/job-execution.md, section 9.6).

use std::fs::File;
use std::io::{self, Seek, Write};

use futures::StreamExt;
use muster_agent_api::builtin::ArtifactsDownload;
use muster_job::JobId;
use muster_runner_api::client::ClientError;
use muster_steps::failure::Failure;
use muster_steps::stop::Stop;

use super::tries::{Endurance, Tries, pause};
use super::{Door, word};
use crate::context::Context;
use crate::files::extract::extract;
use crate::site::{Site, Tone};

/// Downloads and unpacks the artifacts of each dependency, in order. A later archive overwrites files of an earlier one.
pub(super) async fn download(context: &Context, download: &ArtifactsDownload, stop: &Stop) -> Result<(), Failure> {
    let client = context.client(stop).await?;
    for source in &download.from {
        let line = format!("Downloading artifacts for {} ({})...", source.name, source.job_id);
        context.tell(Tone::Notice, &line);
        let door = Door { client: client.clone(), job: JobId(source.job_id), token: source.token.clone() };
        let archive = fetch(context, &door, context.coordinator.direct_download, Endurance::Patient, stop).await;
        let archive = archive.map_err(|failure| match failure {
            Failure::Step(why) => Failure::Step(format!("downloading artifacts of {}: {why}", source.name)),
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
/// [`Failure::Step`] if the coordinator rejects the request, [`Failure::System`] if the file cannot be written, or
/// [`Failure::Stopped`].
pub async fn fetch(
    site: &dyn Site,
    door: &Door,
    mut direct: bool,
    endurance: Endurance,
    stop: &Stop,
) -> Result<File, Failure> {
    const DOING: &str = "Downloading artifacts from coordinator...";
    let mut tries = Tries::new(endurance);
    loop {
        let result = tokio::select! {
            cause = stop.stopped() => return Err(Failure::Stopped(cause)),
            // Only the first attempt may use the object storage, which may be what failed (docs/spec/runner-api.md, section 5.2).
            result = fetch_once(site, door, std::mem::take(&mut direct)) => result?,
        };
        let error = match result {
            Ok(file) => {
                site.tell(Tone::Plain, &format!("{DOING} ok id={} responseStatus=200 OK", door.job));
                return Ok(file);
            }
            Err(error) => error,
        };
        let word = word(&error);
        let Some(wait) = tries.next_wait(&error) else {
            site.tell(Tone::Error, &format!("{DOING} {word} id={}", door.job));
            return Err(Failure::Step(word));
        };
        site.tell(Tone::Warning, &format!("{DOING} {word} id={}", door.job));
        site.tell(Tone::Warning, "Retrying...");
        pause(wait, stop).await?;
    }
}

/// Makes one attempt. The inner error is one of the network and can be retried; a file that cannot be written is the outer error.
async fn fetch_once(site: &dyn Site, door: &Door, direct: bool) -> Result<Result<File, ClientError>, Failure> {
    let local = |error: io::Error| Failure::io("cannot write the archive")(error);
    let mut answer = match door.client.download_artifact(door.job, &door.token, direct).await {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    let mut file = tempfile::tempfile_in(site.staging()).map_err(local)?;
    let mut meter = site.meter("Downloading artifacts", Some(answer.size).filter(|size| *size > 0));
    while let Some(chunk) = answer.body.next().await {
        match chunk {
            Ok(chunk) => {
                file.write_all(&chunk).map_err(local)?;
                meter(chunk.len());
            }
            Err(error) => return Ok(Err(ClientError::unreachable("artifact download", error.to_string()))),
        }
    }
    file.rewind().map_err(local)?;
    Ok(Ok(file))
}
