//! Fetches the archives of other jobs and unpacks them (job-execution 9.6).

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

/// Runs the phase: the producers in order, later ones over earlier ones.
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

/// Fetches the archive of a job; it has no name on disk. With `direct`, the first try may be sent on to the coordinator's
/// object storage.
///
/// # Errors
/// [`Failure::Step`] with the coordinator's refusal; else what the system has against it, or that it was stopped.
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
            // Only the first try asks for the object storage: it may be what failed (runner-api 5.2).
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

/// One try. A disk that cannot be written is no fault of the network: it is not tried again.
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
