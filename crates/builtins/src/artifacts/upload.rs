//! Packs files and sends them to the coordinator (job-execution 9.1 to 9.4).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use muster_agent_api::builtin::ArtifactsUpload;
use muster_job::JobId;
use muster_runner_api::client::UploadLimits;
use muster_runner_api::service::{ArtifactQuery, ByteStream};
use muster_steps::stop::Stop;
use tokio_util::io::ReaderStream;

use super::{Tries, pause, word};
use crate::context::Context;
use crate::failure::Failure;
use crate::files::pack::{self, Level};
use crate::files::select::{Wanted, expand, select};
use crate::trace::style;

/// Runs the phase.
pub(crate) async fn upload(context: &Context, upload: &ArtifactsUpload, stop: &Stop) -> Result<(), Failure> {
    context.say(&style::info("Uploading artifacts..."));
    let wanted = Wanted { paths: &upload.paths, exclude: &upload.exclude, untracked: upload.untracked };
    let files = select(context, wanted, stop).await?;
    if files.is_empty() {
        context.say(&style::error("No files to upload"));
        return Ok(());
    }
    if files.iter().any(|file| file.starts_with(".git")) {
        context.say(&style::warning("part of .git directory is on the list of files to archive"));
    }
    let env = context.environment().into_iter().collect::<HashMap<_, _>>();
    // Without a name it is the uploader that names the archive, and not as one whose name expands to nothing.
    let name = if upload.name.is_empty() { "artifacts".to_owned() } else { expand(&upload.name, &env) };
    let filename = filename(&name, &upload.artifact_format);
    let archive = archive(context, upload, files, stop).await?;
    send(context, upload, &filename, archive.path(), stop).await
}

async fn archive(
    context: &Context,
    upload: &ArtifactsUpload,
    files: Vec<PathBuf>,
    stop: &Stop,
) -> Result<tempfile::NamedTempFile, Failure> {
    let level = Level::from_name(context.variables.get("ARTIFACT_COMPRESSION_LEVEL"));
    let (root, temp, format) = (context.project_dir.clone(), context.temp_dir.clone(), upload.artifact_format.clone());
    let watch = stop.clone();
    Context::blocking(move || {
        // The job may have removed it.
        let there = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&temp);
        let target = there.and_then(|()| tempfile::Builder::new().prefix("artifacts_").tempfile_in(temp));
        let target = target.map_err(Failure::io("cannot write the archive"))?;
        match format.as_str() {
            "" | "zip" => pack::zip(&root, &files, level, target.as_file(), &watch)?,
            "gzip" => pack::gzip(&root, &files, level, target.as_file(), &watch)?,
            "raw" => pack::raw(&root, &files, target.as_file())?,
            other => return Err(Failure::Step(format!("the artifact format `{other}` is not known"))),
        }
        Ok(target)
    })
    .await
}

async fn send(
    context: &Context,
    upload: &ArtifactsUpload,
    filename: &str,
    archive: &Path,
    stop: &Stop,
) -> Result<(), Failure> {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let query = ArtifactQuery {
        artifact_format: some(&upload.artifact_format),
        artifact_type: some(&upload.artifact_type),
        expire_in: some(&upload.expire_in),
    };
    let doing = match upload.artifact_type.as_str() {
        "" => "Uploading artifacts to coordinator...".to_owned(),
        kind => format!("Uploading artifacts as \"{kind}\" to coordinator..."),
    };
    let client = context.client()?;
    let (job, token) = (JobId(context.coordinator.job_id), context.coordinator.token.as_str());
    let mut tries = Tries::new();
    loop {
        let (body, length) = open(archive).map_err(Failure::io("cannot read the archive"))?;
        let call = client.upload_artifact(job, token, &query, filename, body, Some(length), limits(context));
        let result = tokio::select! {
            cause = stop.stopped() => return Err(Failure::Stopped(cause)),
            result = call => result,
        };
        let error = match result {
            Ok(()) => {
                context.say(&format!("{doing} 201 Created id={job} responseStatus=201 Created\n"));
                return Ok(());
            }
            Err(error) => error,
        };
        let word = word(&error);
        let Some(wait) = tries.next_wait(&error) else {
            context.say(&style::error(&format!("{doing} {word} id={job}")));
            return Err(Failure::Step(format!("uploading artifacts: {word}")));
        };
        context.say(&style::warning(&format!("{doing} {word} id={job}")));
        context.say(&style::warning("Retrying..."));
        pause(wait, stop).await?;
    }
}

/// `[runners.artifact]`, or the defaults where the plan does not say.
fn limits(context: &Context) -> UploadLimits {
    let given = |millis: u64, default: Duration| if millis == 0 { default } else { Duration::from_millis(millis) };
    let default = UploadLimits::default();
    UploadLimits {
        whole: given(context.coordinator.upload_timeout_ms, default.whole),
        answer: given(context.coordinator.response_timeout_ms, default.answer),
    }
}

fn open(path: &Path) -> io::Result<(ByteStream, u64)> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((ReaderStream::with_capacity(tokio::fs::File::from_std(file), 256 * 1024).boxed(), length))
}

/// The name of the file at the coordinator (job-execution 9.3).
fn filename(name: &str, format: &str) -> String {
    let base = Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let base = if matches!(base, "" | ".") { "default" } else { base };
    match format {
        "gzip" => format!("{base}.gz"),
        "raw" => base.to_owned(),
        _ => format!("{base}.zip"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_follow_the_format() {
        for (name, format, expected) in [
            ("", "zip", "default.zip"),
            (".", "", "default.zip"),
            ("a/b", "zip", "b.zip"),
            ("junit.xml", "gzip", "junit.xml.gz"),
            ("report.json", "raw", "report.json"),
        ] {
            assert_eq!(filename(name, format), expected);
        }
    }
}
