//! Fetches the archives of other jobs and unpacks them (job-execution 9.6).

use std::fs::File;
use std::io::{self, Read, Seek, Write};

use futures::StreamExt;
use muster_agent_api::builtin::{ArtifactSource, ArtifactsDownload};
use muster_job::JobId;
use muster_runner_api::client::{Client, ClientError};
use muster_steps::stop::Stop;

use super::{Tries, pause, word};
use crate::context::Context;
use crate::failure::Failure;
use crate::files::extract;
use crate::trace::style;

/// Runs the phase: the producers in order, later ones over earlier ones.
pub(crate) async fn download(context: &Context, download: &ArtifactsDownload, stop: &Stop) -> Result<(), Failure> {
    let client = context.client()?;
    for source in &download.from {
        context.say(&style::info(&format!("Downloading artifacts for {} ({})...", source.name, source.job_id)));
        let archive = fetch(context, &client, source, stop).await?;
        let (root, watch) = (context.project_dir.clone(), stop.clone());
        Context::blocking(move || unpack(archive, &root, &watch)).await?;
    }
    Ok(())
}

async fn fetch(context: &Context, client: &Client, source: &ArtifactSource, stop: &Stop) -> Result<File, Failure> {
    const DOING: &str = "Downloading artifacts from coordinator...";
    let mut tries = Tries::new();
    let mut direct = context.coordinator.direct_download;
    loop {
        let result = tokio::select! {
            cause = stop.stopped() => return Err(Failure::Stopped(cause)),
            // Only the first try asks for the object storage: it may be what failed (runner-api 5.2).
            result = fetch_once(context, client, source, std::mem::take(&mut direct)) => result?,
        };
        let error = match result {
            Ok(file) => {
                context.say(&format!("{DOING} ok id={} responseStatus=200 OK\n", source.job_id));
                return Ok(file);
            }
            Err(error) => error,
        };
        let word = word(&error);
        let Some(wait) = tries.next_wait(&error) else {
            context.say(&style::error(&format!("{DOING} {word} id={}", source.job_id)));
            return Err(Failure::Step(format!("downloading artifacts of {}: {word}", source.name)));
        };
        context.say(&style::warning(&format!("{DOING} {word} id={}", source.job_id)));
        context.say(&style::warning("Retrying..."));
        pause(wait, stop).await?;
    }
}

/// One try. A disk that cannot be written is no fault of the network: it is not tried again.
async fn fetch_once(
    context: &Context,
    client: &Client,
    source: &ArtifactSource,
    direct: bool,
) -> Result<Result<File, ClientError>, Failure> {
    let local = |error: io::Error| Failure::io("cannot write the archive")(error);
    let mut answer = match client.download_artifact(JobId(source.job_id), &source.token, direct).await {
        Ok(answer) => answer,
        Err(error) => return Ok(Err(error)),
    };
    let mut file = tempfile::tempfile_in(&context.temp_dir).map_err(local)?;
    while let Some(chunk) = answer.body.next().await {
        match chunk {
            Ok(chunk) => file.write_all(&chunk).map_err(local)?,
            Err(error) => return Ok(Err(ClientError::unreachable("artifact download", error.to_string()))),
        }
    }
    file.rewind().map_err(local)?;
    Ok(Ok(file))
}

/// The format is told by the first bytes (job-execution 9.3).
fn unpack(mut archive: File, root: &std::path::Path, stop: &Stop) -> Result<(), Failure> {
    let mut head = [0; 4];
    let length = archive.read(&mut head).and_then(|length| archive.rewind().map(|()| length));
    let length = length.map_err(Failure::io("cannot read the archive"))?;
    match head.get(..length).unwrap_or_default() {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Err(Failure::Step("the artifacts are a tar archive with zstd, which cannot be unpacked here".to_owned()))
        }
        [0x1f, 0x8b, ..] => Err(Failure::Step("the artifacts are a gzip file, which cannot be unpacked".to_owned())),
        _ => extract::zip(archive, root, stop),
    }
}
