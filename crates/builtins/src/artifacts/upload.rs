//! Packs files and uploads them to the coordinator (docs/spec/job-execution.md, sections 9.1, 9.2, 9.3 and 9.4).

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use muster_agent_api::builtin::ArtifactsUpload;
use muster_job::JobId;
use muster_runner_api::client::{ClientError, UploadTimeouts};
use muster_runner_api::service::{ArtifactQuery, ByteStream};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_util::io::ReaderStream;

use super::retry::{RetryPolicy, RetryState, pause};
use super::{ArtifactEndpoint, Provenance, status_text};
use crate::blocking::blocking;
use crate::context::Context;
use crate::files::format::{Format, Level};
use crate::files::pack::pack;
use crate::files::select::{FileSelection, expand, select};
use crate::transfer::{MessageLevel, Meter, TransferContext};

pub(super) async fn upload(context: &Context, upload: &ArtifactsUpload, stop: &StopToken) -> Result<(), Failure> {
    context.report(MessageLevel::Notice, "Uploading artifacts...");
    let (job, token) = (JobId(context.coordinator.job_id), context.coordinator.token.clone());
    let provenance = upload.provenance.as_ref().map(|origin| Provenance {
        job_id: context.coordinator.job_id,
        origin: origin.clone(),
        started_at: rfc3339(context.started_at),
        ended_at: rfc3339(OffsetDateTime::now_utc()),
    });
    let upload = Upload {
        artifact: upload,
        level: Level::from_name(context.variables.get("ARTIFACT_COMPRESSION_LEVEL")),
        timeouts: timeouts(context),
        retry_policy: RetryPolicy::UntilTimeout,
        provenance: provenance.as_ref(),
    };
    upload.run(context, async || Ok(ArtifactEndpoint { client: context.client(stop).await?, job, token }), stop).await
}

fn rfc3339(time: OffsetDateTime) -> String {
    // gitlab-runner writes whole seconds. The default is never used, because a current time can always be formatted.
    time.replace_nanosecond(0).ok().and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_default()
}

/// Returns the timeouts of `[runners.artifact]`. 0 means the default.
fn timeouts(context: &Context) -> UploadTimeouts {
    let or_default = |millis: u64, default: Duration| if millis == 0 { default } else { Duration::from_millis(millis) };
    let default = UploadTimeouts::default();
    UploadTimeouts {
        total: or_default(context.coordinator.upload_timeout_ms, default.total),
        response: or_default(context.coordinator.response_timeout_ms, default.response),
    }
}

/// Upload of one artifact.
#[derive(Debug)]
pub struct Upload<'a> {
    /// Patterns of the files, and name, type and format of the artifact.
    pub artifact: &'a ArtifactsUpload,
    /// Compression level.
    pub level: Level,
    /// Timeouts of one attempt.
    pub timeouts: UploadTimeouts,
    /// When to retry.
    pub retry_policy: RetryPolicy,
    /// Statement to pack with the files. `None` means no statement.
    pub provenance: Option<&'a Provenance>,
}

impl Upload<'_> {
    /// Packs the files and uploads them. If there are no files, prints a message and succeeds.
    ///
    /// `endpoint` is called only if there is an archive to upload.
    ///
    /// # Errors
    /// [`Failure::Step`] if the upload fails, [`Failure::System`] if the archive cannot be written, or
    /// [`Failure::Stopped`].
    pub async fn run(
        &self,
        context: &dyn TransferContext,
        endpoint: impl AsyncFnOnce() -> Result<ArtifactEndpoint, Failure>,
        stop: &StopToken,
    ) -> Result<(), Failure> {
        let artifact = self.artifact;
        let selection =
            FileSelection { paths: &artifact.paths, exclude: &artifact.exclude, untracked: artifact.untracked };
        let mut files = select(context, selection, stop).await?;
        let env = context.environment().into_iter().collect::<HashMap<_, _>>();
        // An artifact without a name is called `artifacts`. If the name expands to an empty text, it is called
        // `default`.
        let name = if artifact.name.is_empty() { "artifacts".to_owned() } else { expand(&artifact.name, &env) };
        if let Some(provenance) = self.provenance {
            context.report(MessageLevel::Plain, "Generating artifacts metadata");
            files = provenance.add(context, base(&name), files, stop).await?;
        }
        if files.is_empty() {
            context.report(MessageLevel::Error, "No files to upload");
            return Ok(());
        }
        if files.iter().any(|file| file.starts_with(".git")) {
            context.report(MessageLevel::Warning, "part of .git directory is on the list of files to archive");
        }
        let format = Format::of_artifact(&artifact.artifact_format)
            .ok_or_else(|| Failure::Step(format!("`{}` is not a valid artifact format", artifact.artifact_format)))?;
        let archive = self.pack_files(context, format, files, stop).await?;
        self.send(context, endpoint().await?, &filename(&name, format), archive.path(), stop).await
    }

    async fn pack_files(
        &self,
        context: &dyn TransferContext,
        format: Format,
        files: Vec<PathBuf>,
        stop: &StopToken,
    ) -> Result<tempfile::NamedTempFile, Failure> {
        let (root, staging, level) = (context.root().to_owned(), context.staging().to_owned(), self.level);
        let watch = stop.clone();
        blocking(context, "packing the artifacts", stop, move || {
            // The job may have removed the directory.
            let created = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&staging);
            let target = created.and_then(|()| tempfile::Builder::new().prefix("artifacts_").tempfile_in(staging));
            let target = target.map_err(Failure::io("failed to write the archive"))?;
            pack(format, &root, &files, level, target.as_file(), &watch)?;
            Ok(target)
        })
        .await
    }

    async fn send(
        &self,
        context: &dyn TransferContext,
        mut endpoint: ArtifactEndpoint,
        filename: &str,
        archive: &Path,
        stop: &StopToken,
    ) -> Result<(), Failure> {
        let not_empty = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let query = ArtifactQuery {
            artifact_format: not_empty(&self.artifact.artifact_format),
            artifact_type: not_empty(&self.artifact.artifact_type),
            expire_in: not_empty(&self.artifact.expire_in),
        };
        let doing = match self.artifact.artifact_type.as_str() {
            "" => "Uploading artifacts to coordinator...".to_owned(),
            kind => format!("Uploading artifacts as \"{kind}\" to coordinator..."),
        };
        let job = endpoint.job;
        let mut retries = RetryState::new(self.retry_policy);
        loop {
            let (body, length) = open(context, archive).await?;
            let call = endpoint.client.upload_artifact(
                job,
                &endpoint.token,
                &query,
                filename,
                body,
                Some(length),
                self.timeouts,
            );
            let result = tokio::select! {
                cause = stop.stopped() => return Err(Failure::Stopped(cause)),
                result = call => result,
            };
            let error = match result {
                Ok(()) => {
                    context.report(
                        MessageLevel::Plain,
                        &format!("{doing} 201 Created id={job} responseStatus=201 Created"),
                    );
                    return Ok(());
                }
                Err(error) => error,
            };
            let status = status_text(&error);
            let Some(delay) = retries.next_delay(&error) else {
                context.report(MessageLevel::Error, &format!("{doing} {status} id={job}"));
                return Err(Failure::Step(format!("uploading artifacts: {status}")));
            };
            context.report(MessageLevel::Warning, &format!("{doing} {status} id={job}"));
            if let ClientError::Redirected { to, .. } = error {
                let redirected = endpoint.client.with_base_url(&to);
                endpoint.client = redirected.map_err(|error| {
                    Failure::Step(format!(
                        "uploading artifacts: failed to follow the redirect of the coordinator: {error}"
                    ))
                })?;
            }
            context.report(MessageLevel::Warning, "Retrying...");
            pause(delay, stop).await?;
        }
    }
}

async fn open(context: &dyn TransferContext, path: &Path) -> Result<(ByteStream, u64), Failure> {
    let owned_path = path.to_owned();
    let file = muster_files::run_blocking(path, move || muster_files::open(&owned_path)).await?;
    let length = file.metadata().map_err(Failure::io("failed to read the archive"))?.len();
    let mut meter: Meter = context.meter("Uploading artifacts", Some(length));
    let body = ReaderStream::with_capacity(tokio::fs::File::from_std(file), 256 * 1024);
    let body = body.inspect(move |chunk| meter(chunk.as_ref().map_or(0, |chunk| chunk.len())));
    Ok((body.boxed(), length))
}

fn filename(name: &str, format: Format) -> String {
    format!("{}{}", base(name), format.suffix())
}

/// Returns the last component of an artifact's name, or `default` if the name has none.
pub(super) fn base(name: &str) -> &str {
    match Path::new(name).file_name().and_then(|name| name.to_str()).unwrap_or_default() {
        "" | "." => "default",
        base => base,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_follow_the_format() {
        for (name, format, expected) in [
            ("", "zip", "default.zip"),
            (".", "", "default.zip"),
            ("a/b", "zip", "b.zip"),
            ("junit.xml", "gzip", "junit.xml.gz"),
            ("report.json", "raw", "report.json"),
            ("all", "zipzstd", "all.zip"),
            ("all", "tarzstd", "all.tar.zst"),
        ] {
            assert_eq!(filename(name, Format::of_artifact(format).unwrap()), expected);
        }
    }
}
