//! Artifacts: files that jobs upload, one per job and kind.
//!
//! Content is received, checked, and kept under its name; its row is written after that, and what has no row then is
//! deleted. So a row means whole content, and content without a row is a leftover of a process that was killed: the next
//! one deletes it when it opens.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use muster_archive::{Exceeded, Limit, UnpackError};
use muster_job::JobId;
use muster_pipeline::duration;
use muster_runner_api::service::{ArtifactQuery, ByteStream, ServiceError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::blobs::{ArtifactName, Blobs, Incoming, blocking};
use crate::dotenv;
use crate::error::BlobError;
use crate::options::Limits;
use crate::store::ArtifactRow;

/// The kind that later jobs download.
pub(crate) const ARCHIVE: &str = "archive";
/// The kind whose content becomes variables.
pub(crate) const DOTENV: &str = "dotenv";
/// The kinds that there are, in order (pipeline-yaml 1.3, runner-api 5.1). Since there is one file per kind, the list is
/// also the bound of how many files a job may leave.
const KINDS: &[&str] = &[
    "accessibility",
    "annotations",
    "api_fuzzing",
    ARCHIVE,
    "browser_performance",
    "cobertura",
    "codequality",
    "container_scanning",
    "coverage_fuzzing",
    "cyclonedx",
    "dast",
    "dependency_scanning",
    DOTENV,
    "jacoco",
    "junit",
    "license_management",
    "license_scanning",
    "load_performance",
    "lsif",
    "metadata",
    "metrics",
    "metrics_referee",
    "network_referee",
    "repository_xray",
    "requirements",
    "sarif",
    "sast",
    "secret_detection",
    "terraform",
];
/// Bytes of an unpacked dotenv report that are looked at; its parser allows far fewer.
const DOTENV_READ_MAX: u64 = 64 * 1024;
/// Locks for all jobs together.
const LOCKS: usize = 64;
/// Bytes of a file name.
const NAME_MAX: usize = 200;

/// What became of an upload.
pub(crate) enum Upload {
    /// It is whole, and not in its place yet.
    Received(Box<dyn Incoming>, NewArtifact),
    /// It is a report that cannot be used, and why.
    Refused(String),
}

/// What is known of content that was received.
#[derive(Debug, Clone)]
pub(crate) struct NewArtifact {
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) filename: String,
    pub(crate) size: u64,
    pub(crate) expire_in: Option<String>,
    /// Content of a dotenv report.
    pub(crate) dotenv: Vec<(String, String)>,
}

impl NewArtifact {
    /// The name of its content.
    pub(crate) fn name(&self, job: JobId) -> ArtifactName {
        ArtifactName { job, kind: self.kind.clone(), filename: self.filename.clone() }
    }
}

/// The name of the content that a row is about.
pub(crate) fn name_of(row: &ArtifactRow) -> ArtifactName {
    ArtifactName { job: row.job, kind: row.kind.clone(), filename: row.filename.clone() }
}

/// Keeps uploads and expiry of one job apart. It is held from before content is kept until its row is written or the
/// content is deleted again; so rows and content agree for its holder.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<[Arc<Mutex<()>>]>);

impl Default for Places {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Arc::default()).collect())
    }
}

impl Places {
    fn of(&self, job: JobId) -> Arc<Mutex<()>> {
        self.0.get(self.number(job)).cloned().unwrap_or_default()
    }

    /// The number of a job's lock: several jobs have the same.
    pub(crate) fn number(&self, job: JobId) -> usize {
        usize::try_from(job.0).unwrap_or(0) % LOCKS
    }

    /// Returns whether no upload or deletion uses the files of a job.
    pub(crate) fn is_free(&self, job: JobId) -> bool {
        self.0.get(self.number(job)).is_none_or(|lock| lock.try_lock().is_ok())
    }

    /// Waits for the files of a job.
    pub(crate) async fn lock(&self, job: JobId) -> OwnedMutexGuard<()> {
        self.of(job).lock_owned().await
    }

    /// The files of a job, if nobody has them.
    pub(crate) fn try_lock(&self, job: JobId) -> Option<OwnedMutexGuard<()>> {
        self.of(job).try_lock_owned().ok()
    }
}

/// Receives an upload and checks it. A report that cannot be used is not kept.
///
/// # Errors
/// [`ServiceError::BadRequest`] for what is not an archive although it says so, [`ServiceError::TooLarge`], and those of
/// the blobs.
pub(crate) async fn receive(
    blobs: &dyn Blobs,
    query: ArtifactQuery,
    filename: &str,
    body: ByteStream,
    limits: &Limits,
) -> Result<Upload, ServiceError> {
    let kind = query.artifact_type.filter(|kind| !kind.is_empty()).unwrap_or_else(|| ARCHIVE.to_owned());
    let format = query.artifact_format.filter(|format| !format.is_empty()).unwrap_or_else(|| "zip".to_owned());
    check_names(&kind, &format)?;
    // Before it takes the place of another file.
    expiry(query.expire_in.as_deref())?;
    let filename = safe_name(filename);
    let mut incoming = blobs.receive().await?;
    let size = fill(&mut *incoming, body, limits.artifact_bytes).await?;
    let content = incoming.open().await?;
    let (is_report, of_format, unpack) = (kind == DOTENV, format.clone(), limits.unpack);
    let checked = blocking(move || {
        if of_format == "zip" {
            muster_archive::check_zip(&content, &unpack).map_err(|error| ServiceError::BadRequest(unusable(&error)))?;
        }
        if is_report { variables(content, &of_format) } else { Ok(Ok(Vec::new())) }
    });
    Ok(match checked.await? {
        Ok(dotenv) => {
            Upload::Received(incoming, NewArtifact { kind, format, filename, size, expire_in: query.expire_in, dotenv })
        }
        // What is of no use is dropped.
        Err(why) => Upload::Refused(why),
    })
}

/// After which time an upload expires.
pub(crate) fn expiry(expire_in: Option<&str>) -> Result<Option<Duration>, ServiceError> {
    let text = expire_in.filter(|text| !text.is_empty());
    let after = text.map(duration::parse_or_never).transpose();
    after.map(Option::flatten).map_err(|error| ServiceError::BadRequest(format!("expire_in: {error}")))
}

/// Kind and format become parts of paths and rows.
fn check_names(kind: &str, format: &str) -> Result<(), ServiceError> {
    if KINDS.binary_search(&kind).is_err() {
        return Err(ServiceError::BadRequest(format!("artifact_type does not have a valid value: `{kind}`")));
    }
    if !matches!(format, "zip" | "gzip" | "raw") {
        return Err(ServiceError::BadRequest(format!("artifact_format does not have a valid value: `{format}`")));
    }
    Ok(())
}

/// The last part of a name, without what could lead elsewhere.
fn safe_name(name: &str) -> String {
    let base = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let clean: String = base.chars().filter(|letter| !letter.is_control()).collect();
    let mut end = clean.len().min(NAME_MAX);
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    match clean.get(..end).unwrap_or_default() {
        "" | "." | ".." => "artifact".to_owned(),
        name => name.to_owned(),
    }
}

async fn fill(incoming: &mut dyn Incoming, mut body: ByteStream, bytes_max: u64) -> Result<u64, ServiceError> {
    let mut size = 0_u64;
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| ServiceError::BadRequest(format!("the upload broke off: {error}")))?;
        size = size.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        if size > bytes_max {
            return Err(ServiceError::TooLarge(format!("an artifact may have {bytes_max} bytes")));
        }
        incoming.write(&piece).await?;
    }
    Ok(size)
}

/// The error of an archive with its cause.
fn unusable(error: &UnpackError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The content of a dotenv report, or why it cannot be used.
fn variables(mut file: File, format: &str) -> Result<Result<Vec<(String, String)>, String>, ServiceError> {
    file.rewind().map_err(|error| BlobError::new("a dotenv report", error))?;
    let mut report = Vec::new();
    let read = match format {
        "gzip" => flate2::read::MultiGzDecoder::new(file).take(DOTENV_READ_MAX).read_to_end(&mut report),
        "raw" => file.take(DOTENV_READ_MAX).read_to_end(&mut report),
        _ => return Err(ServiceError::BadRequest("a dotenv report is gzip or raw".to_owned())),
    };
    if let Err(error) = read {
        return Ok(Err(format!("the dotenv report is damaged: {error}")));
    }
    Ok(dotenv::parse(&report).map_err(|error| format!("the dotenv report is not valid: {error}")))
}

/// Reads one file of an archive.
///
/// # Errors
/// In words for a person.
pub(crate) fn read_entry(
    archive: File,
    entry: &str,
    bytes_max: u64,
    limits: &muster_archive::Limits,
) -> Result<Vec<u8>, String> {
    let limits = muster_archive::Limits { bytes: bytes_max, ..*limits };
    match muster_archive::read_zip_file(archive, entry, &limits) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(format!("the archive has no `{entry}`")),
        Err(UnpackError::Limit(Exceeded { limit: Limit::Bytes, .. })) => {
            Err(format!("`{entry}` is larger than {bytes_max} bytes"))
        }
        Err(error) => Err(format!("cannot unpack `{entry}`: {}", unusable(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        assert_eq!(safe_name("../../etc/passwd"), "passwd");
        assert_eq!(safe_name("C:\\x\\a.zip"), "a.zip");
        assert_eq!(safe_name(".."), "artifact");
        assert_eq!(safe_name(".env"), ".env");
        assert_eq!(safe_name(&"ä".repeat(300)).len(), 200);
    }

    #[test]
    fn kinds_and_formats_are_from_a_list() {
        assert!(KINDS.is_sorted(), "it is searched by halves");
        for kind in ["archive", "metadata", "junit", "dotenv", "cobertura", "metrics_referee", "sast"] {
            assert!(check_names(kind, "gzip").is_ok(), "{kind}");
        }
        for kind in ["../x", "", "junit2", "coverage_report", "Junit"] {
            assert!(matches!(check_names(kind, "gzip"), Err(ServiceError::BadRequest(_))), "{kind}");
        }
        assert!(check_names("junit", "tar").is_err());
    }
}
